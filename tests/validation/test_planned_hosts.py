"""Measured steps of policies that choose by certainty have the host's time that the simulator gives them."""

from dataclasses import replace

import numpy as np
import pytest
from campaigns import as_measured
from planned import TRACE, costs_with, fitted_names

from recguide.sim.catalogue import POLICIES, make_policy, rounds_for
from recguide.sim.costs import CostModel, constant_costs
from recguide.sim.measurement import Measurement
from recguide.sim.methods import planned_by
from recguide.validation.budget import FORWARDS, HOST, budget, layout_of, planner_named
from recguide.validation.corrections import FORWARD, corrected, ratios_of, samples_of
from recguide.validation.pricing import priced, priced_apart
from recguide.validation.replaying import Costs, recorded, simulated
from recguide.validation.stepcosts import costs_of_steps

MORE_US = {"host-adaptive": 1000.0, "host-allocation": 3000.0}
"""Above the host's other time, which is 50 us."""


OLD = costs_with({})
NEW = costs_with({kind: 50 + more for kind, more in MORE_US.items()})


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every policy by its name, with a file where it needs one."""
    folder = tmp_path_factory.mktemp("policies")
    (folder / "own.py").write_text(
        "import numpy as np\n\ndef mine(seen):\n    return np.where(seen.request % 3, 1, 16)\n"
    )
    tiers = folder / "tiers.json"
    tiers.write_text('{"recguide_policy": 1, "kind": "tiers", "tiers": [{"low": 1, "high": 9, "block_size": 8}]}')
    given = {name: name for name in POLICIES} | {"fixed": "fixed:8", "tiers": f"tiers:{tiers}"}
    return given | fitted_names(folder, OLD) | {"own": f"{folder / 'own.py'}:mine"}


def test_a_policys_name_says_what_it_is_itself(names: dict[str, str]) -> None:
    rounds = rounds_for(TRACE, names.values())
    found = {key: planner_named(name) for key, name in names.items()}
    assert found == {key: planned_by(make_policy(name, rounds, OLD)) for key, name in names.items()}
    assert {*found.values()} == {"", "adaptive", "allocation"}


PLANNED = ["fixed", "window", "adaptive", "goodput", "allocation", "regime", "regime, allocation", "own"]


@pytest.mark.parametrize("key", PLANNED)
@pytest.mark.parametrize("costs", [OLD, NEW], ids=["without", "with"])
@pytest.mark.parametrize("batching", ["bucket", "ragged"])
def test_steps_are_priced_as_they_are_simulated(
    names: dict[str, str], key: str, costs: CostModel, batching: str
) -> None:
    policy = names[key]
    made = as_measured(TRACE, policy, 5, OLD, batching=batching)
    run, _ = simulated(TRACE, recorded(TRACE).rows_of(made), made, Costs(costs, OLD))
    draft_s, forward_s, host_s = priced_apart(run, costs, layout_of(policy), planner_named(policy))
    np.testing.assert_allclose(draft_s + forward_s + host_s, run.steps["seconds"], rtol=1e-9)
    # forwards are the same whoever plans
    plain = priced_apart(run, OLD, layout_of(policy))
    np.testing.assert_array_equal(draft_s, plain[0])
    np.testing.assert_array_equal(forward_s, plain[1])


def served(policy: str, concurrency: int, true: CostModel) -> Measurement:
    """A run as measured under these costs."""
    made = as_measured(TRACE, policy, concurrency, true)
    run, _ = simulated(TRACE, recorded(TRACE).rows_of(made), made, Costs(true, OLD))
    draft_s, forward_s, _ = priced_apart(run, true, layout_of(policy), planner_named(policy))
    return replace(made, run=replace(run, emission_outcome=made.run.emission_outcome), forward_s=draft_s + forward_s,
                   draft_s=draft_s)  # fmt: skip


@pytest.mark.parametrize("key", ["adaptive", "allocation"])
def test_a_host_that_is_known_apart_is_no_error_of_the_budget(names: dict[str, str], key: str) -> None:
    measured = served(names[key], 4, NEW)
    for costs, gap in ((NEW, 0.0), (OLD, None)):
        told, _ = simulated(TRACE, recorded(TRACE).rows_of(measured), measured, Costs(costs, OLD))
        found = budget(told, measured, Costs(costs, OLD), None)
        assert found.parts[FORWARDS] == pytest.approx(0, abs=1e-9)
        assert found.parts[HOST] == pytest.approx(found.gap, abs=1e-9)
        assert found.gap == pytest.approx(gap, abs=1e-9) if gap is not None else found.gap > 0.1


def test_even_steps_have_each_planners_host_apart(names: dict[str, str]) -> None:
    runs = [served(names[key], count, NEW) for key in ("fixed", "adaptive", "allocation") for count in (2, 4)]
    found = costs_of_steps(runs)
    assert found.steps_of == {"adaptive", "allocation"}
    hosts = [found.host_s(4, 32, found.host_of(planner)) for planner in ("", "adaptive", "allocation")]
    assert hosts == pytest.approx([50e-6, 1050e-6, 3050e-6], rel=1e-3)
    for run in runs:
        planner = planner_named(run.about.policy)
        told, true = (priced(run.run, costs, "rows", planner)[1].sum() for costs in (found, NEW))
        assert told == pytest.approx(true, rel=1e-3)


def test_corrected_costs_leave_each_planners_host_as_it_is(names: dict[str, str]) -> None:
    slow = [replace(run, forward_s=1.5 * run.forward_s, draft_s=1.5 * run.draft_s) for run in
            (served(names["adaptive"], count, NEW) for count in (2, 4, 5))]  # fmt: skip
    samples = [samples_of(run, NEW) for run in slow]
    assert all(len(table[FORWARD]) for table in samples)
    found = corrected(NEW, ratios_of(samples))
    assert found.steps_of == NEW.steps_of
    for planner in ("", "adaptive", "allocation"):
        kind = NEW.host_of(planner)
        assert found.host_of(planner) == kind
        assert found.host_s(4, 32, kind) == NEW.host_s(4, 32, kind)


def test_costs_that_know_no_planner_are_those_of_all() -> None:
    costs = constant_costs(host=2.0)
    assert {costs.host_of(planner) for planner in ("", "adaptive", "allocation")} == {"host"}
    assert costs.round_curve(8, 2, costs.host_of("adaptive"))(0) == 2.0
