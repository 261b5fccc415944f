import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import constant_trace, random_trace

from recguide.sim.batching import BUCKETED, MAX_WAIT
from recguide.sim.catalogue import make_policy
from recguide.sim.costs import constant_costs, linear_costs
from recguide.sim.overlap import Overlap
from recguide.sim.policies import Outcomes, ar, fixed, oracle, recipe
from recguide.sim.rounds import rounds_of
from recguide.sim.tidar import Tidar

FREE = constant_costs()


def fresh(running: int) -> Outcomes:
    zero = np.zeros(running, np.int64)
    return Outcomes(np.arange(running), zero + 1, zero, zero)


@pytest.mark.parametrize(
    ("running", "block_size"), [(1, 32), (4, 32), (5, 16), (32, 16), (33, 8), (128, 8)], ids=lambda value: str(value)
)
def test_the_recipe_shrinks_blocks_as_more_requests_run(running: int, block_size: int) -> None:
    assert recipe(fresh(running)) == block_size


def test_fixed_and_ar_ignore_what_happens() -> None:
    assert fixed(16)(fresh(3)) == 16
    assert ar(fresh(3)) == 1


def test_oracle_takes_the_block_with_the_most_tokens_per_second() -> None:
    rounds = rounds_of(constant_trace(6, num_requests=2, output_tokens=100))
    assert oracle(rounds, linear_costs(1.0, 0.0, 0.0))(fresh(1)) == 8
    assert oracle(rounds, linear_costs(0.0, 1.0, 0.0))(fresh(2)) == 1
    assert oracle(rounds, linear_costs(1.0, 0.1, 0.0))(fresh(1)) == 8


def test_oracle_splits_a_batch_only_where_that_pays() -> None:
    long, short = constant_trace(32, num_requests=1), constant_trace(2, num_requests=1)
    rounds = rounds_of(replace(long, requests=long.requests + short.requests))
    assert oracle(rounds, linear_costs(1.0, 0.001, 0.0))(fresh(2)) == 32
    # 33 tokens in 84 s + 11 s against 34 tokens in 148 s
    split = oracle(rounds, linear_costs(10.0, 1.0, 0.0))(fresh(2))
    assert np.array_equal(split, [32, 1])


@pytest.mark.parametrize(
    "name", ["best", "fixed", "fixed:", "ar:1", "recipe:8", "oracle:", "overlap:", "overlap:B", "tidar:C=3", ""]
)
def test_an_unknown_policy_lists_the_known_ones(name: str) -> None:
    rounds = rounds_of(constant_trace(4))
    with pytest.raises(ValueError, match=f"policy '{name}': "):
        make_policy(name, rounds, FREE)
    with pytest.raises(ValueError, match=r"unknown; known: ar, fixed:B, recipe, "):
        make_policy("best", rounds, FREE)


@pytest.mark.parametrize("name", ["fixed:64", "recipe", "overlap", "tidar:B=32"])
def test_a_policy_that_asks_for_an_unrecorded_block_lists_the_recorded_ones(name: str) -> None:
    rounds = rounds_of(constant_trace(4, block_sizes=(4, 8)))
    with pytest.raises(ValueError, match=rf"policy '{name}': block size \d+ was not recorded; recorded: 4, 8"):
        make_policy(name, rounds, FREE)


@given(
    sizes=st.lists(st.sampled_from([1, 8, 16, 32]), min_size=1, max_size=20),
    waits=st.data(),
)
def test_a_bucket_is_the_fullest_one_and_whole(sizes: list[int], waits: st.DataObject) -> None:
    waited = np.array(waits.draw(st.lists(st.integers(0, MAX_WAIT - 1), min_size=len(sizes), max_size=len(sizes))))
    blocks = np.array(sizes)
    rows = BUCKETED.take(blocks, waited, 0)
    chosen = blocks[rows[0]]
    assert rows.tolist() == np.flatnonzero(blocks == chosen).tolist()
    counts = {size: sizes.count(size) for size in sizes}
    assert counts[chosen] == max(counts.values())
    rivals = [size for size in counts if counts[size] == counts[chosen]]
    assert waited[rows].max() == max(waited[blocks == size].max() for size in rivals)


@given(sizes=st.lists(st.sampled_from([1, 4, 8, 16, 32]), min_size=1, max_size=40))
def test_nobody_waits_for_ever(sizes: list[int]) -> None:
    blocks = np.array(sizes)
    waited = np.zeros(len(sizes), np.int64)
    for _ in range(100):
        rows = BUCKETED.take(blocks, waited, 0)
        waited += 1
        waited[rows] = 0
        assert waited.max() <= MAX_WAIT + len(set(sizes))


def test_every_named_policy_can_be_made() -> None:
    rounds = rounds_of(random_trace(0))
    for name in ("ar", "fixed:4", "fixed:32", "recipe", "oracle"):
        assert callable(make_policy(name, rounds, FREE))
    everything = "overlap:B=8,delta=0.25,corrections=3,continuation=always,eos=barred,recursive=no"
    assert make_policy(everything, rounds, FREE) == Overlap(8, 0.25, 3, "always", "barred", False)
    assert make_policy("overlap", rounds, FREE) == Overlap()
    assert make_policy("tidar:B=8", rounds, FREE) == Tidar(8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("overlap:corrections=4", "option corrections: found '4', allowed: a whole number from 0 to 3"),
        ("overlap:delta=0.3", "delta is 0.3; allowed: multiples of 1/256 between 0 and 1"),
        ("overlap:B=8,B=8", "option 'B=8': allowed, once each: B=..., delta=..., "),
        ("overlap:continuation=sometimes", "found 'sometimes', allowed: two-risky, always, never"),
    ],
    ids=lambda value: value.split(":")[1][:16],
)
def test_an_overlap_that_cannot_be_replayed_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make_policy(name, rounds_of(random_trace(0)), FREE)
