"""`recguide bench serve`: its figures, its files, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from strategies import random_trace
from toy_adapter import write_adapter

from recguide.sim.costs import linear_costs
from recguide.sim.policies import fixed
from recguide.sim.replay import replay
from recguide.sim.rounds import rounds_of
from recguide.traces.files import read_trace, write_trace

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = ("--device", "cpu", "--dtype", "fp32", "--num-warmups", "1")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {i}", "id": str(i)}) + "\n" for i in range(5)))
    return path


def test_figures_are_those_of_vllm_and_the_files_hold_them(recguide, tiny_folder, data, tmp_path) -> None:
    trace = tmp_path / "served.parquet"
    done = recguide(
        *("bench", "serve", "--model", tiny_folder, "--dataset-path", data, "--policy", "overlap:B=4", *CPU),
        *("--max-concurrency", 2, "--output-len", 12, "--ignore-eos", "--save-detailed", "--result-dir", tmp_path),
        *("--save-trace", trace, "--metric-percentiles", "50,99", "--goodput", "e2el:100000", "--label", "mine"),
    )
    assert done.code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["completed"], told["failed"], told["num_prompts"]) == (5, 0, 5)
    assert told["total_output_tokens"] == 60
    assert told["complete"] is True
    assert told["acceptance"] == "the model's own"
    assert told["finish_reasons"] == {"length": 5}
    assert told["good_requests"] == 5
    assert told["max_concurrent_requests"] == 2
    assert told["label"] == "mine"
    for key in ("mean_ttft_ms", "p50_tpot_ms", "p99_itl_ms", "request_throughput", "output_throughput", "tau"):
        assert told[key] > 0, key
    assert 0 < told["forward_s"] < told["round_s"]
    assert told["host_s"] == pytest.approx(told["round_s"] - told["forward_s"])
    written = json.loads((tmp_path / "bench-serve.json").read_text())
    assert {key: value for key, value in written.items() if not isinstance(value, list)} == told
    assert written["output_lens"] == [12] * 5
    assert len(written["ttfts"]) == len(written["itls"]) == 5
    served = read_trace(trace)
    assert [request.output_tokens for request in served.requests] == [12] * 5
    assert served.provenance.note.startswith("reduced fidelity")


@pytest.mark.parametrize("option", ["--merge-drafts", "--no-merge-drafts", None])
def test_results_say_whether_drafts_were_merged(recguide, tiny_folder, data, tmp_path, option) -> None:
    adapter = write_adapter(tmp_path / "a.safetensors", tiny_folder)
    done = recguide(
        *("bench", "serve", "--model", tiny_folder, "--adapter", adapter, "--dataset-path", data, *CPU),
        *("--policy", "fixed:4", "--num-prompts", 1, "--output-len", 4, *([option] if option else [])),
    )
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["merge_drafts"] is (option == "--merge-drafts")


def test_acceptance_forced_from_a_trace_is_labelled_and_is_the_traces(recguide, tiny_folder, tmp_path) -> None:
    trace = random_trace(1, 6, (4, 8), max_output_tokens=30, ease=0.9, model="someone")
    write_trace(trace, tmp_path / "trace.parquet")
    done = recguide(
        *("bench", "serve", "--model", tiny_folder, "--policy", "fixed:8", "--block-sizes", "4,8", *CPU),
        *("--force-acceptance", tmp_path / "trace.parquet", "--num-prompts", 4, "--max-concurrency", 3),
    )
    told = json.loads(done.stdout)
    assert told["acceptance"] == "acceptance forced from a trace of someone"
    assert told["completed"] == 4
    order = np.random.default_rng(0).permutation(6)[:4]
    played = replay(rounds_of(trace), linear_costs(1e-3, 0, 0), fixed(8), concurrency=3, order=order.tolist())
    assert told["num_rounds"] == int((played.emission_block_size == 8).sum())
    assert told["total_output_tokens"] == int(played.output_tokens.sum())


def test_requests_arrive_at_their_rate(recguide, tiny_folder, data) -> None:
    done = recguide(
        *("bench", "serve", "--model", tiny_folder, "--dataset-path", data, "--policy", "ar", *CPU),
        *("--request-rate", 20, "--num-prompts", 8, "--output-len", 4, "--seed", 3),
    )
    told = json.loads(done.stdout)
    assert told["request_rate"] == 20
    assert told["completed"] == 8
    assert told["duration"] > 0.1
    assert told["mean_client_queue_ms"] is not None


def test_a_prompt_without_room_is_counted_as_failed_with_its_reason(recguide, tiny_folder, data) -> None:
    with data.open("a") as file:
        file.write(json.dumps({"prompt": "far too long " * 60, "id": "long"}) + "\n")
    done = recguide(
        *("bench", "serve", "--model", tiny_folder, "--dataset-path", data, "--policy", "ar", *CPU),
        *("--output-len", 4, "--max-model-len", 100),
    )
    told = json.loads(done.stdout)
    assert (told["completed"], told["failed"]) == (5, 1)
    (reason,) = told["refused"]
    assert "allowed: 1 to 99" in reason


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--policy", "oracle"), "knows the future"),
        (("--policy", "goodput"), "needs --profile"),
        (("--policy", "fixed:7"), "block size 7 was not recorded; recorded: 4, 8, 16, 32"),
        (("--policy", "ragged"), "only simulated"),
        (("--request-rate", "0"), "--request-rate"),
        (("--block-sizes", "8,4"), "--block-sizes"),
        (("--kv-tokens", "8"), "--kv-tokens: room for 0 tokens"),
        (("--goodput", "speed:3"), "goodput"),
        (("--result-dir", "/nowhere"), "--result-dir"),
        (("--save-result", "--result-filename", ""), "--result-filename: found '.', allowed: a file in a folder"),
        (("--save-result", "--result-filename", "nowhere/r.json"), "--result-filename: found 'nowhere/r.json'"),
        (("--save-trace", "."), "--save-trace: found '.', allowed: a file in a folder that is there"),
        (("--force-acceptance", "nothing.parquet", "--temperature", "1"), "--temperature"),
    ],
)
def test_what_cannot_be_measured_ends_with_2_and_a_reason(recguide, tiny_folder, options, words) -> None:
    base = ("bench", "serve", "--model", tiny_folder, "--random-input-len", "4", "--output-len", "2", *CPU)
    done = recguide(*base, "--num-prompts", "1", *options)
    assert done.code == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_a_run_that_is_killed_leaves_what_it_had(tiny_folder, tmp_path) -> None:
    code = (
        "import recguide.engine.bench_serve as b; b.SAVE_EVERY_S = 0.0\n"
        "import sys; from recguide.sim.cli import main; main()"
    )
    words = ("recguide", "bench", "serve", "--model", tiny_folder, "--num-prompts", 4000, "--max-concurrency", 2)
    rest = ("--random-input-len", 4, "--output-len", 8, "--ignore-eos", "--save-result", "--result-dir", tmp_path, *CPU)
    script = f"import sys; sys.argv = {[str(word) for word in (*words, *rest)]!r}\n{code}"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path, found = tmp_path / "bench-serve.json", {}
    try:
        until = time.monotonic() + 120
        while not found.get("completed") and time.monotonic() < until:
            time.sleep(0.05)
            assert process.poll() is None
            found = json.loads(path.read_text()) if path.exists() else {}
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    left = json.loads(path.read_text())
    assert left["complete"] is False
    assert 0 < left["completed"] < 4000
    assert left["output_throughput"] > 0
