"""Ways to compute one attention launch, each made ready once and then run as often as one likes.

Those that cannot take pages get dense copies, made before anything is timed, which is to their advantage.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from recguide.engine.bench_shapes import BRANCHES, HEADS, PAGE_SIZE, Inputs
from recguide.kernels.layouts import Tail, batch, causal, copied_branch
from recguide.kernels.row_attention import row_attention
from recguide.kernels.row_plan import RowPlan, Tile, tile_for


class Attention(NamedTuple):
    """What is timed, and what then makes ``[tokens, heads, dim]`` of its result."""

    run: Callable[[], Tensor]
    tokens_of: Callable[[Tensor], Tensor] = lambda found: found


class NotAvailable(Exception):  # noqa: N818
    """A method that this machine, or this shape, has not; the message says which."""


def plan_for(given: Inputs, tile: Tile | None = None, chunk: int = 0) -> RowPlan:
    """A plan for a launch, updated."""
    heads, kv_heads, dim = HEADS[given.shape.model]
    tile = tile or tile_for(given.num_tokens * heads // kv_heads, dim, given.q.dtype)
    longest = given.rows.page_table.shape[1] * PAGE_SIZE
    plan = RowPlan(
        given.rows.num_requests,
        len(given.q),
        (heads, kv_heads),
        dim,
        given.q.device,
        tile,
        chunk=chunk,
        longest=longest,
    )
    plan.update(given.rows)
    return plan


def rows_in_one_launch(given: Inputs) -> Attention:
    """Ours; the plan is made before, as it is once a forward."""
    plan, out = plan_for(given), torch.empty_like(given.q)
    return Attention(lambda: row_attention(given.q, given.keys, given.values, given.rows, plan, out=out))


def plan_alone(given: Inputs) -> Attention:
    """The plan that goes before; its result is the launch's."""
    plan = plan_for(given)

    def run() -> Tensor:
        plan.update(given.rows)
        return plan.plan

    return Attention(run, lambda _plan: rows_in_one_launch(given).run())


def a_launch_a_row(given: Inputs) -> Attention:
    """Each branch as a request of its own behind a copy of what it shares, padded to the longest; one launch a row.

    It needs four tails of spare pages for each request.
    """
    if given.shape.layout != "rows-16":
        raise NotAvailable("one row only")
    own = [list(range(16))]
    for index, leaves in enumerate(BRANCHES):
        own.append([*range(leaves), *range(16 + 16 * index, 32 + 16 * index)])
    longest = max(map(len, own))
    pieces = [_padded_row(given, row, longest, number) for number, row in enumerate(own)]
    out = given.q.new_empty(4, given.shape.requests, longest, *given.q.shape[1:])

    def run() -> Tensor:
        for (piece, plan), target in zip(pieces, out, strict=True):
            row_attention(piece.q, piece.keys, piece.values, piece.rows, plan, out=target.flatten(0, 1))
        return out

    def tokens_of(found: Tensor) -> Tensor:
        return torch.cat([x[:, len(row) - 16 : len(row)] for row, x in zip(own, found, strict=True)], 1).flatten(0, 1)

    return Attention(run, tokens_of)


