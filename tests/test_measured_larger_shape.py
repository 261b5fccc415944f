"""What docs/measured.md says of the campaign of NLD-14B's shape by our trace is what its runs hold."""

import csv
import gzip
import hashlib
import json
import re
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from h200 import CAMPAIGNS, FOLDER, ROOT, packed, reached_s

from recguide.engine.shapes import SHAPES

SECTION = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8").split("\n## The larger shape by our trace\n")[1]
SECTION = SECTION.split("\n## ")[0]
TEXT = " ".join(SECTION.split())
RUNS = CAMPAIGNS / "nld-14b-ours-runs.tar.xz"


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, int], list[dict[str, str]]]:
    """Both runs of a policy and concurrency, of all datasets, by the file of figures."""
    lines = (FOLDER / "engine-campaign-nld-14b-ours-h200.csv").read_text(encoding="utf-8").splitlines()
    told: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        name = row["policy"].removesuffix(":policy.json")
        told.setdefault((name if row["dataset"] == "all" else row["dataset"], int(row["requests"])), []).append(row)
    return told


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs, as they were measured."""
    folder = tmp_path_factory.mktemp("campaign")
    with tarfile.open(RUNS) as archive:
        archive.extractall(folder, filter="data")
    for path in (folder / "nld-14b-ours").iterdir():
        if re.search(r"-[rs]\d\.json$", path.name):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
            path.unlink()
    return folder / "nld-14b-ours"


@pytest.fixture(scope="module")
def runs() -> list[dict]:
    return list(packed(RUNS))


def both(found: dict[tuple[str, int], list[dict[str, str]]], key: tuple[str, int], figure: str) -> float:
    return mean(float(row[figure]) for row in found[key])


def table() -> list[list[str]]:
    lines = SECTION[SECTION.index("\n|") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip(" `") for cell in line.strip("|").split(" |")] for line in lines[2:]]


def test_figures_are_those_of_the_runs(found, runs) -> None:
    rows = {
        (row["policy"], row["requests"], row["dataset"], row["repeat"]): row for each in found.values() for row in each
    }
    assert len(rows) == len(runs) == 26
    for run in runs:
        about, steps = run["about"], run["log"]["steps"]
        row = rows[about["policy"], str(about["concurrency"]), about["dataset"], str(about["repeat"])]
        assert row["tokens_per_s"] == f"{run['steady_output_throughput']:.1f}"
        assert row["whole_tokens_per_s"] == f"{run['output_throughput']:.1f}"
        assert int(row["emitted"]) == run["total_output_tokens"]
        rounds = [i for i, size in enumerate(steps["block_size"]) if size]
        assert int(row["steps"]) == len(rounds)
        step, forward, draft = (1e3 * mean(steps[n][i] for i in rounds) for n in ("seconds", "forward_s", "draft_s"))
        times = {"step_ms": step, "forward_ms": forward, "draft_ms": draft, "idle_ms": step - forward}
        assert {name: row[name] for name in times} == {name: f"{value:.4f}" for name, value in times.items()}
        assert row["mean_in_round"] == f"{mean(steps['requests'][i] for i in rounds):.2f}"
        assert row["accept_length"] == (f"{run['accept_length']:.3f}" if run["accept_length"] else "")
        shares = [f"{100 * (run[f'block_share_{size}'] or 0):.0f}" for size in (1, 8, 16, 32)]
        assert row["block_shares"] == "/".join(shares)


def test_the_table_is_of_them(found) -> None:
    wanted = []
    for count, policy in [(int(cells[0]), cells[1]) for cells in table()]:
        key, two = (policy, count), found[policy, count]
        speeds = ", ".join(f"{float(row['tokens_per_s']):.0f}" for row in two)
        base = ("recipe", count)
        gain = 100 * (both(found, key, "tokens_per_s") / both(found, base, "tokens_per_s") - 1) if base in found else 0
        accepted = f"{both(found, key, 'accept_length'):.2f}" if two[0]["accept_length"] else ""
        ahead = f"{gain:+.0f} %" if base in found and policy != "recipe" else ""
        times = [f"{both(found, key, name):.2f}" for name in ("step_ms", "forward_ms", "idle_ms")]
        held = f"{both(found, key, 'mean_in_round'):.1f}"
        wanted.append([str(count), policy, speeds, ahead, held, accepted, *times])
    assert table() == wanted
    assert {(cells[1], int(cells[0])) for cells in table()} == {
        key for key in found if key[1] != 20 and "-" not in key[0]
    } - {("humaneval", 8)}
    page = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")
    told = [next(cells[3] for cells in table() if cells[:2] == [count, "adaptive"]) for count in ("8", "64")]
    assert f"by our trace [{told[0].removesuffix(' %')} and {told[1]}](#the-larger-shape-by-our-trace)" in page


def test_so_is_what_overlap_gains(found, runs) -> None:
    alone = {(run["about"]["policy"], run["about"]["repeat"]): run for run in runs if run["about"]["concurrency"] == 1}
    tokens = int(found["fixed:16", 1][0]["emitted"])
    gains = [
        100 * (reached_s(alone["fixed:16", repeat], tokens) / reached_s(alone["overlap", repeat], tokens) - 1)
        for repeat in (1, 2)
    ]
    told = "{:+.0f} and {:+.0f} %".format(*gains)
    assert f"over `fixed:16`: {told} on the same {tokens} tokens" in TEXT
    page = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")
    assert f"[{told}](#the-larger-shape-by-our-trace) with prefills" in page
    ahead = [
        100 * (float(one["tokens_per_s"]) / float(other["tokens_per_s"]) - 1)
        for one, other in zip(found["overlap", 1], found["fixed:16", 1], strict=True)
    ]
    assert "tokens a second are {:.0f} and {:.0f} % more".format(*ahead) in TEXT


def test_so_is_why_buckets_lose(found, runs) -> None:
    for count in (8, 64):
        own, recipe = ("adaptive", count), ("recipe", count)
        served = both(found, own, "mean_in_round")
        share = 100 * both(found, own, "step_ms") / both(found, recipe, "step_ms")
        more = 100 * (both(found, own, "accept_length") / both(found, recipe, "accept_length") - 1)
        of = "of 8 requests" if count == 8 else "of 64"
        assert f"served {served:.1f} {of} in {share:.0f} % of the time, and gave each" in TEXT
        assert f"{more:.0f} % more" in TEXT
    few, many = (found["adaptive", count][0]["block_shares"].split("/") for count in (8, 64))
    assert f"At C=8 {few[1]}, {few[2]} and {few[3]} % of the rounds had B=8, 16 and 32" in TEXT
    assert f"At C=64 {many[1]} % had the recipe's own 8" in TEXT
    assert f"{found['allocation', 64][0]['block_shares'].split('/')[0]} % of its rounds are one-token steps" in TEXT
    recipe = [run for run in runs if (run["about"]["policy"], run["about"]["concurrency"]) == ("recipe", 64)]
    shares = [100 * prefill_s(run) / run["duration"] for run in recipe]
    steps, seconds = found["recipe", 64][0]["steps"], mean(run["duration"] for run in recipe)
    assert f"{steps} rounds of the recipe in {seconds:.1f} s, of which prefills are {mean(shares):.0f} %" in TEXT


def prefill_s(run: dict) -> float:
    steps = run["log"]["steps"]
    return sum(seconds for seconds, size in zip(steps["seconds"], steps["block_size"], strict=True) if not size)


def test_the_profile_is_of_the_same_shape_by_its_earlier_name() -> None:
    """Its hash is of the config that the shape had before it knew what scales positions and queries."""
    header = (ROOT / "sim" / "profiles" / "nld-14b-h200.csv").read_text(encoding="utf-8")
    told = re.search(r"^# weights_sha256: (\w+)$", header, re.MULTILINE)
    early = replace(SHAPES["nld-14b"], max_context=16384, rope_scaling=None, query_scaling=None)
    # neither field was there
    name = re.sub(r", rope_scaling=None|, query_scaling=None", "", str(early))
    assert told
    assert told[1] == hashlib.sha256(f"random weights, seed 0: {name}".encode()).hexdigest()


def test_what_the_profile_foretells_by_force_is_told(campaign: Path, tmp_path: Path) -> None:
    of = ["--trace", "smollm2-135m", "--profile", "nld-14b-h200", "--cross-model", "--min-repeats", "2"]
    command = [sys.executable, "-c", "from recguide.sim.cli import main; main()", "validate", ".", *of]
    refused = subprocess.run(command, capture_output=True, text=True, cwd=campaign, timeout=300)
    assert refused.returncode == 2
    assert "weights_sha256" in refused.stderr
    subprocess.run([*command, "--force", "--output-dir", str(tmp_path)], capture_output=True, cwd=campaign, timeout=300)
    report = json.loads((tmp_path / "validation.json").read_text(encoding="utf-8"))
    errors = sorted(-100 * point["error"]["throughput"] for point in report["points"])
    told = f"is {errors[0]:.0f} to {errors[-1]:.0f} % below the measured one at all {len(errors)} points"
    assert f"simulated throughput {told}" in TEXT
    assert all(point["agreement"]["same_steps"] for point in report["points"])
    assert [ranking["tau"] for ranking in report["rankings"]] == [1, 1, 1]
    assert [ranking["ties"] for ranking in report["rankings"]] == [0, 0, 1]
