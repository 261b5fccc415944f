"""A slower CPU in simulations and in the error budget: exactly its share, and nothing else, whatever is asked for."""

import math
from dataclasses import replace

import numpy as np
import pytest
from campaigns import as_measured
from hypothesis import given
from hypothesis import strategies as st
from planned import TRACE, costs_with, fitted_names
from strategies import random_trace

from recguide.sim.costs import HOST, CostModel, linear_costs
from recguide.sim.log import Replay
from recguide.sim.measurement import Measurement
from recguide.sim.stopped import first_steps
from recguide.validation.budget import CPU, INGREDIENTS, budget, layout_of, planner_named
from recguide.validation.pricing import priced
from recguide.validation.processor import LEAST, LOOP, MOST, at_speed, loop_us
from recguide.validation.replaying import Costs, recorded, simulated

OTHER = random_trace(3, 16, ease=0.5, min_output_tokens=40, max_output_tokens=90)
US = dict(zip(sorted(HOST.values()), (170, 230, 90, 70), strict=True))
KINDS = ("ar", "fixed:8", "recipe", "overlap:B=8", "tidar:B=8", "goodput", "window", "adaptive", "allocation", "joint",
         "regime", "regime, allocation")  # fmt: skip
WITHOUT, WITH = costs_with({}), costs_with(US)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Policies of every kind by name, with a file where they need one."""
    made = fitted_names(tmp_path_factory.mktemp("policies"), WITHOUT)
    return {name: made.get(name, name) for name in KINDS}


def told(measured: Measurement, costs: CostModel, slower: float) -> Replay:
    """What the simulator says of the run on a CPU that is so many times slower."""
    rows = recorded(TRACE).rows_of(measured)
    return simulated(TRACE, rows, measured, Costs(at_speed(costs, slower), WITHOUT))[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("costs", [WITHOUT, WITH], ids=["one host", "hosts apart"])
@pytest.mark.parametrize("concurrency", [1, 5])
def test_a_cpu_twice_as_slow_means_twice_the_hosts_seconds_in_every_step(
    names: dict[str, str], kind: str, costs: CostModel, concurrency: int
) -> None:
    policy = names[kind]
    measured = as_measured(TRACE, policy, concurrency, WITHOUT)
    once, twice, thrice = (told(measured, costs, times) for times in (1.0, 2.0, 3.0))
    for name in {*once.steps} - {"start_s", "seconds"}:
        np.testing.assert_array_equal(once.steps[name], twice.steps[name])
    more_s = twice.steps["seconds"] - once.steps["seconds"]
    np.testing.assert_allclose(thrice.steps["seconds"] - once.steps["seconds"], 2 * more_s, rtol=1e-9, atol=1e-15)
    host_s = priced(once, costs, layout_of(policy), planner_named(policy))[1]
    np.testing.assert_allclose(more_s, host_s, rtol=1e-9, atol=1e-15)
    assert (host_s > 0).any()
    # and the clock has nothing but these seconds
    np.testing.assert_allclose(twice.finished_s.max() - once.finished_s.max(), host_s.sum(), rtol=1e-9)


def served(measured: Measurement) -> Measurement:
    """The same run by a model that accepts otherwise."""
    return replace(measured, about=replace(measured.about, acceptance="model"))


@given(
    policy=st.sampled_from(["ar", "fixed:8", "recipe", "overlap:B=8", "tidar:B=8", "goodput"]),
    concurrency=st.integers(1, 5),
    slower=st.floats(LEAST / MOST, MOST / LEAST),
    host_s=st.floats(0, 1),
    own=st.sampled_from(["forced", "unknown", "served"]),
    steps=st.none() | st.integers(1, 40),
)
def test_the_parts_add_up_at_any_speed_of_the_cpu(policy, concurrency, slower, host_s, own, steps) -> None:
    told_costs, true = (linear_costs(1e-3, 2e-5, 1e-7, host_s=each) for each in (1e-4, host_s))
    measured = as_measured(TRACE, policy, concurrency, true)
    forward_s = priced(measured.run, true, layout_of(policy))[0]
    measured = replace(measured, forward_s=forward_s)
    if steps is not None:
        measured = stopped(measured, steps)
    if own != "forced":
        measured = served(measured)
    costs = Costs(told_costs, told_costs)
    run = simulated(TRACE, recorded(TRACE).rows_of(measured), measured, costs)[0]
    found = budget(run, measured, costs, served_trace(measured) if own == "served" else None, slower)
    assert tuple(found.parts) == INGREDIENTS
    assert all(map(math.isfinite, (found.gap, *found.parts.values())))
    assert sum(found.parts.values()) == pytest.approx(found.gap, abs=1e-9)
    # a slower CPU explains slower runs, and a faster one faster ones
    assert found.parts[CPU] * (slower - 1) >= -1e-9 * max(1.0, slower)


def stopped(measured: Measurement, steps: int) -> Measurement:
    """The same run, stopped behind so many steps."""
    run = first_steps(measured.run, steps)
    ids = tuple(measured.about.request_ids[number] for number in run.request)
    size = len(run.steps["seconds"])
    about, run = replace(measured.about, request_ids=ids), replace(run, request=np.arange(len(ids)))
    parts = {name: getattr(measured, name)[:size] for name in ("draft_s", "forward_s")}
    return replace(measured, about=about, run=run, stopped=True, **parts)


def served_trace(measured: Measurement) -> object:
    """Of these requests in the order of sending, with drafts of another model."""
    known = {request.request_id: request for request in OTHER.requests}
    ids = measured.about.request_ids
    return replace(OTHER, requests=tuple(replace(known[name], request_id=f"s/{i}") for i, name in enumerate(ids)))


NO_TIMES = [None, "", "fast", "nan", "inf", "-inf", 0, -5, "1e300", 1e300, 10**400, "1e-300", 5e-324, True, [], [700]]


@pytest.mark.parametrize("found", NO_TIMES, ids=lambda found: repr(found)[:12])
def test_what_is_no_time_says_nothing(found) -> None:
    assert loop_us({LOOP: found}) is None


def test_times_are_read_as_text_and_as_numbers() -> None:
    assert {loop_us({LOOP: found}) for found in ("700", " 700.0", 700, 700.0)} == {700.0}
    assert loop_us({}) is None
