"""Pricing, retiming and the error budget: on random simulated runs, and on logs made by hand."""

from dataclasses import replace

import numpy as np
import pytest
from campaigns import as_measured
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import COSTS, setups
from strategies import random_trace

from recguide.sim.costs import constant_costs, linear_costs
from recguide.sim.log import Replay
from recguide.validation.budget import ACCEPTANCE, COMPOSITION, CPU, FORWARDS, HOST, budget
from recguide.validation.pricing import host_of, priced, retimed
from recguide.validation.replaying import Costs, recorded, simulated

TRACE = random_trace(3, 12, ease=0.8, min_output_tokens=20)


@settings(max_examples=60)
@given(setup=setups(("ar", "fixed:4", "fixed:32", "overlap:B=8", "tidar:B=8", "window", "scattered"), limited=False))
def test_pricing_the_steps_of_a_simulated_run_gives_its_own_times(setup) -> None:
    run = setup.run()
    forward_s, host_s = priced(run, COSTS, "quadratic" if setup.policy.startswith("tidar") else "rows")
    np.testing.assert_allclose(forward_s + host_s, run.steps["seconds"], rtol=1e-9)


@settings(max_examples=30)
@given(setup=setups(closed=True, limited=False), factor=st.floats(0.1, 10))
def test_steps_that_take_as_long_as_they_did_change_no_time_and_others_scale(setup, factor) -> None:
    run = setup.run()
    for stretch in (1.0, factor):
        again = retimed(run, run.steps["seconds"] * stretch)
        for name in ("sent_s", "started_s", "first_token_s", "finished_s"):
            np.testing.assert_allclose(getattr(again, name), getattr(run, name) * stretch, rtol=1e-9, atol=1e-12)


def by_hand(start_s, seconds) -> Replay:
    """One request at a time: a prefill, two AR steps, a prefill, one AR step."""
    count = len(start_s)
    size, tokens = np.array([0, 1, 1, 0, 1]), np.array([5, 1, 1, 4, 1])
    start, took = np.array(start_s), np.array(seconds)
    steps = {
        "start_s": start,
        "seconds": took,
        "in_flight": np.ones(count, np.int64),
        "block_size": size,
        "requests": np.ones(count, np.int64),
        "query_tokens": tokens,
        "context_tokens": np.array([0, 5, 6, 0, 4]),
        "draft_tokens": np.zeros(count, np.int64),
        "padding": np.zeros(count, np.int64),
        "outside": np.zeros(count, np.bool_),
    }
    ends = start + took
    sent = np.array([0.0, ends[2]])
    return Replay(
        1, True, np.array([0, 1]), np.array([5, 4]), np.array([3, 2]), np.zeros(2), sent, sent, ends[[0, 3]],
        ends[[2, 4]], steps, np.array([0, 0, 0, 1, 1]), np.ones(5, np.int64), np.arange(5), size,
        np.zeros(5, np.int64), None, 0, 0, 0, None,
    )  # fmt: skip


