"""`recguide validate` over campaigns whose truth is known: the simulator's own runs, with known faults."""

import json
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import profiles
import pytest
from campaigns import as_measured, campaign, stretched, write
from chromium import CHROMIUM, open_page
from strategies import random_trace

from recguide.sim.costs import read_profile
from recguide.sim.measurement import DECIDED_BY
from recguide.traces.files import write_trace
from recguide.validation.budget import INGREDIENTS

TRACE = random_trace(3, 20, ease=0.8, min_output_tokens=20)
POLICIES, LEVELS = ("ar", "fixed:8", "overlap:B=8"), (1, 4)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with trace, profile, and a campaign that is the simulator's own but for 1% between the repeats."""
    folder = tmp_path_factory.mktemp("inputs")
    write_trace(TRACE, folder / "trace.parquet", compression_level=1)
    profiles.write(folder / "profile.csv")
    campaign(folder / "campaign", TRACE, read_profile(folder / "profile.csv").costs(), POLICIES, LEVELS)
    return folder


def arguments(inputs, output, *more):
    return (
        "validate", inputs / "campaign", "--trace", inputs / "trace.parquet", "--profile", inputs / "profile.csv",
        "--output-dir", output, *more,
    )  # fmt: skip


def document(output):
    def refuse(text):
        raise AssertionError(f"{text} is not strict JSON")

    return json.loads((output / "validation.json").read_text(), parse_constant=refuse)


def copied(inputs, tmp_path):
    """The inputs, to be spoilt."""
    return shutil.copytree(inputs, tmp_path / "copy")


def test_the_simulators_own_runs_pass(inputs, tmp_path, recguide) -> None:
    done = recguide(*arguments(inputs, tmp_path))
    assert (done.code, done.stdout.count("fixed:8") > 1) == (0, True), done.stderr
    found = document(tmp_path)
    assert found["passed"]
    assert [check["passed"] for check in found["checks"]] == [True] * len(found["checks"])
    assert len(found["points"]) == len(POLICIES) * len(LEVELS)
    for point in found["points"]:
        # repeats are 0%, 1% and -1% slower, so that their mean is 0.0067% too fast
        assert point["error"]["throughput"] == pytest.approx(-6.7e-5, abs=1e-5)
        assert point["spread"]["throughput"] == pytest.approx(0.02, abs=1e-3)
        assert point["agreement"]["same_steps"]
        assert point["difference"]["forwards"] == 0
        assert point["held_out"] == ["dataset", "policy"]
    assert [each["tau"] for each in found["rankings"]] == [1, 1]
    assert found["missing"] == []


def test_a_single_run_says_nothing_of_how_far_repeats_are_apart(inputs, tmp_path, recguide) -> None:
    folder = copied(inputs, tmp_path)
    for path in (folder / "campaign").glob("*-r[23].json.gz"):
        path.unlink()
    done = recguide(*arguments(folder, tmp_path / "out", "--min-repeats", "1"))
    assert done.code == 0, done.stderr
    found = document(tmp_path / "out")
    assert {point["spread"]["throughput"] for point in found["points"]} == {None}
    assert found["summary"]["all points"]["spread"] is None


def test_slower_measurements_fail_by_as_much_and_the_budget_says_why(inputs, tmp_path, recguide) -> None:
    folder = copied(inputs, tmp_path)
    shutil.rmtree(folder / "campaign")
    costs = read_profile(folder / "profile.csv").costs()
    campaign(folder / "campaign", TRACE, costs, POLICIES, LEVELS, (1.1, 1.1, 1.1))
    done = recguide(*arguments(folder, tmp_path / "out"))
    assert done.code == 1
    found = document(tmp_path / "out")
    assert not found["passed"]
    failed = [check["name"] for check in found["checks"] if not check["passed"]]
    assert failed == [
        "throughput, mean error",
        "throughput, worst error",
        "throughput per request, mean error",
        "hypervolume, worst error",
    ]
    for point in found["points"]:
        assert point["error"]["throughput"] == pytest.approx(0.1, abs=1e-6)
        assert point["error"]["p99_tpot_ms"] == pytest.approx(1 / 1.1 - 1, abs=1e-6)
        assert sum(point["budget"]["parts"].values()) == pytest.approx(point["budget"]["gap"])
        assert point["budget"]["parts"]["step cost"] > 0.09
    loose = ("--max-mean-error", 0.11, "--max-worst-error", 0.11, "--max-per-request-error", 0.11)
    again = recguide(*arguments(folder, tmp_path / "out", *loose, "--max-hypervolume-error", 0.25))
    assert again.code == 0


