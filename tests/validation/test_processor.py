"""Validation tells how fast the CPU was, and corrects nothing by it."""

import gzip
import json

import profiles
import pytest
from campaigns import campaign
from strategies import random_trace

from recguide.sim.costs import read_profile, write_profile
from recguide.traces.files import write_trace

TRACE = random_trace(3, 12, ease=0.8, min_output_tokens=12)
LOOPS = {1: (700, 720, 710), 4: (1400, 700, 2100)}


@pytest.fixture
def inputs(tmp_path):
    """A campaign whose runs say how fast the CPU was."""
    write_trace(TRACE, tmp_path / "trace.parquet", compression_level=1)
    profiles.write(tmp_path / "profile.csv")
    costs = read_profile(tmp_path / "profile.csv").costs()
    campaign(tmp_path / "campaign", TRACE, costs, ("ar", "fixed:8"), tuple(LOOPS))
    for path in (tmp_path / "campaign").glob("*.json.gz"):
        run = json.loads(gzip.decompress(path.read_bytes()))
        about = run["about"]
        about["origin"]["python_loop_us"] = str(LOOPS[about["concurrency"]][about["repeat"] - 1])
        path.write_bytes(gzip.compress(json.dumps(run).encode()))
    return tmp_path


def validated(recguide, inputs, name):
    done = recguide(
        "validate", inputs / "campaign", "--trace", inputs / "trace.parquet", "--profile", inputs / "profile.csv",
        "--output-dir", inputs / name,
    )  # fmt: skip
    return done, json.loads((inputs / name / "validation.json").read_text())


def test_the_cpus_of_runs_and_profile_are_compared_and_nothing_is_corrected(inputs, recguide) -> None:
    blind, without = validated(recguide, inputs, "without")
    assert "the profile has no python_loop_us, so nobody knows whether the CPU was as fast" in blind.stderr
    assert {cpu for point in without["points"] for cpu in point["cpu"]} == {None}
    profile = read_profile(inputs / "profile.csv")
    header = {name: text for name, text in profile.header.items() if name != "recguide-profile"}
    write_profile(inputs / "profile.csv", {**header, "python_loop_us": "700"}, profile.rows)
    done, found = validated(recguide, inputs, "with")
    for point in found["points"]:
        loops = LOOPS[point["key"]["concurrency"]]
        assert point["loop_us"] == list(loops)
        assert point["cpu"] == pytest.approx([loop / 700 for loop in loops])
        assert point["budget_of"] in range(3)
    assert [warning for warning in found["warnings"] if warning.startswith("host: ")] == [
        "host: at 2 points the CPU was 1.3 times slower than the profile's; most at ar at C=4, all, 2.00 times",
        "host: at 2 points one repeat's CPU was 1.3 times slower than another's; most at ar at C=4, all, 3.00 times",
    ]
    assert "1.00-3.00" in done.stdout
    for blind_point, point in zip(without["points"], found["points"], strict=True):
        assert blind_point["error"] == point["error"]
        assert blind_point["budget"] == point["budget"]


def test_runs_and_profiles_that_say_nothing_are_passed_over(inputs, recguide) -> None:
    for path in (inputs / "campaign").glob("*.json.gz"):
        run = json.loads(gzip.decompress(path.read_bytes()))
        run["about"]["origin"]["python_loop_us"] = "fast"
        path.write_bytes(gzip.compress(json.dumps(run).encode()))
    found = validated(recguide, inputs, "out")[1]
    assert not any(warning.startswith("host: ") for warning in found["warnings"])
