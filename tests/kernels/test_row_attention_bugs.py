"""Faults that public attention kernels had, each with its report and the test that would have shown it."""

import pytest
import torch
from row_cases import SMALL, Case, assert_right, one_hot_values, only, poison

from recguide.kernels.layouts import Rows, Tail, causal, draft, rows
from recguide.kernels.row_attention import row_attention
from recguide.kernels.row_plan import RowPlan, Tile

NOTHING = causal(0)
BLIND = Tail((0,), (0,), (0,), (0,))


def attend_into(case, out, plan):
    return row_attention(case.q, case.keys, case.values, case.rows, plan, out=out)


@pytest.mark.parametrize("chunk", [0, 32])
def test_a_token_that_sees_nothing_gives_zero_and_minus_infinity(chunk, device):
    """flashinfer 4051, 4452 and vLLM 39148 (NaN, or a finite sum); FA 978 (plus infinity).

    The tail is longer than a chunk, so that merging meets parts which are all empty.
    """
    case = Case([BLIND + causal(39), BLIND], [0, 0], device=device)
    out, lse = case.attend(chunk=chunk)
    assert_right(case, out, lse)
    assert (out[[0, -1]] == 0).all()
    assert (lse[[0, -1]] == -torch.inf).all()


def test_requests_without_tokens_and_padding_leave_what_was_there(device):
    """vLLM 57094 and 37442, sglang 1779, flashinfer 2883: 0/0 in the padding of a graph."""
    case = Case([causal(3), NOTHING, causal(2), NOTHING], [40, 0, 7, 100], device=device)
    expected = case.reference()[0]
    count = len(case.q)
    case.q = torch.cat([case.q, case.q.new_full((4, *case.q.shape[1:]), torch.nan)])
    case.rows = Rows(
        case.rows.indptr,
        case.rows.prefix_lens,
        case.rows.page_table,
        torch.nn.functional.pad(case.rows.visible, (0, 4)),
    )
    out = attend_into(case, torch.zeros_like(case.q), case.plan())
    torch.testing.assert_close(out[:count].double(), expected, atol=2e-6, rtol=1e-6)
    assert (out[count:] == 0).all()


def test_no_launch_at_all_when_nobody_brings_a_token(device):
    """flashinfer 4794: a plan without entries read what lay in its buffers."""
    case = Case([NOTHING, NOTHING], [40, 0], device=device)
    assert case.attend()[0].shape == (0, 4, 64)


def test_offsets_beyond_32_bits_reach_the_right_page(device):
    """vLLM 47671, flashinfer 3136, sglang 20389: page times stride wrapped around."""
    case = Case([causal(5)], [20], page=16, dtype=torch.float16, device=device)
    expected = case.reference()[0]
    # on memory that is never touched between the pages
    stride = 2**30 + 64
    for name in ("keys", "values"):
        dense = getattr(case, name)
        storage = torch.empty(stride * (case.num_pages - 1) + dense[0].numel(), dtype=case.dtype, device=device)
        sparse = storage.as_strided(dense.shape, (stride, *dense.stride()[1:]))
        sparse[case.rows.page_table[0, :2].long()] = dense[case.rows.page_table[0, :2].long()]
        setattr(case, name, sparse)
    assert int(case.rows.page_table.max()) * stride > 2**31
    torch.testing.assert_close(case.attend()[0].double(), expected, atol=2e-3, rtol=1e-3)


def test_nothing_is_written_behind_the_scratch(device):
    """vLLM 52879: scratch for one row a request, indexed by query token."""
    case = Case([causal(2)] * 33, [31] * 33, group=1, device=device)
    plan = RowPlan(33, 66, (1, 1), 64, device, SMALL, chunk=32, longest=64)
    used = plan.parts * plan.tile.rows
    plan.partial = torch.full((used + 64, 64), 12345.0, device=device)
    plan.partial_lse = torch.full((used + 64,), 12345.0, device=device)
    plan.update(case.rows)
    attend_into(case, torch.empty_like(case.q), plan)
    assert int(plan.plan[2]) <= plan.parts
    assert (plan.partial[used:] == 12345.0).all()
    assert (plan.partial_lse[used:] == 12345.0).all()


