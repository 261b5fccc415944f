"""The host's time of rounds that are planned by certainty, where a profile knows it apart."""

from collections.abc import Callable

import numpy as np
import profiles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.adaptive import adaptive
from recguide.sim.batching import BATCHINGS
from recguide.sim.costs import CostModel, Profile
from recguide.sim.fitting import fit_in_sample
from recguide.sim.joint_fit import fit_joint
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.methods import Policy, planned_by
from recguide.sim.online import bandit, goodput, window
from recguide.sim.overlap import Overlap
from recguide.sim.policies import Fixed, Informed, oracle, recipe
from recguide.sim.profile_rows import Row
from recguide.sim.regime import Regime
from recguide.sim.replay import replay
from recguide.sim.rounds import AR, rounds_of
from recguide.sim.sharing import Allocation
from recguide.sim.tidar import Tidar
from recguide.sim.waterfall import parts_of

TRACE = random_trace(4, 14, ease=0.8, min_output_tokens=40, max_output_tokens=90)
ROUNDS = rounds_of(TRACE, [("seeded", 8), ("continuation", 8)])
MORE_S = {"": 0.0, "adaptive": 1e-3, "allocation": 3e-3}


def host_us(requests: int, tokens: int) -> float:
    """Of plain rounds: no straight line."""
    return 50 + 7 * requests**0.5 + 11 * (tokens // requests % 5)


def rows_of(planners: tuple[str, ...]) -> list[Row]:
    """A profile's, those of planners at other shapes than those of plain rounds."""
    rows = [row for row in profiles.rows() if row.kind != "host"]
    rows += [Row("host", n, n * b, 0, host_us(n, n * b), 1.0, 5) for n in (1, 4, 128) for b in (1, 4, 8, 16, 32)]
    plain = Profile("plain", profiles.header(), rows).costs()
    for planner in planners:
        for n in (2, 4, 64):
            for tokens in (6 * n, 24 * n):
                us = 1e6 * (plain.host_s(n, tokens) + MORE_S[planner])
                rows.append(Row(f"host-{planner}", n, tokens, 0, us, 1.0, 5))
    return rows


def costs_with(*planners: str) -> CostModel:
    return Profile("made-up", profiles.header(), rows_of(planners)).costs()


OLD, NEW = costs_with(), costs_with("adaptive", "allocation")
FITTED = fit_in_sample(TRACE, OLD, concurrencies=(1, 4))
POLICIES: dict[str, tuple[Callable[[], Policy], str]] = {
    "ar": (lambda: Fixed(AR), ""),
    "fixed": (lambda: Fixed(8), ""),
    "recipe": (lambda: recipe, ""),
    "window": (lambda: window((8, 16, 32)), ""),
    "oracle": (lambda: oracle(ROUNDS, OLD), ""),
    "adaptive": (lambda: adaptive(FITTED), "adaptive"),
    "goodput": (lambda: goodput((8, 16, 32), OLD), "adaptive"),
    "own": (lambda: Informed(lambda seen: np.where(seen.request % 3, AR, 16)), "adaptive"),
    "own ar": (lambda: Informed(lambda seen: AR), "adaptive"),
    "allocation": (lambda: Allocation(FITTED, OLD), "allocation"),
}


def served(policy: Policy, costs: CostModel, concurrency: int, batching: str = "bucket", fast: bool = True) -> Replay:
    order, choice = range(len(TRACE.requests)), BATCHINGS[batching]
    return replay(ROUNDS, costs, policy, concurrency=concurrency, order=order, batching=choice, fast=fast)


@settings(max_examples=60)
@given(st.sampled_from(sorted(POLICIES)), st.integers(1, 14), st.sampled_from(sorted(BATCHINGS)), st.booleans())
def test_a_round_takes_as_much_longer_as_its_planner_does(name: str, count: int, batching: str, fast: bool) -> None:
    policy, planner = POLICIES[name]
    old, new = (served(policy(), costs, count, batching, fast) for costs in (OLD, NEW))
    rounds = old.steps["block_size"] != PREFILL_STEP
    more = new.steps["seconds"] - old.steps["seconds"]
    np.testing.assert_allclose(more, np.where(rounds, MORE_S[planner], 0.0), atol=1e-12)
    assert (new.steps["outside"] == old.steps["outside"]).all()


@pytest.mark.parametrize("above", ["adaptive", "allocation"])
@pytest.mark.parametrize("fast", [False, True])
def test_regime_goes_by_the_policy_above_its_switch_and_overlap_is_as_it_was(above: str, fast: bool) -> None:
    policy = Regime(Overlap(8), POLICIES[above][0](), 3)  # type: ignore[arg-type]
    assert planned_by(policy) == above
    old, new = (served(policy, costs, 8, fast=fast) for costs in (OLD, NEW))
    more = new.steps["seconds"] - old.steps["seconds"]
    apart = (old.steps["draft_tokens"] > 0) & (old.steps["query_tokens"] > 0)
    assert 0 < apart.sum() < len(apart)
    np.testing.assert_allclose(more, np.where(apart, MORE_S[above], 0.0), atol=1e-12)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_profile_without_such_rows_has_the_same_for_all(name: str) -> None:
    policy, planner = POLICIES[name]
    assert planned_by(policy()) == planner
    for other in {"adaptive", "allocation"} - {planner}:
        one, two = (served(policy(), costs, 5).steps for costs in (OLD, costs_with(other)))
        assert all(np.array_equal(one[field], two[field]) for field in one)


@given(st.sampled_from(["adaptive", "allocation"]), st.integers(1, 300), st.integers(1, 40))
def test_what_is_more_is_known_at_its_shapes_and_goes_on_as_it_is(planner: str, count: int, each: int) -> None:
    tokens = count * each
    curve = NEW.curve((NEW.host_of(planner),), count, tokens)
    assert curve(0) == pytest.approx(OLD.host_s(count, tokens) + MORE_S[planner])
    assert curve.covers(99) == OLD.curve(("host",), count, tokens).covers(99)


def test_what_is_more_lies_on_a_line_between_two_shapes() -> None:
    rows = [Row("host", 1, 4, 0, 100, 0, 1), *(Row("host-adaptive", n, 4 * n, 0, 100 + 10 * n, 0, 1) for n in (2, 6))]
    costs = Profile("made-up", profiles.header(), rows).costs()
    found = [1e6 * costs.host_s(n, 4 * n, "host-adaptive") for n in (1, 2, 3, 4, 6, 9)]
    assert found == pytest.approx([120, 120, 130, 140, 160, 160])


def test_rows_of_planners_alone_are_of_no_use() -> None:
    rows = [row for row in rows_of(("adaptive",)) if row.kind != "host"]
    costs = Profile("made-up", profiles.header(), rows).costs()
    assert costs.steps_of == set()
    with pytest.raises(ValueError, match="no rows of kind 'host'"):
        served(adaptive(FITTED), costs, 2)


@pytest.mark.parametrize("name", ["fixed", "adaptive", "allocation"])
def test_a_waterfall_has_the_hosts_time_of_the_planner(name: str) -> None:
    policy, planner = POLICIES[name]
    run = served(policy(), NEW, 4)
    for seconds, parts in zip(run.steps["seconds"].tolist(), parts_of(run, NEW, planner), strict=True):
        assert sum(parts.values()) == pytest.approx(seconds)
        if "prefill" not in parts:
            assert parts["host"] == pytest.approx(MORE_S[planner], abs=2e-4)
            assert parts.get("verify", 1) > 0


def test_methods_of_their_own_have_no_planner() -> None:
    joint = fit_joint(TRACE, OLD, FITTED)
    assert {planned_by(policy) for policy in (Overlap(8), Tidar(8), joint)} == {""}
    assert planned_by(bandit((8, 16))) == "adaptive"