def _padded_row(given: Inputs, row: list[int], longest: int, number: int) -> tuple[Inputs, RowPlan]:
    """The launch of one row, of these tokens of the tail, with keys in spare pages."""
    requests, prefix = given.shape.requests, given.shape.prefix
    device = given.q.device
    tail: Tail = causal(16) if number == 0 else copied_branch(0, len(row) - 16, 16)
    tail += causal(longest - len(tail))
    pages = -(-longest // PAGE_SIZE)
    first = given.keys.shape[0] - 4 * pages * requests + number * pages * requests
    spare = torch.arange(first, first + pages * requests, device=device).view(requests, pages)
    table = torch.cat([given.rows.page_table[:, : prefix // PAGE_SIZE], spare.int()], 1)
    source = torch.tensor(row + [0] * (longest - len(row)), device=device)
    place = prefix + source
    for cache in (given.keys, given.values):
        copied = cache[given.rows.page_table[:, place // PAGE_SIZE].long(), place % PAGE_SIZE]
        to = torch.arange(longest, device=device)
        cache[spare[:, to // PAGE_SIZE], to % PAGE_SIZE] = copied
    q = given.q.view(requests, -1, *given.q.shape[1:])[:, source].flatten(0, 1)
    piece = Inputs(given.shape, q, given.keys, given.values, batch([tail] * requests, [prefix] * requests, table))
    heads, kv_heads, dim = HEADS[given.shape.model]
    tile = tile_for(longest * heads // kv_heads, dim, q.dtype)
    plan = RowPlan(requests, len(q), (heads, kv_heads), dim, device, tile)
    plan.update(piece.rows)
    return piece, plan


def sdpa_with_mask(given: Inputs) -> Attention:
    """torch's fused attention with an explicit mask; the heads of a group are rows of one, so keys are read once."""
    heads, kv_heads, dim = HEADS[given.shape.model]
    group, requests = heads // kv_heads, given.shape.requests
    keys, values = given.dense(given.keys), given.dense(given.values)
    q = given.q.view(requests, -1, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(requests, kv_heads, -1, dim)
    mask = given.mask().repeat(group, 1)
    # its kernels want rows of the bias to begin at multiples of 16 bytes
    width = -(-mask.shape[1] // 16) * 16
    bias = torch.zeros(mask.shape[0], width, dtype=q.dtype, device=q.device)[:, : mask.shape[1]]
    bias.masked_fill_(~mask, -torch.inf)
    bias = bias.expand(requests, kv_heads, -1, -1)

    def tokens_of(found: Tensor) -> Tensor:
        return found.view(requests, kv_heads, group, -1, dim).permute(0, 3, 1, 2, 4).reshape(-1, heads, dim)

    return Attention(lambda: F.scaled_dot_product_attention(q, keys, values, attn_mask=bias), tokens_of)


def flex_attention(given: Inputs) -> Attention:
    """FlexAttention, compiled, with a block mask."""
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as flex

    if given.q.device.type != "cuda":
        raise NotAvailable("compiled for GPUs")
    heads, _, dim = HEADS[given.shape.model]
    tokens, requests = given.num_tokens, given.shape.requests
    keys, values, seen = given.dense(given.keys), given.dense(given.values), given.mask()
    q = given.q.view(requests, tokens, heads, dim).transpose(1, 2)

    def sees(_request: Tensor, _head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return seen[row, key]

    blocks = create_block_mask(sees, None, None, tokens, keys.shape[2], device=q.device)
    # shapes compiled before would count against the limit of recompilations, behind which nothing is fused
    torch._dynamo.reset()
    compiled = torch.compile(flex, dynamic=False)
    return Attention(
        lambda: compiled(q, keys, values, block_mask=blocks, enable_gqa=True),
        lambda found: found.transpose(1, 2).flatten(0, 1),
    )


def flashinfer_paged(given: Inputs) -> Attention:
    """FlashInfer's paged prefill, with a custom mask where rows are not causal."""
    if find_spec("flashinfer") is None:
        raise NotAvailable("flashinfer is not installed")
    import flashinfer

    heads, kv_heads, dim = HEADS[given.shape.model]
    requests, tokens = given.shape.requests, given.num_tokens
    pages = given.rows.page_table.shape[1]
    workspace = torch.empty(2**28, dtype=torch.uint8, device=given.q.device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
    ends = torch.arange(requests + 1, dtype=torch.int32, device=given.q.device)
    last = (given.shape.prefix + tokens - 1) % PAGE_SIZE + 1
    is_causal = given.shape.tail == causal(tokens)
    mask = None if is_causal else given.mask().flatten().repeat(requests)
    wrapper.plan(
        ends * tokens, ends * pages, given.rows.page_table.flatten(), torch.full_like(ends[1:], last),
        heads, kv_heads, dim, PAGE_SIZE, custom_mask=mask, causal=is_causal,
        q_data_type=given.q.dtype, kv_data_type=given.q.dtype,
    )  # fmt: skip
    return Attention(lambda: wrapper.run(given.q, (given.keys, given.values)))


OURS = ("row-attention", "plan", "launch-a-row")
METHODS: dict[str, Callable[[Inputs], Attention]] = {
    "row-attention": rows_in_one_launch,
    "plan": plan_alone,
    "launch-a-row": a_launch_a_row,
    "sdpa": sdpa_with_mask,
    "flex": flex_attention,
    "flashinfer": flashinfer_paged,
}
