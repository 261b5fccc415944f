import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import constant_trace, random_trace

from recguide.sim.batching import BATCHINGS
from recguide.sim.bound import bound_tokens_per_s, headroom, least_seconds, over
from recguide.sim.costs import linear_costs
from recguide.sim.curves import through
from recguide.sim.policies import Outcomes
from recguide.sim.replay import replay
from recguide.sim.rounds import Ints, rounds_of
from recguide.sim.sweep import sweep

COSTS = linear_costs(1e-3, 4e-5, 1e-7, host_s=1e-4)


@given(seed=st.integers(0, 999), per_query=st.sampled_from([0.0, 4e-5, 1e-3]))
def test_alone_the_bound_is_the_best_of_all_plans(seed: int, per_query: float) -> None:
    rounds = rounds_of(random_trace(seed, 1, (4, 8), min_output_tokens=2, max_output_tokens=8))
    costs = linear_costs(1e-3, per_query, 1e-5, host_s=1e-4)
    output, prompt = int(rounds.output_tokens[0]), int(rounds.prompt_tokens[0])

    def seconds(plan: tuple[int, ...]) -> float:
        position, total = 1, 0.0
        for size in plan:
            if position >= output:
                break
            total += costs.round_curve(size, 1)(prompt + position - 1)
            position += int(rounds.emitted[size][position])
        return total if position >= output else np.inf

    best = min(map(seconds, itertools.product((1, 4, 8), repeat=output - 1)))
    assert least_seconds(rounds, costs, 1)[0] == pytest.approx(best)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 99),
    concurrency=st.integers(1, 7),
    name=st.sampled_from([name for name in BATCHINGS if name != "ragged"]),
    per_query=st.sampled_from([0.0, 4e-5, 1e-3]),
    tight=st.booleans(),
)
def test_no_plan_is_faster_than_the_bound(
    seed: int, concurrency: int, name: str, per_query: float, tight: bool
) -> None:
    trace = random_trace(seed, 8, max_context=120 if tight else 8192)
    rounds = rounds_of(trace)
    costs = linear_costs(1e-3, per_query, 1e-6, host_s=1e-4)
    rng = np.random.default_rng(seed)
    sizes = np.array(sorted(rounds.emitted))
    order = [0, 3, 3, *range(8)]

    def anything(seen: Outcomes) -> Ints:
        return rng.choice(sizes, seen.running)

    run = replay(rounds, costs, anything, concurrency=concurrency, order=order, batching=BATCHINGS[name])
    rate = float(run.output_tokens.sum() / run.finished_s.max())
    assert rate <= bound_tokens_per_s(rounds, costs, concurrency, order) * (1 + 1e-9)


def test_the_bound_is_reached_where_everything_is_known_and_alike() -> None:
    trace = constant_trace(8, 8, output_tokens=81)
    rounds = rounds_of(trace)
    costs = linear_costs(1e-3, 1e-5, 0.0)
    run = replay(rounds, costs, lambda seen: 8, concurrency=4, order=range(8), max_batched_tokens=80)
    rate = float(run.output_tokens.sum() / run.finished_s.max())
    assert rate == pytest.approx(bound_tokens_per_s(rounds, costs, 4, range(8), 80), rel=1e-3)


def test_a_curve_over_many_contexts_is_the_curve_at_each() -> None:
    curve = through({0.0: 1.0, 10.0: 2.0, 30.0: 2.5}, floor_s=1.2)
    contexts = np.array([0, 3, 10, 11, 30, 99])
    assert over(curve, contexts).tolist() == [curve(context) for context in contexts.tolist()]


def test_headroom_runs_from_the_best_fixed_block_to_the_bound() -> None:
    fixed = [{"output_throughput": 100.0}, {"output_throughput": 120.0}]
    assert headroom({"output_throughput": 140.0}, fixed, 160.0) == 0.5
    assert headroom(fixed[1], fixed, 160.0) == 0.0
    assert headroom(fixed[1], fixed, 120.0) is None
    assert headroom(fixed[1], [], 160.0) is None


def test_every_point_has_its_bound() -> None:
    points = sweep(random_trace(1, 8), COSTS, ["fixed:8", "fixed:16", "oracle", "overlap"], [1, 4])
    for point in points:
        assert float(str(point["bound_output_throughput"])) > 0
    fixed = [point for point in points if str(point["policy"]).startswith("fixed")]
    assert all(max(float(str(p["headroom_share"])) for p in fixed if p["max_concurrency"] == c) == 0 for c in (1, 4))
    oracle = [float(str(point["headroom_share"])) for point in points if point["policy"] == "oracle"]
    assert all(0 < share <= 1 for share in oracle)
