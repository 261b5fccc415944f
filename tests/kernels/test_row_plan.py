from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from row_cases import SMALL, poison

from recguide.kernels.layouts import Rows
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