@pytest.mark.parametrize("chunk", [0, 32])
def test_a_strided_output_is_written_in_its_places_alone(chunk, device):
    """FlagGems 5235: the merge assumed a contiguous output."""
    case = Case([causal(3), draft(4)], [50, 3], device=device)
    memory = torch.full((len(case.q), 6, 100), 12345.0, device=device)
    attend_into(case, memory[:, 1:5, 10:74], case.plan(chunk=chunk))
    torch.testing.assert_close(memory[:, 1:5, 10:74].double(), case.reference()[0], atol=2e-6, rtol=1e-6)
    memory[:, 1:5, 10:74] = 12345.0
    assert (memory == 12345.0).all()


def test_every_number_of_keys_gives_the_same_split_or_whole(device):
    """torchtitan 3235: some lengths gave NaN with automatic splits."""
    # all of them where that is quick, else those around the borders of tiles and chunks
    lengths = [n for n in range(3 * 32 + 2) if device.type == "cuda" or n % 32 in (0, 30, 31)]
    case = Case([causal(1)] * len(lengths), lengths, group=1, page=48, device=device)
    split, whole = case.attend(chunk=32), case.attend(chunk=128)
    assert_right(case, *split)
    torch.testing.assert_close(split, whole, atol=2e-6, rtol=1e-6)