def test_the_hosts_share_is_what_no_forward_took_and_the_gap_behind_a_step() -> None:
    run = by_hand([0.0, 1.5, 2.5, 3.5, 5.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    assert host_of(run, [0.75, 0.5, 1.0, 1.0, 0.25]).tolist() == [0.75, 0.5, 0.0, 0.5, 0.75]


def test_retiming_a_log_by_hand_closes_its_gaps() -> None:
    run = by_hand([0.0, 1.5, 2.5, 3.5, 5.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    again = retimed(run, np.array([2.0, 1.0, 1.0, 4.0, 0.5]))
    assert again.steps["start_s"].tolist() == [0.0, 2.0, 3.0, 4.0, 8.0]
    assert again.finished_s.tolist() == [4.0, 8.5]
    assert again.sent_s.tolist() == [0.0, 4.0]
    assert again.first_token_s.tolist() == [2.0, 8.0]


def test_pricing_a_log_by_hand() -> None:
    costs = constant_costs(prefill=0.5, decode=0.25, host=0.125)
    forward_s, host_s = priced(by_hand([0, 1, 2, 3, 4], [1.0] * 5), costs)
    assert forward_s.tolist() == [0.5, 0.25, 0.25, 0.5, 0.25]
    assert host_s.tolist() == [0.0, 0.125, 0.125, 0.0, 0.125]


def budget_of(measured, costs, served=None, slower=1.0):
    known = recorded(TRACE)
    rows = known.rows_of(measured)
    run, _ = simulated(TRACE, rows, measured, Costs(costs, costs))
    return budget(run, measured, Costs(costs, costs), served, slower)


@settings(max_examples=20)
@given(
    policy=st.sampled_from(["ar", "fixed:8", "overlap:B=8", "tidar:B=8"]),
    concurrency=st.integers(1, 3),
    forward=st.floats(0.5, 2),
    host=st.floats(0, 5e-4),
)
def test_the_parts_add_up_and_name_the_ingredient_that_differs(policy, concurrency, forward, host) -> None:
    told = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
    true = linear_costs(forward * 1e-3, forward * 2e-5, forward * 1e-7, host_s=host)
    measured = as_measured(TRACE, policy, concurrency, true)
    # forwards as the true costs have them, so that what is left of a step is the host's
    layout = "quadratic" if policy.startswith("tidar") else "rows"
    measured = replace(measured, forward_s=priced(measured.run, true, layout)[0])
    found = budget_of(measured, told)
    assert sum(found.parts.values()) == pytest.approx(found.gap, abs=1e-9)
    assert found.parts[ACCEPTANCE] == pytest.approx(0, abs=1e-9)
    assert found.parts[COMPOSITION] == pytest.approx(0, abs=1e-9)
    assert (found.parts[FORWARDS] > 1e-9) == (forward > 1) or forward == 1
    assert (found.parts[HOST] > 1e-9) == (host > 1e-4) or abs(host - 1e-4) < 1e-9
    assert found.acceptance_known


@pytest.mark.parametrize("policy", ["ar", "fixed:8", "overlap:B=8"])
def test_what_a_slower_cpu_takes_longer_is_told_from_what_the_host_does_otherwise(policy) -> None:
    told, slower = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4), 2.5
    for host_s, rest in ((slower * 1e-4, 0), (2 * slower * 1e-4, 1), (slower / 2 * 1e-4, -1)):
        true = linear_costs(1e-3, 2e-5, 1e-7, host_s=host_s)
        measured = as_measured(TRACE, policy, 2, true)
        measured = replace(measured, forward_s=priced(measured.run, true)[0])
        found = budget_of(measured, told, slower=slower)
        assert found.parts[CPU] > 0.02
        assert np.sign(round(found.parts[HOST], 9)) == rest
        assert sum(found.parts.values()) == pytest.approx(found.gap, abs=1e-9)


def test_what_was_accepted_otherwise_is_the_acceptance() -> None:
    costs = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
    other = random_trace(3, 12, ease=0.55, min_output_tokens=20)
    lengths = [request.output_tokens for request in other.requests]
    assert lengths == [request.output_tokens for request in TRACE.requests]
    measured = as_measured(other, "fixed:8", 2, costs, acceptance="model")
    measured = replace(measured, forward_s=priced(measured.run, costs)[0])
    rows = {request.request_id: request for request in other.requests}
    served = replace(
        other,
        requests=tuple(
            replace(rows[name], request_id=f"served/{i}") for i, name in enumerate(measured.about.request_ids)
        ),
    )
    found = budget_of(measured, costs, served)
    assert found.gap > 0.1
    assert found.parts[ACCEPTANCE] == pytest.approx(found.gap, abs=1e-9)
    without = budget_of(measured, costs)
    assert not without.acceptance_known
    assert without.parts[COMPOSITION] == pytest.approx(without.gap, abs=1e-9)
