import json
from pathlib import Path

import numpy as np
import profiles
import pyarrow.parquet as pq
import pytest
from running import Recguide
from strategies import random_trace

from recguide.sim.adaptive import write_policy
from recguide.sim.costs import read_profile
from recguide.sim.fitting import fit_in_sample
from recguide.sim.policies import Outcomes
from recguide.sim.recommendation import as_sglang, as_vllm, tiers_of
from recguide.sim.slo import Verdict, best_of, closest_of
from recguide.sim.sweep import frontier
from recguide.sim.tiers import Tier, read_tiers, tiered
from recguide.traces.files import read_traces, write_trace

TIERS = [Tier(1, 4, 32), Tier(5, 16, 8), Tier(17, 32, 1)]


def verdict(policy: str, concurrency: int, speed: float, attainment: float = 1.0) -> Verdict:
    point: dict[str, str | float | int | None] = {
        "policy": policy,
        "max_concurrency": concurrency,
        "steady_output_throughput": speed,
        "steady_output_throughput_per_request": speed / concurrency,
    }
    return Verdict(point, attainment, 1.0)


@pytest.fixture
def results(recguide: Recguide, tmp_path: Path) -> Path:
    write_trace(random_trace(0, 12), tmp_path / "trace.parquet")
    sources = ("--trace", tmp_path / "trace.parquet", "--profile", profiles.write(tmp_path / "profile.csv"))
    policies = ("--policy", "fixed:8", "--policy", "fixed:32", "--policy", "oracle")
    options = ("--max-concurrency", "1,2,4", "--jobs", 1, "--no-report", "--output-dir", tmp_path / "out")
    assert recguide("sweep", *sources, *policies, *options).code == 0
    return tmp_path / "out"


def test_the_best_point_is_the_fastest_that_keeps_the_levels_and_knows_no_future() -> None:
    found = [verdict("oracle", 8, 900), verdict("fixed:8", 8, 800, 0.8), verdict("fixed:8", 4, 500, 0.95)]
    best = best_of(found, 0.9)
    assert best is not None
    assert (best.policy, best.concurrency) == ("fixed:8", 4)
    assert best_of(found, 0.99) is None
    assert closest_of(found).concurrency == 4
    assert best_of([verdict("optimum", 1, 1)], 0.0) is None


def test_tiers_meet_at_the_geometric_mean_and_equal_ones_are_one() -> None:
    found = [verdict("fixed:32", c, speed) for c, speed in ((1, 9), (4, 9), (16, 5), (64, 1))]
    found += [verdict("fixed:8", c, speed) for c, speed in ((1, 5), (4, 8), (16, 9), (64, 2))]
    found += [verdict("ar", c, speed) for c, speed in ((1, 1), (4, 1), (16, 3), (64, 9))]
    # adaptive policies are no tiers, and what misses the levels is none as long as another keeps them
    found += [verdict("recipe", 1, 99), verdict("fixed:16", 1, 99, 0.5)]
    assert tiers_of(found, 0.9) == [Tier(1, 8, 32), Tier(9, 32, 8), Tier(33, 64, 1)]


def test_in_an_open_loop_the_fastest_requests_win() -> None:
    points = [verdict("ar", 1, 500).point | {"max_concurrency": None}, verdict("fixed:8", 1, 499).point]
    points[1] = points[1] | {"max_concurrency": None, "steady_output_throughput_per_request": 900.0}
    best = best_of([Verdict(point, 1.0, 1.0) for point in points], 0.9)
    assert best is not None
    assert best.policy == "fixed:8"


def test_without_a_concurrency_there_is_one_tier() -> None:
    point = {"policy": "fixed:8", "max_concurrency": None, "max_concurrent_requests": 7}
    spots = {"steady_output_throughput": None, "output_throughput": 1.0, "output_throughput_per_request": 1.0}
    assert tiers_of([Verdict({**point, **spots}, 1.0, 1.0)], 0.9) == [Tier(1, 7, 8)]
    with pytest.raises(ValueError, match="no point of ar or fixed:B"):
        tiers_of([verdict("recipe", 1, 1)], 0.9)


