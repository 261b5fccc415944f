import os
import random

import pytest
import torch
from row_cases import Case, poison

from recguide.kernels.layouts import Rows, batch, causal, copied_branch, draft, quadratic, rows
from recguide.kernels.row_attention import row_attention, row_attention_reference
from recguide.kernels.row_plan import RowPlan, Tile, tile_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

GPU = torch.device("cuda")
SHAPES = int(os.environ.get("ROW_SHAPES", "10000"))
BLOCKS = 24
# what is compiled: key heads, group, dimension, page size, dtype, tile
SETTINGS = (
    (8, 4, 128, 16, torch.bfloat16, Tile(16, 64, 4, 3, 2)),
    (8, 4, 128, 16, torch.bfloat16, Tile(32, 64, 4, 3, 2)),
    (8, 4, 128, 16, torch.bfloat16, Tile(64, 64, 4, 3, 2)),
    (8, 4, 128, 16, torch.bfloat16, Tile(128, 64, 8, 3, 1)),
    (8, 4, 128, 16, torch.bfloat16, Tile(64, 32, 4, 4, 2)),
    (3, 3, 64, 16, torch.bfloat16, Tile(64, 64, 4, 3, 2)),
    (3, 3, 64, 16, torch.bfloat16, Tile(16, 64, 4, 3, 2)),
    (3, 3, 64, 48, torch.float16, Tile(128, 64, 8, 3, 1)),
    (2, 8, 128, 64, torch.float16, Tile(64, 64, 4, 2, 2)),
    (2, 1, 64, 32, torch.float32, Tile(16, 32, 4, 2, 1)),
    (2, 7, 128, 16, torch.float32, Tile(32, 32, 4, 2, 1)),
    (4, 5, 128, 128, torch.bfloat16, Tile(64, 64, 4, 3, 2)),
)
# norm of the error over the norm of the output: of the order of the rounding to each type
LIMITS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


