"""`recguide bench sglang` from its options to what the simulator makes of its runs."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from running import Recguide
from sglang_env import PRESENT, TOY
from toy_adapter import write_adapter

from recguide.engine.bench_load import random_prompts
from recguide.engine.bench_outputs import read_outputs
from recguide.engine.loading import open_model
from recguide.sim.campaigns import read_campaign
from recguide.sim.catalogue import make_policy
from recguide.sim.costs import constant_costs
from recguide.sim.log import Replay
from recguide.sim.replay import replay
from recguide.sim.rounds import rounds_of
from recguide.traces.files import read_trace

if not PRESENT:
    pytest.skip("SGLang is not installed here: make test-sglang", allow_module_level=True)

POLICY = "overlap:B=8"
LOAD = ("--random-input-len", 20, "--output-len", 24, "--ignore-eos", "--max-concurrency", "1,3", "--requests-each", 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where results go."""
    return tmp_path_factory.mktemp("bench") / "campaign"


def test_runs_are_measured_kept_and_replayed(recguide: Recguide, folder: Path) -> None:
    policies = ("--policy", "sglang:ar", "--policy", POLICY, "--together")
    done = recguide(
        "bench", "sglang", TOY, "--result-dir", folder, *policies, *LOAD, "--dtype", "fp32", "--device", "cpu"
    )
    assert done.code == 0, done.stderr
    entries = {(each["policy"], each["max_concurrency"]): each for each in json.loads(done.stdout)}
    assert len(entries) == 4
    for (policy, concurrency), each in entries.items():
        assert each["failed"] == 0
        assert each["total_output_tokens"] == 24 * each["completed"] == 24 * max(8, 2 * concurrency)
        assert each["mean_ttft_ms"] > 0
        assert ("tpf" in each) == (policy == POLICY)
    assert entries[POLICY, 1]["same_outputs"] == entries[POLICY, 3]["same_outputs"] == 1
    assert entries[POLICY, 3]["accept_length"] > 1
    assert entries[POLICY, 3]["mean_host_ms"] > 0
    said = {}
    for path in folder.glob("*-c3-*.figures.json"):
        run = json.loads(path.read_text())
        said[run["policy"]] = dict(zip(run["rows"], run["output_ids"], strict=True))
    assert said[POLICY] == said["sglang:ar"]
    assert {len(output) for output in said[POLICY].values()} == {24}
    _check_campaign(folder, entries)
    _check_rounds(folder)


def _check_rounds(folder: Path) -> None:
    """Behind the same tokens our engine drafts and verifies what the plugin did."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import served_rounds

    model = open_model(str(TOY), None, "cpu", "fp32")
    prompts = random_prompts(model.config, 20)
    for path in folder.glob("overlap*.figures.json"):
        found = served_rounds.figures_of(model, served_rounds.requests_of(read_outputs(path), prompts), None)
        assert found["rounds"] > found["left_out"] >= 0
        assert found["equal"] == found["equal_drafts"] == found["same_tokens"] == found["ratio"] == 1
        assert found["accept_length_served"] > 1


def test_with_updates_of_every_token_all_engines_serve_the_same_model(recguide: Recguide, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "toy.safetensors", TOY)
    said = {}
    for given, policies in (("plain", ["sglang:ar"]), ("adapted", ["sglang:ar", "fixed:8"])):
        named = [word for name in policies for word in ("--policy", name)]
        options = (*named, *LOAD[:5], "--max-concurrency", 2, *(("--adapter", adapter) if given == "adapted" else ()))
        where = ("--result-dir", tmp_path / given, "--dtype", "fp32", "--device", "cpu")
        done = recguide("bench", "sglang", TOY, *where, *options)
        assert done.code == 0, done.stderr
        for each in json.loads(done.stdout):
            assert each["same_outputs"] == 1
            assert ("every token" in each["weights"]) == (given == "adapted")
        file = next((tmp_path / given).glob("sglang_ar-*.figures.json"))
        said[given] = json.loads(file.read_text())["output_ids"]
    assert said["plain"] != said["adapted"]


def _check_campaign(folder: Path, entries: dict[tuple[str, int], dict[str, float]]) -> None:
    """Each measured run's own trace replays it, step by step."""
    campaign = read_campaign(folder)
    assert [key.concurrency for key in campaign.manifest.points] == [1, 3]
    for key, (measured,) in campaign.runs.items():
        trace = read_trace(folder / measured.about.name.replace(".json.gz", ".served.parquet"))
        rounds = rounds_of(trace, [("seeded", 8), ("continuation", 8)])
        policy = make_policy(key.policy, rounds, constant_costs())
        again = replay(rounds, constant_costs(), policy, concurrency=key.concurrency, order=range(len(trace.requests)))
        assert again.output_tokens.tolist() == measured.run.output_tokens.tolist()
        assert rounds_each(again) == rounds_each(measured.run)
        assert np.sum(measured.run.emission_tokens) == entries[key.policy, key.concurrency]["total_output_tokens"]


def rounds_each(run: Replay) -> list[list[int]]:
    """What each request's rounds gave."""
    order = np.argsort(run.emission_request, kind="stable")
    bounds = np.flatnonzero(np.diff(run.emission_request[order])) + 1
    return [part.tolist() for part in np.split(run.emission_tokens[order], bounds)]
