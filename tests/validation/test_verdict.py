"""Thresholds, groups of points, and what is held out."""

import json
from dataclasses import replace

import profiles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.sim.campaigns import PointKey
from recguide.sim.costs import read_profile
from recguide.validation.agreement import Agreement
from recguide.validation.budget import INGREDIENTS, Budget
from recguide.validation.frontiers import TOGETHER, crossings, frontiers, rankings
from recguide.validation.heldout import fitted_datasets, seen
from recguide.validation.points import PER_REQUEST, THROUGHPUT, Compared
from recguide.validation.rankings import Crossing
from recguide.validation.verdict import EVERY, TPOT, Outcome, Thresholds, checks, groups


def point(policy="ar", dataset="all", concurrency=1, ours=100.0, theirs=100.0, **changes) -> Compared:
    """A point with these throughputs of all requests; per request they are shared evenly."""
    measured, simulated = (
        {THROUGHPUT: speed, PER_REQUEST: speed / concurrency, TPOT: 1e3 * concurrency / speed}
        for speed in (theirs, ours)
    )
    error = {name: simulated[name] / measured[name] - 1 for name in measured}
    spread = dict.fromkeys(measured, 0.0)
    made = Compared(
        PointKey(policy, dataset, concurrency), 3, (theirs,) * 3, measured, spread, simulated, error, {},
        Agreement(10, 1.0, 1.0, 1.0, True), Budget(0.0, dict.fromkeys(INGREDIENTS, 0.0), True), 0,
    )  # fmt: skip
    return replace(made, **changes)


def outcome(*points, crossed=None, missing=None) -> Outcome:
    found = crossings(points) if crossed is None else crossed
    return Outcome(points, rankings(points), frontiers(points), found, missing or {})


def failed(found: Outcome, **wanted) -> list[str]:
    return [check.name for check in checks(found, Thresholds(**wanted)) if not check.passed]


@given(errors=st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=8))
def test_a_threshold_fails_exactly_when_it_is_exceeded(errors) -> None:
    points = [point("ar", "all", 2**i, 100 * (1 + error), 100) for i, error in enumerate(errors)]
    whole = groups(points)[EVERY]
    shares = [abs(each.error[THROUGHPUT]) for each in points]
    assert whole.mean_error == pytest.approx(sum(shares) / len(shares))
    assert whole.worst_error == max(shares)
    names = failed(outcome(*points), mean_error=0.02, worst_error=0.05, hypervolume_error=9, tpot_error=9)
    assert ("throughput, mean error" in names) == (whole.mean_error > 0.02)
    assert ("throughput, worst error" in names) == (whole.worst_error > 0.05)


def test_each_threshold_has_points_that_only_it_refuses() -> None:
    assert failed(outcome(point())) == []
    assert failed(outcome(point(), missing={PointKey("ar", "all", 2): 1})) == ["missing repeats"]
    slow = point()
    slow = replace(slow, error={**slow.error, TPOT: 0.2})
    assert failed(outcome(slow)) == ["p99 TPOT, worst error"]
    two = (point("ar", ours=101.0), point("fixed:8", ours=100.5, theirs=102.0))
    assert failed(outcome(*two), hypervolume_error=0.1) == ["policy ranking, smallest tau"]
    other = point(agreement=Agreement(10, 1.0, 0.5, 0.5, False))
    assert failed(outcome(other)) == []
    assert failed(outcome(other), agreement=0.9) == ["decisions foretold, smallest share"]


def test_a_crossover_that_only_one_of_both_has_is_a_failure() -> None:
    late, never = Crossing(16.0, 8.0), Crossing(None, 8.0)
    for crossing, octaves, wanted in ((late, 0.5, False), (late, 1.0, True), (never, 9.0, False), (never, None, True)):
        found = outcome(point(), crossed={("all", "fixed:8"): crossing})
        assert (failed(found, octaves=octaves) == []) == wanted


def test_a_figure_that_nobody_could_compare_is_a_failure() -> None:
    nothing = dict.fromkeys((THROUGHPUT, PER_REQUEST, TPOT))
    assert failed(outcome(point(error=nothing)), hypervolume_error=9) == [
        "throughput, mean error",
        "throughput, worst error",
        "throughput per request, mean error",
        "p99 TPOT, worst error",
    ]


def test_frontiers_and_crossovers_are_those_of_each_policy_and_dataset() -> None:
    points = [
        point(policy, dataset, c, speed)
        for dataset in ("a", "b")
        for policy, speeds in (("ar", (100, 200)), ("fixed:8", (150, 150)))
        for c, speed in zip((1, 4), speeds, strict=True)
    ]
    assert set(frontiers(points)) == {(d, p) for d in "ab" for p in (TOGETHER, "ar", "fixed:8")}
    assert frontiers(points)["a", TOGETHER][0] == pytest.approx(150 * 150 + 50 * 50)
    found = crossings(points)
    assert set(found) == {("a", "fixed:8"), ("b", "fixed:8")}
    assert 1 < found["a", "fixed:8"].simulated < 4


def test_what_a_policy_file_was_fitted_on_is_seen(tmp_path) -> None:
    path, broken = tmp_path / "policy.json", tmp_path / "broken.json"
    path.write_text(json.dumps({"provenance": {"trace": {"datasets": ["gsm8k", "mbpp"]}}}))
    broken.write_text("{")
    assert fitted_datasets(f"adaptive:{path}") == fitted_datasets(f"regime:file={path},B=8") == ["gsm8k", "mbpp"]
    assert fitted_datasets(f"adaptive:{broken}") == fitted_datasets("adaptive:none.json") == fitted_datasets("ar") == []
    profile = read_profile(profiles.write(tmp_path / "profile.csv"))
    known = seen(profile, [f"adaptive:{path}"], (("3",), ("math",), ("ar",)))
    assert known.concurrencies == {1, 3, 4, 128}
    assert known.held_out(PointKey("ar", "all", 4), {"gsm8k", "other"}) == ()
    assert known.held_out(PointKey("fixed:8", "all", 2), {"other"}) == ("concurrency", "dataset", "policy")
