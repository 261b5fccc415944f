import numpy as np
import pytest
from strategies import random_trace

from recguide.sim.adaptive import Adaptive, adaptive
from recguide.sim.costs import linear_costs
from recguide.sim.fitting import fit_in_sample
from recguide.sim.paper.published import EXPLORED
from recguide.sim.paper.repricing import WALKS, Explored, explored, repriced, score, with_history
from recguide.sim.policies import recipe
from recguide.sim.pricing import candidates, decide
from recguide.sim.rounds import rounds_of
from recguide.traces.dense import DenseTrace

COSTS = linear_costs(1e-3, 2e-5, 1e-7)


@pytest.fixture(scope="module")
def trace() -> DenseTrace:
    return random_trace(5, 24, min_output_tokens=60, max_output_tokens=120)


@pytest.fixture(scope="module")
def fitted(trace: DenseTrace) -> Adaptive:
    return fit_in_sample(trace, COSTS)


def test_every_explored_round_is_counted_where_the_policy_sees_it(trace: DenseTrace, fitted: Adaptive) -> None:
    found, rounds, rng = explored(fitted, trace), rounds_of(trace), np.random.default_rng(0)
    walks = [with_history(rounds, fitted, rng) for _ in range(WALKS)]
    assert found.rounds.sum() == sum(len(steps.s) for steps in walks)
    assert all(set(steps.last.tolist()) <= set(EXPLORED) for steps in walks)
    for i, size in enumerate(fitted.candidates):
        assert found.tokens[:, :, i].sum() == sum(rounds.emitted[size][steps.at].sum() for steps in walks)
    # the tables' decisions are those of the policy
    load = fitted.loads[3]
    cost = np.array(list(load.cost_s.values()))
    chosen = np.array(fitted.candidates)[decide(found.value, cost, load.rho)]
    bins = len(fitted.edges) + 1
    place = adaptive(fitted).place[walks[0].last, walks[0].full.astype(np.int64)]
    cell = place * bins + np.searchsorted(np.array(fitted.edges), walks[0].s, side="right")
    mine = adaptive(fitted).choose_at(3, walks[0].s, walks[0].last, walks[0].full)
    assert np.array_equal(chosen[cell], mine)


def test_the_score_is_the_mean_of_datasets_of_their_requests_rates() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(1, 20, (5, 4, 3)).astype(np.float64)
    rounds = rng.integers(0, 5, (5, 4)).astype(np.float64)
    rounds[2] = 0.0
    value, cost = np.cumsum(rng.random((4, 3)), axis=1), np.array([1.0, 1.5, 2.5])
    found = Explored(rounds, tokens, value, np.array([0, 0, 1, 1, 1]))
    choice = decide(value, cost, 0.4)
    rates: dict[int, list[float]] = {0: [], 1: []}
    for request, dataset in enumerate([0, 0, 1, 1, 1]):
        seconds = sum(rounds[request, cell] * cost[choice[cell]] for cell in range(4))
        if seconds:
            rates[dataset].append(sum(tokens[request, cell, choice[cell]] for cell in range(4)) / seconds)
    wanted = np.mean([np.mean(each) for each in rates.values()])
    assert score(found, cost, 0.4) == pytest.approx(wanted)


def test_no_other_price_scores_more(trace: DenseTrace, fitted: Adaptive) -> None:
    found, again = explored(fitted, trace), repriced(fitted, trace)
    assert again.values == fitted.values
    for before, load in zip(fitted.loads, again.loads, strict=True):
        cost = np.array(list(load.cost_s.values()))
        best = max(score(found, cost, float(rho)) for rho in candidates(found.value, cost))
        assert score(found, cost, load.rho) == pytest.approx(best, rel=1e-7)
        assert score(found, cost, load.rho) >= score(found, cost, before.rho) * (1 - 1e-7)
        assert load.cold_start == recipe.at(load.concurrency)
    assert repriced(fitted, trace) == again