def test_one_plan_serves_lengths_and_layouts_that_change_in_place(device):
    """vLLM 20301, sglang 22800, 37975 and 29450, rtp-llm 1084, flashinfer 1028: what was fixed at capture stayed."""
    long = Case([rows(4, [1, 3, 4]), causal(2)], [300, 0], device=device)
    plan = RowPlan(2, 18, (4, 1), 64, device, SMALL)
    out = torch.empty_like(long.q)
    shared = Rows(
        *(
            torch.zeros_like(x)
            for x in (long.rows.indptr, long.rows.prefix_lens, long.rows.page_table, long.rows.visible)
        )
    )
    for tails, prefixes in (
        ([causal(1), causal(17)], [3, 1]),
        (long.tails, long.prefixes),
        ([draft(16), draft(2)], [0, 290]),
    ):
        case = Case(tails, prefixes, device=device, seed=len(prefixes))
        for name in ("indptr", "prefix_lens", "visible"):
            getattr(shared, name).copy_(getattr(case.rows, name))
        width = case.rows.page_table.shape[1]
        shared.page_table[:, :width].copy_(case.rows.page_table)
        plan.update(shared)
        row_attention(case.q, case.keys, case.values, shared, plan, out=out)
        torch.testing.assert_close(out.double(), case.reference()[0], atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("page", [1, 16, 48, 64, 192])
def test_pages_of_any_size_meet_tiles_and_chunks_of_any_size(page, device):
    """TileOPs 1787 (tokens of a page behind the tile were dropped), flashinfer 3022 (values of another page)."""
    border = sorted({max(0, n + d) for n in (32, 64, page) for d in (-1, 0, 1)})
    case = Case([causal(1)] * len(border), border, group=1, page=page, device=device)
    assert_right(case, *case.attend(chunk=64))


def test_where_pages_lie_makes_no_difference(device):
    """pytorch 182593, 160861: results depended on the physical place of pages."""
    case = Case([rows(4, [2, 4]), causal(3)], [70, 41], device=device)
    moved = Case(case.tails, case.prefixes, device=device, seed=5)
    moved.q = case.q
    for request, length in enumerate(case.lengths):
        for name in ("keys", "values"):
            getattr(moved, name)[moved.places(request, length)] = getattr(case, name)[case.places(request, length)]
    assert not torch.equal(case.rows.page_table, moved.rows.page_table)
    assert all(torch.equal(a, b) for a, b in zip(case.attend(), moved.attend(), strict=True))


@pytest.mark.parametrize("group", [1, 2, 5, 7, 8])
def test_groups_of_any_size_do_not_read_their_neighbours(group, device):
    """vLLM 47248: the padded heads of a group were those of the next."""
    case = Case([rows(4, [3]), causal(1)], [30, 3], kv_heads=2, group=group, device=device)
    assert_right(case, *case.attend(chunk=32))


def test_what_there_is_no_kernel_for_is_refused(device):
    """flashinfer 4299, Triton-distributed 200: a head dimension of 96 faulted, one of 72 gave wrong results."""
    good = Case([causal(2)], [3], device=device)
    plan = good.plan()
    for bad in (Case([causal(2)], [3], dim=80, device=device), Case([causal(2)], [3], kv_heads=2, device=device)):
        with pytest.raises(ValueError, match="allowed"):
            row_attention(bad.q, bad.keys, bad.values, bad.rows, plan)
    with pytest.raises(ValueError, match="must be as q"):
        row_attention(good.q, good.keys.half(), good.values, good.rows, plan)
    with pytest.raises(ValueError, match="last dimension must be contiguous"):
        row_attention(good.q, good.keys.transpose(1, 3).contiguous().transpose(1, 3), good.values, good.rows, plan)


def test_queries_keys_and_values_may_be_views_with_strides_of_their_own(device):
    """FlagAttention 45, FA 2886, SageAttention 386: strides swapped, or right in the first call only."""
    case = Case([rows(4, [1, 4]), causal(3)], [37, 64], kv_heads=2, device=device)
    expected = case.reference()[0]
    case.q = torch.cat([case.q, case.q.new_full((len(case.q), 4, 64), torch.nan)], 1)[:, :8]
    # heads before slots, and keys and values in one allocation
    case.keys = case.keys.transpose(1, 2).contiguous().transpose(1, 2)
    case.values = torch.stack([case.values, torch.full_like(case.values, torch.nan)], 2)[:, :, 0]
    for _ in range(2):
        torch.testing.assert_close(case.attend()[0].double(), expected, atol=2e-6, rtol=1e-6)


def test_one_request_of_many_is_found_by_its_number(device):
    """vLLM FA 176 and 1217: the merge took every part for request 0's."""
    case = Case([causal(1), rows(4, [2]), NOTHING, draft(2), causal(7)], [200, 100, 50, 161, 33], device=device)
    out, lse = case.attend(chunk=32)
    assert_right(case, out, lse)


def test_a_row_that_sees_all_is_not_taken_for_a_causal_one(device):
    """flashinfer 4199, vLLM 48167: "full" silently became causal, and random data did not tell."""
    out = one_hot_values(Case([draft(4)], [10], device=device)).attend()[0]
    assert (out[:, :, :14] > 0.05).all()


def test_bfloat16_products_are_those_of_its_values(device):
    """triton 4972: the interpreter multiplies the bits of bfloat16 as integers, which is garbage."""
    case = Case([causal(4)], [20], dtype=torch.bfloat16, device=device)
    assert_right(case, *case.attend())


def test_the_same_request_alone_has_the_same_bits_on_every_run(device):
    """tokenspeed 904, vLLM 54506, llama.cpp 25618: splits, and with them results, followed the batch."""
    case = Case([causal(4), causal(1)], [100, 300], device=device)
    first = case.attend(Tile(64, 64, 4, 3, 2), 64)[0]
    again = case.attend(Tile(64, 64, 4, 3, 2), 64)[0]
    alone = only(case, 0).attend(Tile(64, 64, 4, 3, 2), 64)[0]
    assert torch.equal(first, again)
    assert torch.equal(alone, first[:4])


def test_poison_reaches_every_buffer_of_a_plan(device):
    plan = RowPlan(1, 1, (1, 1), 64, device, SMALL)
    poison(plan)
    assert plan.partial.isnan().all()
    assert plan.partial_lse.isnan().all()
    assert (plan.plan == 0x7F7F7F7F).all()