def test_a_missing_repeat_or_point_fails(inputs, tmp_path, recguide) -> None:
    folder = copied(inputs, tmp_path)
    (folder / "campaign" / "fixed_8-all-c4-r2.json.gz").unlink()
    done = recguide(*arguments(folder, tmp_path / "out"))
    assert done.code == 1
    assert "missing: 1 repeats of fixed:8 at C=4, all" in done.stderr
    assert document(tmp_path / "out")["missing"][0]["repeats"] == 1
    assert recguide(*arguments(folder, tmp_path / "out", "--min-repeats", 2)).code == 0
    more = ("--policy", "ar", "--policy", "fixed:16", "--max-concurrency", "1,4")
    asked = recguide(*arguments(folder, tmp_path / "out", *more))
    assert (asked.code, "missing: 3 repeats of fixed:16 at C=1" in asked.stderr) == (1, True)


def test_a_wrong_ranking_fails(inputs, tmp_path, recguide) -> None:
    folder, policies = copied(inputs, tmp_path), ("fixed:4", "fixed:16")
    chosen = ("--policy", policies[0], "--policy", policies[1], "--max-concurrency", 4)
    shutil.rmtree(folder / "campaign")
    costs = read_profile(folder / "profile.csv").costs()
    campaign(folder / "campaign", TRACE, costs, policies, (4,))
    assert recguide(*arguments(folder, tmp_path / "out", *chosen)).code == 0
    slow = min(document(tmp_path / "out")["points"], key=lambda point: point["measured"]["throughput"])["key"]["policy"]
    # measured ten times as fast as it is simulated
    for repeat in (1, 2, 3):
        made = as_measured(TRACE, slow, 4, costs, repeat=repeat)
        write(folder / "campaign", TRACE, replace(made, run=stretched(made.run, 0.1), forward_s=made.forward_s * 0.1))
    assert recguide(*arguments(folder, tmp_path / "out", *chosen)).code == 1
    ranking = document(tmp_path / "out")["rankings"][0]
    assert (ranking["tau"], ranking["disordered"][0][0]) == (-1, slow)


def test_what_was_seen_is_not_held_out(inputs, tmp_path, recguide) -> None:
    # the profile was measured at 1, 4 and 128 requests
    seen = ("--seen-policy", "fixed:8", "--seen-dataset", "gsm8k")
    assert recguide(*arguments(inputs, tmp_path, *seen)).code == 0
    found = document(tmp_path)
    assert {tuple(point["held_out"]) for point in found["points"] if point["key"]["policy"] == "fixed:8"} == {()}
    assert {tuple(point["held_out"]) for point in found["points"] if point["key"]["policy"] == "ar"} == {("policy",)}
    assert found["summary"]["held out: policy"]["points"] == 4
    assert found["summary"]["nothing held out"]["points"] == 2


def test_measurements_of_another_trace_or_gpu_are_refused(inputs, tmp_path, recguide) -> None:
    folder = copied(inputs, tmp_path)
    write_trace(random_trace(4, 20, prompt_set_sha256="e" * 64), folder / "trace.parquet", compression_level=1)
    done = recguide(*arguments(folder, tmp_path / "out"))
    assert (done.code, "trace prompt_set_sha256: found" in done.stderr) == (2, True)
    manifest = json.loads((inputs / "campaign" / "campaign.json").read_text())
    other = copied(inputs, tmp_path / "b")
    (other / "campaign" / "campaign.json").write_text(json.dumps(manifest | {"setup": {"gpu": "Other GPU"}}))
    done = recguide(*arguments(other, tmp_path / "out"))
    assert (done.code, "gpu: measured on 'Other GPU'" in done.stderr) == (2, True)
    forced = recguide(*arguments(other, tmp_path / "out", "--force"))
    assert (forced.code, "FORCED" in forced.stderr) == (0, True)
    profiles.write(folder / "merged.csv", drafts="by weights with the adapter merged")
    done = recguide(*arguments(inputs, tmp_path / "out", "--profile", folder / "merged.csv"))
    told = "drafts: measured on 'by weights and adapter apart', the profile is of 'by weights with the adapter merged'"
    assert (done.code, told in done.stderr) == (2, True)


def test_a_policy_file_that_has_changed_is_refused(inputs, tmp_path, recguide) -> None:
    folder, mine = copied(inputs, tmp_path), tmp_path / "mine.py"
    mine.write_text("def always(seen):\n    return 8\n")
    path = folder / "campaign" / "campaign.json"
    files = {f"{mine}:always": "0" * 64, "ar": "unknown"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"policy_files": files}))
    done = recguide(*arguments(folder, tmp_path / "out"))
    assert (done.code, f"the file of {mine}:always: found" in done.stderr) == (2, True)
    forced = recguide(*arguments(folder, tmp_path / "out", "--force"))
    assert (forced.code, f"FORCED: {path}: the file of" in forced.stderr) == (0, True)
    assert recguide(*arguments(folder, tmp_path / "out", "--policy", "ar")).code == 0


