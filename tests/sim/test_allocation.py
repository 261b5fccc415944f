import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.allocation import best_choices, verify_lengths
from recguide.sim.batching import BATCHINGS
from recguide.sim.catalogue import make_policy, rounds_for
from recguide.sim.costs import ROUND, CostModel, linear_costs
from recguide.sim.metrics import metrics_of
from recguide.sim.replay import replay
from recguide.sim.rounds import AR, Ints
from recguide.sim.trimmed import Ragged

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
SIZES = np.array([1, 4, 8])


def rate(progress: Ints, choice: tuple[int, ...], costs: CostModel) -> float:
    sizes = SIZES[list(choice)]
    gained = int(progress[np.arange(len(progress)), list(choice)].sum())
    drafting = sizes[sizes > AR]
    if not len(drafting):
        return gained / costs.round_curve(AR, len(sizes))(0)
    draft = costs.curve(ROUND[:1], len(drafting), int(drafting.sum()))(0)
    return gained / (draft + costs.curve(ROUND[1:], len(sizes), int(sizes.sum()))(0))


@given(data=st.data(), per_query=st.sampled_from([0.0, 1e-5, 1e-4, 1e-3]))
def test_the_optimum_of_a_step_is_the_best_of_all_choices_up_to_one_block(
    data: st.DataObject, per_query: float
) -> None:
    lens = st.integers(1, 8)
    drawn = data.draw(st.lists(st.tuples(lens, lens), min_size=1, max_size=4))
    progress = np.array([[1, min(4, a), b] for a, b in drawn])
    costs = linear_costs(1e-3, per_query, 0.0)
    found = rate(progress, tuple(best_choices(progress, SIZES, costs, 0).tolist()), costs)
    choices = itertools.product(range(3), repeat=len(progress))
    best = max(rate(progress, choice, costs) for choice in choices)
    # greedy steps may miss by less than one request's block
    assert found >= best * len(progress) / (len(progress) + 1) * (1 - 1e-9)
    assert found >= rate(progress, (0,) * len(progress), costs) * (1 - 1e-9)


@given(
    p1=st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=4),
    per_query=st.floats(0, 1),
)
def test_verify_lengths_are_the_best_of_all(p1: list[list[float]], per_query: float) -> None:
    drafts = np.array(p1)
    seconds = lambda tokens: 1.0 + per_query * tokens  # noqa: E731
    survival = np.cumprod(drafts, axis=1)

    def expected(lengths: tuple[int, ...]) -> float:
        gained = sum(1 + survival[r, : length - 1].sum() for r, length in enumerate(lengths))
        return float(gained) / seconds(sum(lengths))

    by_admitted = np.array([seconds(len(p1) + admitted) for admitted in range(3 * len(p1) + 1)])
    found = tuple(verify_lengths(drafts, by_admitted).tolist())
    best = max(map(expected, itertools.product(range(1, 5), repeat=len(p1))))
    assert expected(found) >= best * (1 - 1e-9)


@settings(max_examples=25)
@given(seed=st.integers(0, 99), concurrency=st.integers(1, 6), per_query=st.sampled_from([0.0, 1e-5, 1e-3]))
def test_verifying_less_never_emits_more(seed: int, concurrency: int, per_query: float) -> None:
    trace = random_trace(seed, 6, max_context=150)
    rounds = rounds_for(trace, ["ragged:B=8"])
    costs = linear_costs(1e-3, per_query, 0.0)
    run = replay(rounds, costs, Ragged(8), concurrency=concurrency, order=range(6))
    emitted = np.bincount(run.emission_request, run.emission_tokens)
    assert emitted.tolist() == [trace.requests[row].output_tokens for row in run.request]
    figures = metrics_of(run, rounds)
    assert (figures["wasted_query_tokens"] or 0) >= 0
    decoding = run.steps["block_size"] > 1
    assert (run.steps["query_tokens"] <= 8 * run.steps["requests"])[decoding].all()
    if per_query == 0:
        whole = run.steps["draft_tokens"] == 8 * run.steps["requests"]
        assert (run.steps["query_tokens"] == 8 * run.steps["requests"])[decoding & whole].all()


def test_the_optimum_beats_every_fixed_block_without_padding() -> None:
    trace = random_trace(3, 24, min_output_tokens=100, max_output_tokens=150)
    rounds = rounds_for(trace, [])
    ends = {
        name: replay(
            rounds,
            COSTS,
            make_policy(name, rounds, COSTS),
            concurrency=6,
            order=range(24),
            batching=BATCHINGS["ragged"],
        ).finished_s.max()
        for name in ("optimum", "fixed:4", "fixed:8", "fixed:16", "ar")
    }
    assert ends["optimum"] < min(end for name, end in ends.items() if name != "optimum")