def test_vllm_and_sglang_get_draft_tokens_which_are_a_block_less_its_seed() -> None:
    assert as_vllm(TIERS) == {
        "num_speculative_tokens": 31,
        "num_speculative_tokens_per_batch_size": [[1, 4, 31], [5, 16, 7], [17, 32, 0]],
    }
    assert as_sglang(TIERS) == {
        "1": {"candidate_steps": [31]},
        "5": {"candidate_steps": [7]},
        "17": {"candidate_steps": [0]},
    }


def test_tiers_choose_by_the_running_requests_and_the_last_goes_on() -> None:
    choose = tiered(TIERS)
    zeros = [np.zeros(count, np.int64) for count in (1, 4, 5, 16, 17, 100)]
    assert [choose(Outcomes(each, each, each, each)) for each in zeros] == [32, 32, 8, 8, 1, 1]


def test_a_recommendation_counts_requests_and_writes_three_files(recguide: Recguide, results: Path) -> None:
    done = recguide("recommend", results, "--slo", "ttft:1000", "--slo", "tpot:0.3", "--attainment", 0.5)
    assert done.code == 0
    names = ["policy.json", "vllm.json", "sglang.json"]
    assert done.stdout.splitlines()[-3:] == [str(results / name) for name in names]
    held = json.loads((results / "policy.json").read_text())
    chosen = held["recommended"]
    file = f"{chosen['policy'].replace(':', '_')}-c{chosen['max_concurrency']}.parquet"
    served = pq.read_table(results / "requests" / file).to_pandas()
    assert chosen["attainment"] == (served["tpot_ms"].fillna(0) <= 0.3).mean() >= 0.5
    assert chosen["policy"] != "oracle"
    assert held["recguide_policy"] == 1
    assert held["slo_ms"] == {"ttft": 1000.0, "tpot": 0.3}
    assert held["provenance"]["trace"]["model"] == "tiny"
    sizes = {tier.block_size for tier in read_tiers(results / "policy.json")}
    assert sizes <= {1, 8, 32}


def test_the_policy_file_can_be_swept(recguide: Recguide, results: Path) -> None:
    assert recguide("recommend", results, "--slo", "e2el:1e6", "--output-dir", results.parent).code == 0
    policy = f"tiers:{results.parent / 'policy.json'}"
    sources = ("--trace", results.parent / "trace.parquet", "--profile", results.parent / "profile.csv")
    options = ("--policy", policy, "--max-concurrency", 2, "--jobs", 1, "--no-report", "--output-dir", results)
    assert recguide("sweep", *sources, *options).code == 0
    points = json.loads((results / "results.json").read_text())["points"]
    tier = next(tier for tier in read_tiers(results.parent / "policy.json") if tier.low <= 2 <= tier.high)
    assert points[1]["policy"] == policy
    assert points[1][f"block_share_{tier.block_size}"] > 0.5


def test_recommend_sweeps_by_itself_when_it_is_given_a_trace_and_a_profile(recguide: Recguide, results: Path) -> None:
    sources = ("--trace", results.parent / "trace.parquet", "--profile", results.parent / "profile.csv")
    done = recguide("recommend", results.parent / "new", "--slo", "e2el:1e6", *sources)
    assert done.code == 0
    assert (results.parent / "new" / "results.json").exists()
    assert "recguide" not in done.stdout
    assert "best: " in done.stdout


def test_the_sweep_has_the_policies_and_loads_that_are_asked_for(recguide: Recguide, results: Path) -> None:
    sources = ("--trace", results.parent / "trace.parquet", "--profile", results.parent / "profile.csv")
    wanted = ("--policy", "window", "--policy", "ar", "--request-rate", "3,30", "--num-prompts", 5)
    done = recguide("recommend", results.parent / "new", "--slo", "e2el:1e6", *sources, *wanted)
    assert done.code == 0
    assert "best: window at 30 requests/s" in done.stdout
    points = json.loads((results.parent / "new" / "results.json").read_text())["points"]
    assert [(point["policy"], point["request_rate"], point["num_prompts"]) for point in points] == [
        (policy, rate, 5) for policy in ("ar", "window") for rate in (3.0, 30.0)
    ]


