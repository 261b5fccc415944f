from dataclasses import replace
from pathlib import Path

import profiles
import pytest
from running import Recguide
from strategies import constant_trace, random_trace

from recguide.sim.costs import Profile, constant_costs, read_profile, write_profile
from recguide.sim.guards import ceiling, check_points, check_sources, settle
from recguide.sim.sweep import Point, sweep
from recguide.traces.files import write_trace

GRID = (4, 8, 16, 32)
COSTS = constant_costs(prefill=0.0, decode=1.0, draft=1.0, verify=1.0)


def profile(tmp_path: Path, **changes: str) -> Profile:
    return read_profile(profiles.write(tmp_path / "profile.csv", **changes))


def points() -> list[Point]:
    return sweep(constant_trace(32, 4, output_tokens=65), COSTS, ["fixed:32"], [2])


@pytest.mark.parametrize(("field", "refused"), [("weights_sha256", True), ("adapter_sha256", True), ("dtype", False)])
def test_a_profile_of_other_weights_or_another_adapter_is_stale(tmp_path: Path, field: str, refused: bool) -> None:
    trace = random_trace(0, dtype="bfloat16", adapter_sha256="d" * 64)
    told = check_sources(trace, profile(tmp_path, **{field: "c" * 64}))
    assert [(finding.refuses, f": {field}: found cccccccccccccccc, but" in finding.text) for finding in told] == [
        (refused, True)
    ]
    assert check_sources(trace, profile(tmp_path, weights_sha256="a" * 64, dtype="bf16")) == []
    # where one of them does not say, nothing is known; with --cross-model everything differs
    assert check_sources(trace, profile(tmp_path, **{field: "none"})) == []
    assert check_sources(trace, profile(tmp_path, **{field: "c" * 64, "model": "other"})) == []


def test_a_flat_profile_is_refused(tmp_path: Path) -> None:
    held = profile(tmp_path)
    flat = replace(held, rows=[row._replace(median_us=100 + row.requests / 100) for row in held.rows])
    assert "flat profile" in check_sources(random_trace(0), flat)[0].text
    assert check_sources(random_trace(0), held) == []


def test_the_ceiling_is_what_full_acceptance_gives() -> None:
    assert ceiling(COSTS, GRID, 4) == 4 * 32 / 2
    assert ceiling(COSTS, GRID, 4, overlaps=True) == 4 * 32 / 1
    assert ceiling(COSTS, (), 4) == 4.0
    [_, full] = points()
    assert check_points([full], COSTS, GRID) == []
    tokens = int(full["total_output_tokens"] or 0) - 4
    assert tokens / float(full["duration"] or 1) == pytest.approx(ceiling(COSTS, GRID, 2))


def test_a_result_above_the_ceiling_is_refused() -> None:
    [_, full] = points()
    faster = full | {"duration": float(full["duration"] or 1) * 0.9}
    [finding] = check_points([faster], COSTS, GRID)
    assert finding.refuses
    assert finding.text.startswith("fixed:32 at 2: 36 tokens/s are impossible")


def test_points_that_are_mostly_extrapolated_are_told_and_refused_where_most_points_are() -> None:
    [ar, full] = points()
    assert [found.refuses for found in check_points([ar, full | {"extrapolated_share": 0.7}], COSTS, GRID)] == [False]
    assert check_points([ar, full | {"extrapolated_share": 0.5}], COSTS, GRID) == []
    [finding] = check_points([ar | {"extrapolated_share": 0.51}, full | {"extrapolated_share": 0.7}], COSTS, GRID)
    assert "2 of 2 points spend more than 50% of their time outside the profiled grid" in finding.text
    assert finding.refuses
    assert "(the most: fixed:32 at 2, 70%)" in finding.text


def test_force_turns_refusals_into_warnings() -> None:
    found = check_points([points()[1] | {"extrapolated_share": 0.7}], COSTS, GRID)
    with pytest.raises(ValueError, match="--force goes on all the same"):
        settle(found, force=False)
    assert settle(found, force=True)[0].startswith("FORCED: 1 of 1 points")
    assert settle([], force=False) == []


def test_a_flat_profile_stops_a_sweep_unless_forced(recguide: Recguide, tmp_path: Path) -> None:
    write_trace(random_trace(0, 8), tmp_path / "trace.parquet")
    rows = [row._replace(median_us=100.0) for row in profiles.rows()]
    write_profile(tmp_path / "flat.csv", profiles.header(), rows)
    sources = ("--trace", tmp_path / "trace.parquet", "--profile", tmp_path / "flat.csv", "--jobs", 1)
    options = ("--policy", "fixed:8", "--max-concurrency", 1, "--output-dir", tmp_path / "out", "--no-report")
    refused = recguide("sweep", *sources, *options)
    assert refused.code == 2
    assert "flat profile" in refused.stderr
    assert not (tmp_path / "out").exists()
    forced = recguide("sweep", *sources, *options, "--force")
    assert forced.code == 0
    assert "warning: FORCED: " in forced.stderr
    assert "FORCED: " in (tmp_path / "out" / "results.json").read_text()
