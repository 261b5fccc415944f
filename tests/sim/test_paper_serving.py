from dataclasses import replace

import numpy as np
import pytest
from strategies import random_trace

from recguide.sim.adaptive import Adaptive, adaptive
from recguide.sim.costs import linear_costs
from recguide.sim.fitting import fit_in_sample
from recguide.sim.log import PREFILL_STEP
from recguide.sim.overlap import Overlap, overlap_tables
from recguide.sim.paper.serving import at_load, full_buckets, largest_of, repeating_rows, repeating_tables
from recguide.sim.paper.subjects import alone, served, shuffled
from recguide.sim.policies import Outcomes, fixed
from recguide.sim.rounds import rounds_of
from recguide.traces.dense import DenseTrace

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
SIZES = 3


@pytest.fixture(scope="module")
def trace() -> DenseTrace:
    return random_trace(7, 30, min_output_tokens=60, max_output_tokens=120)


@pytest.fixture(scope="module")
def fitted(trace: DenseTrace) -> Adaptive:
    found = fit_in_sample(trace, COSTS)
    # prices at which the three block sizes are all chosen
    loads = tuple(replace(load, rho=load.rho * 1.1) for load in found.loads)
    return replace(found, loads=loads)


def seen(count: int) -> Outcomes:
    rng = np.random.default_rng(count)
    sizes = rng.choice([8, 16, 32], count)
    entropy, before = rng.exponential(0.5, (2, count))
    return Outcomes(np.arange(count), sizes, sizes, np.minimum(sizes, 8), 0, entropy, before)


@pytest.mark.parametrize("most", [1, 4, 8])
def test_executed_batches_hold_so_many_requests_of_one_block_size(
    most: int, trace: DenseTrace, fitted: Adaptive
) -> None:
    rounds, order = rounds_of(trace), shuffled(30, 4 * SIZES * most)
    run = full_buckets(rounds, COSTS, adaptive(fitted), most, order, SIZES)
    drafted = run.steps["block_size"] != PREFILL_STEP
    requests = run.steps["requests"][drafted]
    assert (requests <= most).all()
    # with enough in flight some bucket is always full
    busy = run.steps["in_flight"][drafted] == SIZES * most
    assert busy.any()
    assert (requests[busy] == most).all()
    assert (run.steps["query_tokens"] == run.steps["requests"] * run.steps["block_size"])[drafted].all()
    assert run.output_tokens.tolist() == rounds.output_tokens[order].tolist()
    assert (np.bincount(run.emission_request, run.emission_tokens) == run.output_tokens).all()


def test_a_policy_is_held_at_a_load_whatever_the_number_in_flight(fitted: Adaptive) -> None:
    policy = adaptive(fitted)
    for load in (1, 8, 128):
        assert np.array_equal(at_load(policy, load)(seen(load)), policy(seen(load)))
        assert np.array_equal(at_load(policy, load)(seen(128))[:5], at_load(policy, load)(seen(128))[:5])
    with pytest.raises(ValueError, match="entropies"):
        at_load(policy, 8)(replace(seen(4), entropy=None))


def test_the_largest_block_of_a_batch_is_everyones(fitted: Adaptive) -> None:
    policy = adaptive(fitted)
    for count in (1, 3, 50):
        assert largest_of(policy)(seen(count)) == policy(seen(count)).max()


def test_rows_that_repeat_the_draft_have_its_tokens_once_more(trace: DenseTrace) -> None:
    rules = Overlap()
    rounds = rounds_of(trace, rules.keys)
    plain, repeating = overlap_tables(rounds, rules), repeating_tables(rounds, rules)
    more = repeating.query_tokens - plain.query_tokens
    branches = plain.query_tokens // 16 - 1
    assert (more >= 0).all()
    assert ((more > 0) == (branches > 0)).all()
    assert (more <= 16 * branches).all()
    assert np.array_equal(plain.emitted, repeating.emitted)
    only = Overlap(corrections=0, continuation="always")
    both = (make(rounds, only).query_tokens for make in (overlap_tables, repeating_tables))
    before, after = both
    assert set((after - before)[before == 32].tolist()) == {16}


def test_such_rows_take_longer_and_give_the_same(trace: DenseTrace) -> None:
    plain, repeating = (alone(trace, COSTS, Overlap(), repeats) for repeats in (False, True))
    assert plain.tokens.tolist() == repeating.tokens.tolist()
    assert (repeating.seconds >= plain.seconds).all()
    assert repeating.tokens_per_s < plain.tokens_per_s
    assert plain.metrics["tau"] == repeating.metrics["tau"]
    run = repeating_rows(rounds_of(trace, Overlap().keys), COSTS, Overlap())
    assert run.output_tokens.tolist() == [request.output_tokens for request in trace.requests]


def test_full_buckets_are_for_policies_that_tell_requests_apart(trace: DenseTrace, fitted: Adaptive) -> None:
    assert served(trace, COSTS, adaptive(fitted), 4, "full").tokens_per_s > 0
    with pytest.raises(TypeError, match="adaptive"):
        served(trace, COSTS, fixed(16), 4, "full")


def test_requests_are_served_as_often_as_asked_and_each_equally_often() -> None:
    assert sorted(shuffled(5, 3)) == list(range(5))
    order = shuffled(5, 12)
    assert len(order) == 15
    assert sorted(order[:5]) == sorted(order[5:10]) == sorted(order[10:]) == list(range(5))


def test_knowing_every_next_round_is_faster_than_foretelling_it(trace: DenseTrace, fitted: Adaptive) -> None:
    policy = adaptive(fitted)
    told = served(trace, COSTS, policy, 8, "full")
    rho = told.tokens_per_s / (1 - float(told.metrics["prefill_share"] or 0.0))
    assert served(trace, COSTS, policy, 8, "full", knowing=rho).tokens_per_s > told.tokens_per_s
    # where time costs nothing, every round emits the most that any block size would
    free = served(trace, COSTS, policy, 8, "full", knowing=0.0)
    fixed_at = [served(trace, COSTS, fixed(size), 8).metrics["accept_length"] or 0 for size in (8, 16, 32)]
    assert (free.metrics["accept_length"] or 0) >= max(fixed_at)