class Pool:
    """Keys and values of a setting, drawn once; pages of every shape are drawn from them."""

    def __init__(self, kv_heads, group, dim, page, dtype, tile):
        self.heads, self.dim, self.page, self.dtype, self.tile = (kv_heads * group, kv_heads), dim, page, dtype, tile
        shape = (12 * (2200 // page + 2), page, kv_heads, dim)
        self.keys, self.values = (torch.randn(shape, device=GPU).to(dtype) for _ in range(2))

    def plan(self, requests, tokens, chunk):
        most = 2100 + 3 * self.page
        made = RowPlan(requests, tokens, self.heads, self.dim, GPU, self.tile, chunk=chunk, longest=most)
        poison(made)
        return made


def drawn_tails(draw):
    """Tails of one to six requests of any kind, some empty."""
    kinds = (
        lambda: causal(draw.choice([0, 1, 1, 2, 3, 5, 8, 16, 31, 32, 33, 70])),
        lambda: draft(draw.randint(1, 40)),
        lambda: rows(16, sorted(draw.sample(range(1, 17), draw.randint(1, 3)))),
        lambda: rows(8, sorted(draw.sample(range(1, 9), 2)), copied_branch),
        lambda: quadratic(draw.randint(2, 7)),
    )
    return [draw.choice(kinds)() for _ in range(draw.choice([1, 1, 2, 3, 6]))]


def drawn_rows(draw, pool):
    tails = drawn_tails(draw)
    prefixes = [draw.choice([0, 1, 15, 16, 64, draw.randint(0, 300), draw.randint(0, 1700)]) for _ in tails]
    needed = [-(-(prefix + len(tail)) // pool.page) for prefix, tail in zip(prefixes, tails, strict=True)]
    pages = torch.tensor(draw.sample(range(pool.keys.shape[0]), sum(needed)), dtype=torch.int32)
    table = torch.zeros(len(tails), max(1, *needed) + 1, dtype=torch.int32)
    for row, part in zip(table, pages.split(needed), strict=True):
        row[: len(part)] = part
    return batch(tails, prefixes, table.to(GPU))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_shapes_are_as_the_reference(block):
    draw = random.Random(block)
    torch.manual_seed(block)
    setting = SETTINGS[block % len(SETTINGS)]
    pool = Pool(*setting)
    for index in range(block, SHAPES, BLOCKS):
        made = drawn_rows(draw, pool)
        tokens = made.visible.shape[0]
        plan = pool.plan(8, max(tokens, 1), draw.choice([0, 0, 64, 192, 512]))
        plan.update(made)
        q = torch.randn(tokens, pool.heads[0], pool.dim, device=GPU).to(pool.dtype)
        out = row_attention(q, pool.keys, pool.values, made, plan, out=torch.full_like(q, torch.nan))
        expected, _ = row_attention_reference(q, pool.keys, pool.values, made)
        error = (out.double() - expected).norm() / expected.norm().clamp(min=1e-9)
        assert error < LIMITS[pool.dtype], f"shape {index}: {setting}: {error}"
        torch.testing.assert_close(out.double(), expected, atol=5 * LIMITS[pool.dtype], rtol=LIMITS[pool.dtype])


@pytest.mark.parametrize("chunk", [0, 512])
def test_a_graph_replays_the_lengths_of_the_day(chunk):
    tails, tile = [rows(16, [3, 9, 16]), causal(16), causal(1)], tile_for(256, 128, torch.bfloat16)
    cases = [
        Case(tails, lengths, 8, 4, 128, dtype=torch.bfloat16, device=GPU) for lengths in ([64] * 3, [32000, 5, 9000])
    ]
    width = max(case.rows.page_table.shape[1] for case in cases)
    keys, values = (torch.cat([getattr(case, name) for case in cases]) for name in ("keys", "values"))
    lengths = torch.zeros_like(cases[0].rows.prefix_lens)
    table = torch.zeros(3, width, dtype=torch.int32, device=GPU)
    live = Rows(cases[0].rows.indptr, lengths, table, cases[0].rows.visible)
    q, out = torch.empty_like(cases[0].q), torch.empty_like(cases[0].q)
    plan = RowPlan(3, len(q), (32, 8), 128, GPU, tile, chunk=chunk, longest=16 * width)

    def step():
        plan.update(live)
        row_attention(q, keys, values, live, plan, out=out)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for case, first_page in ((cases[0], 0), (cases[1], cases[0].num_pages), (cases[0], 0)):
        q.copy_(case.q)
        lengths.copy_(case.rows.prefix_lens)
        table[:, : case.rows.page_table.shape[1]] = case.rows.page_table + first_page
        out.fill_(torch.nan)
        poison(plan)
        graph.replay()
        torch.testing.assert_close(out.double(), case.reference()[0], atol=2e-2, rtol=1e-2)


def test_long_prefixes_and_many_requests_are_as_the_reference():
    for tails, prefixes in (([rows(16, [1, 8, 16])], [32768]), ([causal(16)] * 64, list(range(0, 6400, 100)))):
        case = Case(tails, prefixes, 8, 4, 128, dtype=torch.bfloat16, device=GPU)
        for packed_rows in (16, 64, 256):
            error = (case.attend(tile_for(packed_rows, 128, torch.bfloat16))[0].double() - case.reference()[0]).abs()
            assert error.max() < 2e-2
            assert error.mean() < 1e-3


def test_the_order_of_requests_makes_no_difference_with_a_fixed_chunk():
    tails, prefixes = [causal(16), rows(16, [2, 5, 16]), causal(1), draft(16)], [900, 4000, 17, 2048]
    case = Case(tails, prefixes, 8, 4, 128, dtype=torch.bfloat16, device=GPU)
    turned = Case(tails[::-1], prefixes[::-1], 8, 4, 128, dtype=torch.bfloat16, device=GPU)
    ends = case.rows.indptr.tolist()
    order = [token for request in (3, 2, 1, 0) for token in range(*ends[request : request + 2])]
    turned.q, turned.keys, turned.values = case.q[order], case.keys, case.values
    turned.rows.page_table.copy_(case.rows.page_table.flip(0))
    tile = Tile(64, 64, 4, 3, 2)
    assert torch.equal(turned.attend(tile, 512)[0], case.attend(tile, 512)[0][order])