# a name in brackets is no markup
@pytest.mark.parametrize(
    ("about", "name"),
    [
        ({"profile": "older", DECIDED_BY: "0" * 64}, "older"),
        ({"profile": "[/b]", DECIDED_BY: 5}, "[/b]"),
        ({DECIDED_BY: "0" * 64}, "unnamed"),
        ({"profile": "older", DECIDED_BY: None}, ""),
        ({"profile": "older"}, ""),
    ],
)
def test_who_decided_by_another_profile_is_told_where_steps_differ(inputs, tmp_path, recguide, about, name) -> None:
    folder, costs = copied(inputs, tmp_path), read_profile(inputs / "profile.csv").costs()
    for repeat in (1, 2, 3):
        run = as_measured(TRACE, "fixed:4", 1, costs, repeat=repeat)
        origin = {**run.about.origin, **about}
        write(folder / "campaign", TRACE, replace(run, about=replace(run.about, policy="fixed:8", origin=origin)))
    done = recguide(*arguments(folder, tmp_path / "out"))
    warnings = document(tmp_path / "out")["warnings"]
    assert any(warning.startswith("1 points were not foretold step by step: fixed:8 at C=1") for warning in warnings)
    told = f"policies that look at costs decided by another profile ({name}) than {folder / 'profile.csv'}: "
    assert any(warning.startswith(told) for warning in warnings) is bool(name)
    assert (f"warning: {told}" in done.stderr) is bool(name)


def test_costs_of_even_steps_need_no_profile_of_the_machine(inputs, tmp_path, recguide) -> None:
    folder = copied(inputs, tmp_path)
    profiles.QUERY_US, usual = 40.0, profiles.QUERY_US
    profiles.write(folder / "profile.csv")
    profiles.QUERY_US = usual
    policies = ("--policy", "ar", "--policy", "fixed:8", "--max-concurrency", "1,4")
    assert recguide(*arguments(folder, tmp_path / "out", *policies)).code == 1
    done = recguide(*arguments(folder, tmp_path / "out", *policies, "--costs", "even-steps"))
    assert (done.code, "every second served step" in done.stderr) == (0, True), done.stdout
    other = recguide(*arguments(folder, tmp_path / "out", *policies, "--costs", "corrected"))
    assert "corrected by what steps took at all other concurrencies" in other.stderr
    lone = recguide(*arguments(folder, tmp_path / "out", "--max-concurrency", "4", "--costs", "corrected"))
    assert (lone.code, "--costs corrected: concurrencies: found [4]" in lone.stderr) == (2, True)
    wrong = recguide(*arguments(folder, tmp_path / "out", "--costs", "some"))
    assert (wrong.code, "--costs: found 'some'" in wrong.stderr) == (2, True)


def test_an_empty_campaign_is_refused(inputs, tmp_path, recguide) -> None:
    folder = copied(inputs, tmp_path)
    for path in (folder / "campaign").glob("*.json.gz"):
        path.unlink()
    done = recguide(*arguments(folder, tmp_path / "out"))
    assert (done.code, "no measurement of the 6 points" in done.stderr) == (2, True)
    assert recguide("validate", tmp_path / "nowhere", "--trace", "x", "--profile", "y").code == 2


def test_a_file_in_the_place_of_the_folder_is_refused_before_anything_is_read(inputs, tmp_path, recguide) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        done = recguide(*arguments(inputs, tmp_path / place, "--trace", "nowhere"))
        assert done.code == 2
        found = f"--output-dir: found the file {tmp_path / 'file'}, allowed: a folder, or a new name"
        assert found in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_drift_of_the_anchors_is_told(inputs, tmp_path, recguide) -> None:
    folder = copied(inputs, tmp_path)
    costs = read_profile(folder / "profile.csv").costs()
    for session, factor in ((1, 1.0), (2, 1.05)):
        made = as_measured(TRACE, "ar", 4, costs, role="anchor", session=session)
        slower = replace(made, run=stretched(made.run, factor), forward_s=made.forward_s * factor)
        write(folder / "campaign", TRACE, slower)
    done = recguide(*arguments(folder, tmp_path / "out"))
    assert done.code == 0
    assert "drift: the anchor ar at C=4, all varies by 5.0% over 2 sessions" in done.stderr
    first, second = document(tmp_path / "out")["anchors"][0]["throughputs"]
    assert first / second == pytest.approx(1.05)


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.found += [value for name, value in attrs if name in ("src", "href")]


def test_the_page_needs_nothing_beside_itself(inputs, tmp_path, recguide) -> None:
    assert recguide(*arguments(inputs, tmp_path)).code == 0
    page, links = (tmp_path / "validation.html").read_text(), Links()
    links.feed(page)
    assert links.found == []
    for heading in ("Thresholds", "Frontier, all", "Error budget", "Ranking of the policies", "p99 TPOT"):
        assert f"<h2>{heading}" in page
    for ingredient in INGREDIENTS:
        assert f"<th>{ingredient}" in page
    said = page.partition("measured value: ")[2].partition(".")[0]
    assert len(said.split(", ")) == len(INGREDIENTS)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_page_draws_in_a_browser(inputs, tmp_path, recguide) -> None:
    assert recguide(*arguments(inputs, tmp_path)).code == 0
    text, messages = open_page(tmp_path / "validation.html", tmp_path / "profile")
    assert messages == []
    assert 'data-drawn="4"' in text
