import itertools
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import profiles
import pytest
from strategies import random_trace

from recguide.sim.adaptive import adaptive
from recguide.sim.costs import read_profile
from recguide.sim.paper.crowds import BUCKETS_FULL, RUNS
from recguide.sim.paper.entries import OURS_ALONE, Claim, Entry, Reason, Section, joined
from recguide.sim.paper.page import cells, document, page, table_of
from recguide.sim.paper.published import MODELS
from recguide.sim.paper.reasons import REASONS
from recguide.sim.paper.reproduce_run import chosen, said, study_of
from recguide.sim.paper.sections import CLAIMS, NAMES, Study, section, targets_of
from recguide.sim.paper.subjects import Subject, alone, recorded_subject, served
from recguide.sim.paper.targets import FULL, Target
from recguide.sim.policies import ar, fixed
from recguide.sim.results import as_json
from recguide.traces.files import write_trace


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    costs = read_profile(profiles.write(tmp_path_factory.mktemp("profile") / "tiny.csv")).costs()
    trace = random_trace(1, 60, min_output_tokens=60, max_output_tokens=120)
    return recorded_subject("tiny, recorded", trace, costs)


@pytest.fixture(scope="module")
def study(recorded: Subject, tmp_path_factory: pytest.TempPathFactory) -> Study:
    before = os.environ.get("RECGUIDE_CACHE")
    os.environ["RECGUIDE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    made = study_of("8b", 8, recorded)
    os.environ.pop("RECGUIDE_CACHE") if before is None else os.environ.update(RECGUIDE_CACHE=before)
    return made


def test_a_figure_misses_when_it_differs_by_more_than_was_promised() -> None:
    near, far = (Entry("x", Target(10.0, "predicted", 1.0), ours, None, None) for ours in (10.9, 11.1))
    assert (near.missed, far.missed) == (False, True)
    assert far.difference == pytest.approx(1.1)
    assert far.share == pytest.approx(0.11)
    assert not Entry("x", None, 3.0, None, None).missed
    assert not Entry("x", Target(10.0, "predicted", None), 99.0, None, None).missed
    told = Section("table2", "8b", "Table 2", "x", [near, far], reasons=[Reason("y", "not this"), Reason("x", "this")])
    assert cells(far)[1:8] == ["10.00", "11.10", "+1.10", "+11.0", "", "predicted", "miss"]
    assert page([told], {}).count("miss, why: 2</td>") == 1


def test_what_only_the_paper_has_is_told_too() -> None:
    found = joined(
        {"ours": 1.0},
        {"theirs": Target(2.0, "input", None)},
        [{"ours": 0.5}, {"ours": 2.0}],
        {"ours": 3.0, "only": 4.0},
    )
    assert [entry.name for entry in found] == ["ours", "theirs", "only"]
    assert found[0].band == (0.5, 2.0)
    assert found[0].recorded == 3.0
    assert found[1].ours is None


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_computed_and_every_miss_has_its_reason(name: str, study: Study) -> None:
    found = section(name, study)
    assert found.entries
    assert all(entry.ours is not None for entry in found.entries if entry.target)
    apart = [entry for entry in found.entries if "mt-bench" in entry.name]
    assert bool(apart) == (name == "table2")
    assert all(entry.ours is None and entry.recorded is not None for entry in apart)
    assert not found.unexplained
    assert bool(found.reasons) == bool(found.missed or found.failing)
    assert {entry.kind for entry in found.entries} <= {"input", "fitted", "predicted", "reading", OURS_ALONE}
    # whatever stands beside is in no tally
    beside = [entry.target for entry in found.entries if entry.target and entry.kind == "reading"]
    assert all(target.within is None for target in beside)
    assert any(entry.target for entry in found.entries)
    with_recorded = [entry for entry in found.entries if entry.recorded is not None]
    assert with_recorded
    assert table_of(found).row_count <= len(found.entries) + len(found.claims)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", NAMES)
def test_whatever_may_miss_has_a_reason_before_it_does(name: str, model: str) -> None:
    bound = [figure for figure, target in targets_of(name, model).items() if target.within and target.kind != "input"]
    claimed = [claim.text for claim in CLAIMS[name](defaultdict(lambda: 1.0))] if name in CLAIMS else []
    told = Section(name, model, name, "x", [], reasons=REASONS[name])
    assert bound or claimed or (name, model) in {("table1", "14b"), ("fig2", "14b"), ("fig3", "14b")}
    assert [each for each in [*bound, *claimed] if not told.why(each)] == []


def test_a_miss_without_a_reason_is_told_as_such() -> None:
    far = Entry("x", Target(10.0, "predicted", 1.0), 12.0, None, None)
    wrong = Claim("one is ahead", False, "predicted", "1, 2")
    made = Section("fig5", "8b", "Figure 5", "x", [far], [wrong], [Reason("ahead", "why")])
    assert made.unexplained == ["x"]
    assert "unexplained: fig5 8b: x" in said([made])
    assert "miss, unexplained" in page([made], {})


def test_c_counts_requests_in_flight_and_full_buckets_stand_beside(study: Study) -> None:
    trace, costs, policy = study.paper.of(["gsm8k"]), study.paper.costs, adaptive(study.paper.fitted)
    for name, in_flight in (("+ Bucketing", 8), (BUCKETS_FULL, 3 * 8)):
        said, batching = RUNS[name]
        assert said == "s, z"
        assert served(trace, costs, policy, 8, batching).run.steps["in_flight"].max() == in_flight
    for name, model in itertools.product(("table4", "table6", "fig5"), MODELS):
        beside = {figure: target for figure, target in targets_of(name, model).items() if FULL in figure}
        assert beside
        assert {(target.kind, target.within) for target in beside.values()} == {("reading", None)}


def test_the_page_is_the_same_every_time_and_holds_every_figure(study: Study) -> None:
    sections = [section(name, study) for name in ("table1", "table3")]
    again = [section(name, Study(study.paper, study.edges, study.recorded)) for name in ("table1", "table3")]
    text = page(sections, {"paper": "x"})
    assert text == page(again, {"paper": "x"})
    for entry in sections[0].entries:
        assert entry.name in text
    whole = json.loads(as_json(document(sections, {"paper": "x"})))
    assert [one["name"] for one in whole["sections"]] == ["table1", "table3"]


def test_claims_are_told_whether_they_hold() -> None:
    made = Section(
        "fig5", "8b", "Figure 5", "x", [], [Claim("one is ahead", False, "predicted", "1, 2")], [Reason("", "so")]
    )
    text = page([made], {})
    assert "<b>does not hold</b>, why: 1" in text
    assert '<p class="reason">1. so</p>' in text


def test_a_step_of_an_ablation_that_ties_is_not_faster() -> None:
    speeds = {"Fixed Block": 1000.0, "+ s_t": 1100.0, "+ z_t": 1100.2, "+ Bucketing": 1200.0}
    found = CLAIMS["table6"]({f"tokens/s, {name}": speed for name, speed in speeds.items()})
    assert [claim.holds for claim in found] == [True, False, True]


def test_bands_are_those_of_a_lean_host_too(study: Study) -> None:
    for name, entry in ((entry.name, entry) for entry in section("table2", study).entries if "speedup" in entry.name):
        if entry.band is not None and "mt-bench" not in name:
            low, high = entry.band
            assert low < (entry.ours or 0.0) < high, name


def test_served_requests_share_no_prompt_with_those_fitted_to(recorded: Subject) -> None:
    served, fitted = ({r.prompt_sha256 for r in trace.requests} for trace in (recorded.trace, recorded.calibration))
    assert served
    assert fitted
    assert not served & fitted
    assert recorded.benchmarks == ["gsm8k", "mbpp"]


def test_one_at_a_time_costs_what_its_rounds_cost(recorded: Subject) -> None:
    plain, drafted = (alone(recorded.trace, recorded.costs, policy) for policy in (ar, fixed(16)))
    assert plain.tokens.tolist() == [request.output_tokens - 1 for request in recorded.trace.requests]
    assert (plain.seconds > 0).all()
    assert drafted.tokens_per_s == pytest.approx(plain.tokens.sum() / drafted.seconds.sum())


def test_tables_are_asked_for_by_name() -> None:
    assert chosen([]) == chosen(["all"]) == [*NAMES, "heldout"]
    assert chosen(["table2", "fig5"]) == ["table2", "fig5"]
    with pytest.raises(ValueError, match="reproduce: found 'table7', allowed: table1"):
        chosen(["table7"])


def test_the_command_writes_a_page_and_refuses_unknown_tables(tmp_path: Path) -> None:
    write_trace(random_trace(2, 40, min_output_tokens=60, max_output_tokens=100), tmp_path / "trace.parquet")
    profiles.write(tmp_path / "profile.csv")
    command = [sys.executable, "-c", "from recguide.sim.cli import main; main()", "reproduce"]
    options = ["--trace", "trace.parquet", "--profile", "profile.csv", "--requests", "8"]
    env = os.environ | {"RECGUIDE_CACHE": str(tmp_path / "cache")}
    run = subprocess.run(
        [*command, "table1", *options, "--output", "out"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "out/reproduce.html" in run.stdout
    assert "figures miss their bounds" in run.stderr
    assert json.loads((tmp_path / "out" / "reproduce.json").read_text())["recguide_reproduce"] == 1
    bad = subprocess.run([*command, "table9"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert bad.stderr.startswith("error: reproduce: found 'table9'")