def test_fitted_policies_are_considered_and_their_names_break_no_figure(
    recguide: Recguide, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, profile, fitted = results.parent / "trace.parquet", results.parent / "profile.csv", results.parent / "p.json"
    priced = read_profile(profile)
    write_policy(fit_in_sample(read_traces([str(trace)]), priced.costs(), concurrencies=(1, 4)), fitted)
    names = [f"allocation:{fitted}", f"regime:file={fitted},above=allocation,switch=2"]
    wanted = [word for name in names for word in ("--policy", name)]
    sources = ("--trace", trace, "--profile", profile, "--max-concurrency", "1,4")
    new = results.parent / "new"
    done = recguide("recommend", new, "--slo", "e2el:1e6", *sources, "--policy", "fixed:4", *wanted)
    assert done.code == 0
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["ar", "fixed:4", *names]
    assert all(float(row[2].replace(",", "")) > 0 for row in rows)
    swept = json.loads((new / "results.json").read_text())["points"]
    assert {name for point in swept if (name := str(point["policy"])) in names} == set(names)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    narrow = recguide("recommend", new, "--slo", "e2el:1e6").stdout
    assert all(f"{frontier(point)[1]:,.0f}" in narrow for point in swept if point["max_concurrency"] == 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slo", "ttft:5", "--policy", "ar"], "error: policy: found without trace and profile, whose sweep it is"),
        ([], "error: slo: found none, allowed: at least one of ttft:MS, tpot:MS and e2el:MS"),
        (["--slo", "itl:5"], "error: slo: found 'itl:5', allowed: ttft, tpot, e2el"),
        (["--slo", "ttft:5", "--trace", "x"], "error: trace, profile: found one of them, allowed: both, or none"),
    ],
)
def test_what_cannot_be_recommended_is_said_and_nothing_written(
    recguide: Recguide, results: Path, options: list[str], message: str
) -> None:
    done = recguide("recommend", results, *options)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr
    assert not (results / "policy.json").exists()


def test_levels_that_nobody_keeps_are_an_answer_and_nothing_is_written(recguide: Recguide, results: Path) -> None:
    done = recguide("recommend", results, "--slo", "tpot:0.0001")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith("no policy keeps TPOT <= 0.0001 ms for 90% of the requests; the closest: ")
    assert not (results / "policy.json").exists()


def test_a_file_in_the_place_of_the_output_is_refused(recguide: Recguide, results: Path) -> None:
    place = results / "results.json"
    before = place.read_bytes()
    done = recguide("recommend", results, "--slo", "tpot:1000", "--output-dir", place)
    assert (done.code, f"--output-dir: found the file {place}, allowed: a folder" in done.stderr) == (2, True)
    assert place.read_bytes() == before


def test_a_folder_that_is_no_whole_sweep_is_refused(recguide: Recguide, results: Path) -> None:
    assert "no such file; `recguide sweep" in recguide("recommend", results / "none", "--slo", "ttft:5").stderr
    kept = results / "requests" / "fixed_8-c2.parquet"
    kept.write_bytes((results / "requests" / "fixed_8-c1.parquet").read_bytes())
    assert f"error: {kept}: of another sweep" in recguide("recommend", results, "--slo", "ttft:5").stderr
    kept.unlink()
    assert f"error: {kept}: missing or cut off" in recguide("recommend", results, "--slo", "ttft:5").stderr
    (results / "results.json").write_text("{}")
    assert "recguide_sweep: found None, allowed: 1" in recguide("recommend", results, "--slo", "ttft:5").stderr


@pytest.mark.parametrize(
    ("tiers", "found"),
    [
        ([], "tiers: allowed"),
        ([{"low": 2, "high": 4, "block_size": 8}], "tiers: allowed"),
        ([{"low": 1, "high": 4, "block_size": 8}, {"low": 6, "high": 8, "block_size": 4}], "tiers: allowed"),
        ([{"low": 1, "high": 4}], "tiers: allowed"),
        ([{"low": 1, "high": 4, "block_size": 0}], "tiers: allowed"),
    ],
)
def test_a_bad_policy_file_is_refused_with_its_field(tmp_path: Path, tiers: list[object], found: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"recguide_policy": 1, "kind": "tiers", "tiers": tiers}))
    with pytest.raises(ValueError, match=f"policy.json: {found}"):
        read_tiers(path)
    path.write_text(json.dumps({"recguide_policy": 2, "kind": "tiers", "tiers": tiers}))
    with pytest.raises(ValueError, match="recguide_policy: found 2, allowed: 1"):
        read_tiers(path)
