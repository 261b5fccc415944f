from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from row_cases import SMALL, Case, poison

from recguide.kernels.layouts import Rows, causal, draft, rows
from recguide.kernels.row_plan import HEADER, RowPlan, Tile, plan_reference

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
REQUESTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3000)), min_size=1, max_size=12)


def planned(plan, requests):
    """What the device finds for requests of so many tokens and cached tokens."""
    ends = [0]
    for tokens, _ in requests:
        ends.append(ends[-1] + tokens)
    ints = [
        torch.tensor(numbers, dtype=torch.int32, device=DEVICE)
        for numbers in (ends, [p for _, p in requests], [0] * ends[-1])
    ]
    poison(plan)
    plan.update(Rows(ints[0], ints[1], torch.zeros(len(requests), 1, dtype=torch.int32, device=DEVICE), ints[2]))
    return plan.plan.tolist()


@given(requests=REQUESTS, chunk=st.sampled_from([0, 64]))
@example(requests=[(1, 0)] * 12, chunk=0)
@example(requests=[(0, 50)], chunk=0)
@settings(max_examples=15)
def test_the_device_plans_what_the_reference_plans(requests, chunk):
    plan = RowPlan(12, 500, (8, 2), 64, DEVICE, SMALL, chunk=chunk, longest=3040)
    found = planned(plan, requests)
    expected = plan_reference([t for t, _ in requests], [p for _, p in requests], plan)
    count, second = len(requests), HEADER + plan.width
    assert (found[0], found[1]) == (expected.items, expected.chunk)
    assert tuple(found[HEADER : HEADER + count]) == expected.ends
    assert tuple(found[second : second + count]) == expected.bases


@pytest.mark.parametrize("chunk", [0, 64])
def test_every_item_has_a_record_that_says_all_about_it(chunk, device):
    case = Case([rows(4, [2, 4]), causal(0), draft(3), causal(1)], [200, 50, 0, 700], kv_heads=2, device=device)
    plan = case.plan(chunk=chunk)
    expected = plan_reference([12, 0, 3, 1], [200, 50, 0, 700], plan)
    records = plan.items[:, :10].tolist()
    found = {}
    for real, request, prefix, first, tokens, place, first_key, end_key, checked, part in records[: expected.items]:
        tail = case.tails[request]
        assert (real, prefix, first, tokens) == (1, case.prefixes[request], [0, 12, 12, 15][request], len(tail))
        tile = range(place // 2 * SMALL.rows // 4, min(len(tail), (place // 2 + 1) * SMALL.rows // 4))
        seen = tail.mask()[list(tile)]
        last = prefix + int(seen.any(0).nonzero().max()) + 1
        assert end_key == min(first_key + expected.chunk, last)
        assert checked == min(prefix + min(tail.trunks[i] for i in tile), end_key)
        found[request, place, first_key] = part
    whole = {n: -(-n // expected.chunk) for n in (212, 3, 701)}
    assert len(found) == expected.items == 2 * (3 * whole[212] + whole[3] + whole[701])
    parts = [part for part in found.values() if part >= 0]
    assert sorted(parts) == list(range(len(parts)))
    blank = records[expected.items : expected.items + 2 * plan.grid]
    assert all(record[0] == record[4] == record[7] == 0 and record[9] == -1 for record in blank)


@given(requests=REQUESTS)
@settings(max_examples=15)
def test_parts_always_find_room(requests):
    for chunk in (0, 64):
        plan = RowPlan(12, 500, (8, 2), 64, DEVICE, SMALL, chunk=chunk, longest=3040)
        assert planned(plan, requests)[2] <= plan.parts


def test_one_long_request_is_split_over_all_processors():
    plan = RowPlan(1, 64, (32, 8), 128, CPU, Tile(64, 64, 4, 3, 2))
    plan.grid, plan.parts = 264, 4 * 264
    found = plan_reference([16], [16384], plan)
    assert 200 <= found.items <= 264
    # one tile of all 64 rows: the prefix is read once, not once a head or once a token
    assert found.items == 8 * -(-16400 // found.chunk)


def test_a_full_batch_of_equal_requests_is_not_split():
    plan = RowPlan(32, 512, (32, 8), 128, CPU, Tile(64, 64, 4, 3, 2))
    plan.grid, plan.parts = 264, 4 * 264
    assert plan_reference([16] * 32, [4096] * 32, plan).items == 32 * 8


def test_a_fixed_chunk_gives_a_request_the_same_pieces_whatever_its_batch():
    plan = RowPlan(3, 100, (8, 2), 64, CPU, SMALL, chunk=96, longest=3000)
    alone, among = (plan_reference(*lists, plan) for lists in (([8], [500]), ([30, 8, 1], [7, 500, 2900])))
    assert alone.items == next(b - a for a, b in pairwise(among.ends))


def test_what_does_not_fit_is_refused():
    plan = RowPlan(1, 10, (8, 2), 64, CPU, SMALL)
    with pytest.raises(ValueError, match="2 requests with 3 tokens: the plan has room for 1 with 10"):
        planned(plan, [(1, 5), (2, 5)])
    with pytest.raises(ValueError, match="chunk 50: needs the longest request, and a multiple of 32"):
        RowPlan(1, 10, (8, 2), 64, CPU, SMALL, chunk=50, longest=100)
