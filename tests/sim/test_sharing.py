import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.adaptive import ALL, adaptive, write_policy
from recguide.sim.batching import BATCHINGS
from recguide.sim.catalogue import make_policy
from recguide.sim.costs import ROUND, constant_costs, linear_costs
from recguide.sim.expected import Expected
from recguide.sim.fitting import fit_in_sample
from recguide.sim.metrics import metrics_of
from recguide.sim.policies import Outcomes
from recguide.sim.replay import replay
from recguide.sim.rounds import AR, rounds_of
from recguide.sim.sharing import Allocation

COSTS = linear_costs(1e-3, 2e-5, 0.0, host_s=1e-4)
TRACE = random_trace(5, 30, min_output_tokens=100, max_output_tokens=200)
FITTED = fit_in_sample(TRACE, COSTS, concurrencies=(1, 8, 64))
UNKNOWN = float("nan")
stands = st.tuples(st.sampled_from([UNKNOWN, 0.0, 0.3, 0.8, 2.0]), st.sampled_from([8, 16, 32]), st.booleans())


def seen_of(drawn: list[tuple[float, int, bool]]) -> Outcomes:
    entropy = np.array([nats for nats, _, _ in drawn])
    sizes = np.where(np.isnan(entropy), 0, [size for _, size, _ in drawn])
    lens = np.where([full for _, _, full in drawn], sizes, np.minimum(sizes, 3))
    numbers = np.arange(len(drawn))
    return Outcomes(numbers, numbers, sizes, lens, 512 * len(drawn), entropy, np.full(len(drawn), UNKNOWN))


@given(st.lists(stands, min_size=1, max_size=5), st.sampled_from([0.0, 1e-6, 1e-5, 1e-4, 1e-3]))
def test_no_other_blocks_promise_more_tokens_per_second_of_the_step(
    drawn: list[tuple[float, int, bool]], per_query: float
) -> None:
    costs, seen = linear_costs(1e-3, per_query, 1e-7), seen_of(drawn)
    table, sizes = Expected(FITTED), list(FITTED.candidates)
    expected = table.values[table.places_of(seen)]

    def rate(choice: tuple[int, ...]) -> float:
        tokens = sum(sizes[index] for index in choice)
        seconds = costs.curve(ROUND, len(choice), tokens)(seen.context_tokens)
        return float(expected[np.arange(len(choice)), list(choice)].sum()) / seconds

    chosen = Allocation(FITTED, costs)(seen)
    alone = len(drawn) / costs.round_curve(AR, len(drawn))(seen.context_tokens)
    best = max(rate(choice) for choice in itertools.product(range(3), repeat=len(drawn)))
    found = alone if isinstance(chosen, int) else rate(tuple(sizes.index(size) for size in chosen.tolist()))
    assert found == pytest.approx(max(best, alone))
    assert isinstance(chosen, int) == (alone > best)


def test_free_steps_have_the_blocks_with_the_most_tokens_and_dear_ones_none() -> None:
    seen = seen_of([(0.0, 8, True), (0.3, 16, False)])
    table = Expected(FITTED)
    expected = table.values[table.places_of(seen)]
    chosen = Allocation(FITTED, constant_costs())(seen)
    assert isinstance(chosen, np.ndarray)
    found = expected[np.arange(2), np.searchsorted(FITTED.candidates, chosen)]
    assert found.tolist() == expected.max(axis=1).tolist()
    assert Allocation(FITTED, linear_costs(1e-9, 1.0, 0.0))(seen) == AR


def test_one_candidate_is_no_choice() -> None:
    tables = {name: {16: table[16]} for name, table in FITTED.values.items()}
    alone = replace(FITTED, candidates=(16,), values=tables)
    assert np.all(Allocation(alone, COSTS)(seen_of([(0.3, 16, False)] * 3)) == 16)


def test_a_request_without_history_has_the_mean_over_the_bins() -> None:
    table = Expected(FITTED)
    (found,) = table.values[table.places_of(seen_of([(UNKNOWN, 8, False)]))].tolist()
    assert found == pytest.approx([np.mean(FITTED.values[ALL][size]) for size in FITTED.candidates])
    nobody = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="nobody keeps them"):
        table.places_of(Outcomes(nobody, nobody, nobody, nobody))


@settings(max_examples=10)
@given(st.sampled_from([3, 8, 20]), st.sampled_from(["bucket", "pad", "bucket:oldest"]))
def test_everyone_runs_whatever_the_batching(concurrency: int, batching: str) -> None:
    rounds, order, policy = rounds_of(TRACE), list(range(30)), Allocation(FITTED, COSTS)
    runs = [
        replay(rounds, COSTS, policy, concurrency=concurrency, order=order, batching=BATCHINGS[name])
        for name in (batching, "ragged")
    ]
    assert runs[0].steps["seconds"].tolist() == runs[1].steps["seconds"].tolist()
    assert runs[0].steps["padding"].sum() == 0
    assert len({*runs[0].emission_block_size.tolist()} - {0}) > 1


def test_sharing_out_is_no_slower_than_buckets_where_few_cost_as_much_as_many() -> None:
    rounds, order, costs = rounds_of(TRACE), list(range(30)), linear_costs(1e-2, 2e-5, 0.0)
    fitted = fit_in_sample(TRACE, costs, concurrencies=(8,))

    def speed(policy: object) -> float:
        run = replay(rounds, costs, policy, concurrency=8, order=order)  # type: ignore[arg-type]
        return float(metrics_of(run, rounds)["output_throughput"] or 0)

    assert speed(Allocation(fitted, costs)) > speed(adaptive(fitted))


def test_it_is_made_from_a_policy_file(tmp_path: Path) -> None:
    write_policy(FITTED, tmp_path / "policy.json")
    made = make_policy(f"allocation:{tmp_path}/policy.json", rounds_of(TRACE), COSTS)
    assert isinstance(made, Allocation)
    assert made.fitted == FITTED
    with pytest.raises(ValueError, match=r"allocation.*allowed: allocation:FILE"):
        make_policy("allocation:", rounds_of(TRACE), COSTS)
    with pytest.raises(ValueError, match=r"needs a policy file, allocation:FILE\.json"):
        make_policy("allocation", rounds_of(TRACE), COSTS)
