"""Validation tells how fast the CPU was, and corrects nothing by it but where that is asked for."""

import gzip
import json

import profiles
import pytest
from campaigns import campaign
from strategies import random_trace

from recguide.sim.costs import constant_costs, read_profile, write_profile
from recguide.sim.profile_rows import KINDS
from recguide.traces.files import write_trace
from recguide.validation.processor import at_speed

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


def validated(recguide, inputs, name, *options):
    done = recguide(
        "validate", inputs / "campaign", "--trace", inputs / "trace.parquet", "--profile", inputs / "profile.csv",
        "--output-dir", inputs / name, *options,
    )  # fmt: skip
    path = inputs / name / "validation.json"
    return done, json.loads(path.read_text()) if path.exists() else None


def told_of_loop(path, loop_us) -> None:
    """The profile's header says how long the loop took."""
    profile = read_profile(path)
    header = {name: text for name, text in profile.header.items() if name != "recguide-profile"}
    write_profile(path, {**header, "python_loop_us": str(loop_us)}, profile.rows)


def test_the_cpus_of_runs_and_profile_are_compared_and_nothing_is_corrected(inputs, recguide) -> None:
    blind, without = validated(recguide, inputs, "without")
    assert "the profile has no python_loop_us, so nobody knows whether the CPU was as fast" in blind.stderr
    assert {cpu for point in without["points"] for cpu in point["cpu"]} == {None}
    told_of_loop(inputs / "profile.csv", 700)
    done, found = validated(recguide, inputs, "with")
    assert any(point["cpu"][point["budget_of"]] > 1 for point in found["points"])
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
        ours, theirs = point["budget"], blind_point["budget"]
        assert (ours["gap"], theirs["parts"]["CPU speed"]) == (theirs["gap"], 0)
        # what the host was given is told apart into what the CPU explains, and the rest
        assert (ours["parts"]["CPU speed"] > 0) == (point["cpu"][point["budget_of"]] > 1)
        assert sum(ours["parts"].values()) == pytest.approx(ours["gap"], abs=1e-12)
        for name in ("acceptance", "batch composition", "step cost"):
            assert ours["parts"][name] == theirs["parts"][name]


def test_the_hosts_time_goes_with_the_cpu_of_each_run_where_that_is_asked_for(inputs, recguide) -> None:
    told_of_loop(inputs / "profile.csv", 700)
    plain = validated(recguide, inputs, "plain")[1]
    found = validated(recguide, inputs, "known", "--costs", "cpu-speed")[1]
    assert "the host's time is the profile's times how much slower the CPU was in each run" in found["warnings"]
    costs = read_profile(inputs / "profile.csv").costs()
    for before, after in zip(plain["points"], found["points"], strict=True):
        assert after["measured"] == before["measured"]
        assert after["simulated"]["total_output_tokens"] == before["simulated"]["total_output_tokens"]
        assert after["simulated"]["throughput"] < before["simulated"]["throughput"]
        assert after["budget"]["parts"]["CPU speed"] == 0
    # of one request, and AR steps alone, the times can be told by hand: so much longer takes each step of the host
    alone = [each["points"][0] for each in (plain, found)]
    assert [(point["key"]["policy"], point["key"]["concurrency"]) for point in alone] == [("ar", 1)] * 2
    slower = sum(LOOPS[1]) / 3 / 700 - 1
    tpots = [point["simulated"]["mean_tpot_ms"] for point in alone]
    assert tpots[1] - tpots[0] == pytest.approx(1e3 * slower * costs.host_s(1, 1))


def test_costs_by_the_cpus_speed_need_to_know_it(inputs, recguide) -> None:
    done, found = validated(recguide, inputs, "out", "--costs", "cpu-speed")
    assert (done.code, found) == (2, None)
    assert f"{inputs / 'profile.csv'}: header: no python_loop_us" in done.stderr
    told_of_loop(inputs / "profile.csv", 700)
    path = sorted((inputs / "campaign").glob("ar-*.json.gz"))[0]
    run = json.loads(gzip.decompress(path.read_bytes()))
    del run["about"]["origin"]["python_loop_us"]
    path.write_bytes(gzip.compress(json.dumps(run).encode()))
    done, found = validated(recguide, inputs, "out", "--costs", "cpu-speed")
    assert (done.code, found) == (2, None)
    assert f"{path.name}: about.origin: no python_loop_us" in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_slower_cpu_takes_the_host_longer_and_no_forward(kind) -> None:
    costs = constant_costs(**dict.fromkeys(KINDS, 0.5))
    assert at_speed(costs, 3.0).forward_s(kind, 2, 8, 100) == (1.5 if kind.startswith("host") else 0.5)


def test_runs_and_profiles_that_say_nothing_are_passed_over(inputs, recguide) -> None:
    told_of_loops(inputs, "fast")
    found = validated(recguide, inputs, "out")[1]
    assert not any(warning.startswith("host: ") for warning in found["warnings"])


def told_of_loops(inputs, found) -> None:
    """Every run says this of its loop."""
    for path in (inputs / "campaign").glob("*.json.gz"):
        run = json.loads(gzip.decompress(path.read_bytes()))
        run["about"]["origin"]["python_loop_us"] = found
        path.write_bytes(gzip.compress(json.dumps(run).encode()))


BAD = ["", "nan", "inf", 0, -5, "1e300", 10**400, "1e-300", True, [700], None]


@pytest.mark.parametrize("found", BAD, ids=lambda found: repr(found)[:12])
def test_what_is_no_time_of_the_loop_is_refused_where_it_is_needed(inputs, recguide, found) -> None:
    allowed = "allowed: microseconds from 0.001 to 1e+12, for --costs cpu-speed needs it"
    told_of_loop(inputs / "profile.csv", found if isinstance(found, str) else "fast")
    done, document = validated(recguide, inputs, "out", "--costs", "cpu-speed")
    assert (done.code, document) == (2, None)
    assert f"{inputs / 'profile.csv'}: header: python_loop_us: found " in done.stderr
    assert allowed in done.stderr
    told_of_loop(inputs / "profile.csv", 700)
    told_of_loops(inputs, found)
    done, document = validated(recguide, inputs, "out", "--costs", "cpu-speed")
    assert (done.code, document) == (2, None)
    assert f".json.gz: about.origin: python_loop_us: found {repr(found)[:40]}, {allowed}" in done.stderr
    # what nobody asked for keeps nothing from being compared
    done, document = validated(recguide, inputs, "out")
    assert done.code in (0, 1)
    assert {cpu for point in document["points"] for cpu in point["cpu"]} == {None}
    assert {point["budget"]["parts"]["CPU speed"] for point in document["points"]} == {0}


def test_costs_of_served_steps_are_of_the_cpu_that_served_them(inputs, recguide) -> None:
    told_of_loop(inputs / "profile.csv", 350)
    plain = validated(recguide, inputs, "plain")[1]
    assert all(point["budget"]["parts"]["CPU speed"] > 0 for point in plain["points"])
    for costs, known in (("corrected", False), ("even-steps", True), ("cpu-speed", True)):
        found = validated(recguide, inputs, costs, "--costs", costs)[1]
        for point in found["points"]:
            parts = point["budget"]["parts"]
            assert (parts["CPU speed"] == 0) == known
            assert sum(parts.values()) == pytest.approx(point["budget"]["gap"], abs=1e-12)
            assert min(point["cpu"]) >= 2
