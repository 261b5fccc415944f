"""Putting the parts of split requests together, as `row_attention.py` leaves them."""

import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.launches import overlapping
from recguide.kernels.layouts import Rows
from recguide.kernels.row_plan import HEADER, RowPlan, processors

WARPS, PROGRAMS = 1, 32
"""Of a program; such programs on a processor."""
AT_ONCE = {1: (8, 16, 32), 4: (4, 8, 8)}
"""By the heads that a program takes together, how many parts of each it asks for at once, when there are few, some or
many of them: to wait twice costs more than the rest, and so do lanes left idle. Four heads share the look-up."""
FEW_ROWS = 12
"""Up to so many rows of outputs a processor, a program takes one head."""


@triton.jit
def _of(numbers, lanes, lane):
    """One number out of a vector."""
    return tl.sum(tl.where(lanes == lane, numbers, 0), 0)


@triton.jit
def _weighed(partial, partial_lse, part, stride, num_chunks, is_head, dims, HEADS: tl.constexpr, AT_ONCE: tl.constexpr):
    """Output and log2-sum of one token's heads from ``num_chunks`` parts; each weighs as much as its sum."""
    lanes = tl.arange(0, AT_ONCE)
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, dims.shape[0]], tl.float32)
    for first in range(0, num_chunks, AT_ONCE):
        here = is_head[:, None] & (first + lanes < num_chunks)[None, :]
        at = part[:, None] + (first + lanes).to(tl.int64)[None, :] * stride
        o = tl.load(partial + at[:, :, None] * dims.shape[0] + dims, mask=here[:, :, None], other=0.0)
        sums = tl.load(partial_lse + at, mask=here, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(sums, 1))
        # all parts empty so far: subtracting -inf would make NaN
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(sums - safe[:, None])
        decay = tl.exp2(top - safe)
        total = total * decay + tl.sum(weights, 1)
        acc = acc * decay[:, None] + tl.sum(o.to(tl.float32) * weights[:, :, None], 1)
        top = new_top
    safe_total = tl.where(total > 0.0, total, 1.0)
    return acc / safe_total[:, None], tl.where(total > 0.0, top + tl.log2(safe_total), float("-inf"))


@triton.jit(do_not_specialize=["num_requests", "grid"])
def _merge_kernel(
    partial, partial_lse, plan, indptr, prefix_lens, out, lse, num_requests, grid, out_token, out_head,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    HEADER: tl.constexpr, HEADS: tl.constexpr, FEW: tl.constexpr, SOME: tl.constexpr, MANY: tl.constexpr,
    WITH_LSE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    # launched while the parts are still being made: what was there before that launch may be read already
    num_parts = tl.load(plan + 2)
    chunk = tl.load(plan + 1)
    requests = tl.arange(0, WIDTH)
    here = requests < num_requests
    firsts = tl.load(indptr + requests, mask=here, other=0)
    nexts = tl.load(indptr + 1 + requests, mask=here, other=0)
    prefixes = tl.load(prefix_lens + requests, mask=here, other=0)
    bases = tl.load(plan + HEADER + WIDTH + requests)
    dims = tl.arange(0, HEAD_DIM)
    blocks: tl.constexpr = (KV_HEADS * GROUP + HEADS - 1) // HEADS
    work = tl.where(num_parts > 0, tl.max(nexts, 0) * blocks, 0)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    for index in range(tl.program_id(0), work, grid):
        token = index // blocks
        request = tl.sum(((nexts <= token) & here).to(tl.int32), 0)
        first = _of(firsts, requests, request)
        tokens = _of(nexts, requests, request) - first
        num_chunks = tl.cdiv(_of(prefixes, requests, request) + tokens, chunk)
        if num_chunks > 1:
            heads = (index % blocks) * HEADS + tl.arange(0, HEADS)
            is_head = heads < KV_HEADS * GROUP
            packed = (token - first) * GROUP + heads % GROUP
            tiles = tl.cdiv(tokens * GROUP, ROWS)
            item = _of(bases, requests, request) + heads // GROUP * tiles + packed // ROWS
            part, stride = item.to(tl.int64) * ROWS + packed % ROWS, tiles.to(tl.int64) * (KV_HEADS * ROWS)
            if num_chunks <= FEW:
                o, log2_sum = _weighed(partial, partial_lse, part, stride, num_chunks, is_head, dims, HEADS, FEW)
            elif num_chunks <= SOME:
                o, log2_sum = _weighed(partial, partial_lse, part, stride, num_chunks, is_head, dims, HEADS, SOME)
            else:
                o, log2_sum = _weighed(partial, partial_lse, part, stride, num_chunks, is_head, dims, HEADS, MANY)
            out_at = token.to(tl.int64) * out_token + heads.to(tl.int64) * out_head
            tl.store(out + out_at[:, None] + dims, o, mask=is_head[:, None])
            if WITH_LSE:
                at = token.to(tl.int64) * (KV_HEADS * GROUP) + heads
                tl.store(lse + at, log2_sum * 0.6931471805599453, mask=is_head)


def merge_parts(plan: RowPlan, rows: Rows, out: Tensor, lse: Tensor | None) -> None:
    """Write ``out`` and ``lse`` of the requests whose keys were cut into several chunks."""
    rows_each = rows.visible.shape[0] * plan.num_heads / processors(out.device)
    heads = 1 if out.is_cuda and rows_each <= FEW_ROWS else 4
    few, some, many = AT_ONCE[heads]
    grid = min(processors(out.device) * PROGRAMS, plan.tokens * -(-plan.num_heads // heads))
    _merge_kernel[(grid,)](
        plan.partial_of(out.dtype), plan.partial_lse, plan.plan, rows.indptr, rows.prefix_lens, out, lse,
        rows.num_requests, grid, *out.stride()[:2],
        KV_HEADS=plan.kv_heads, GROUP=plan.group, HEAD_DIM=plan.head_dim, ROWS=plan.tile.rows, WIDTH=plan.width,
        HEADER=HEADER, HEADS=heads, FEW=few, SOME=some, MANY=many,
        WITH_LSE=lse is not None, num_warps=WARPS, **overlapping(out),
    )  # fmt: skip
