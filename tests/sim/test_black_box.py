"""What users of other simulators and engines reported, tried on this one from outside.

Each test says what it shows; its comment links the report. Not here, for it is about the engine and its kernels: that
a request longer than the drafter's limit falls back alone on the GPU (vllm#58080; its simulated side is here).
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import hand_traces
import profiles
import pytest
from running import Done
from strategies import constant_trace, random_trace

from recguide.sim.cli import main
from recguide.sim.rounds import accept_lens, rounds_of
from recguide.traces.dense import DenseTrace
from recguide.traces.files import write_trace

CAPS = "--max-concurrency"
Point = dict[str, Any]


class Box:
    """The command line over a trace in a folder of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        profiles.write(folder / "profile.csv")
        self.trace(random_trace(0, 12))

    def trace(self, trace: DenseTrace) -> None:
        """Serve this trace from here on."""
        write_trace(trace, self.folder / "trace.parquet", compression_level=1)

    def file(self, name: str, text: str) -> Path:
        """Write a file beside it."""
        (self.folder / name).write_text(text, encoding="utf-8")
        return self.folder / name

    def run(self, *options: object) -> Done:
        """Sweep, and say how it ended."""
        fixed = ["--trace", self.folder / "trace.parquet", "--profile", self.folder / "profile.csv", "--jobs", 1]
        words = ["recguide", "sweep", *fixed, "--output-dir", self.folder / "out", *options]
        self.monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self.capsys.readouterr()
        return Done(ended.value.code or 0, printed.out, " ".join(printed.err.split()))

    def points(self, *options: object, policy: str = "fixed:8") -> list[Point]:
        """The points of a sweep that must work: those of one policy."""
        done = self.run("--policy", policy, *options)
        assert done.code == 0, done.stderr
        return [point for point in self.document()["points"] if point["policy"] == policy]

    def document(self) -> dict[str, Any]:
        """The results, in strict JSON."""

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        text = (self.folder / "out" / "results.json").read_text()
        document: dict[str, Any] = json.loads(text, parse_constant=refuse)
        return document

    def refusal(self, *options: object) -> str:
        """The message of a sweep that must be refused, and leave nothing behind."""
        done = self.run(*options)
        assert (done.code, done.stdout) == (2, "")
        assert not (self.folder / "out").exists()
        return done.stderr


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Box:
    return Box(tmp_path, monkeypatch, capsys)


def mooncake(*rows: tuple[object, object, object]) -> str:
    return "".join(f'{{"timestamp": {t}, "input_length": {i}, "output_length": {o}}}\n' for t, i, o in rows)


def plain(*rows: tuple[object, object, object]) -> str:
    return "arrival_s,input_tokens,output_tokens\n" + "".join(f"{t},{i},{o}\n" for t, i, o in rows)


def test_a_malformed_number_in_the_middle_of_an_arrival_file_is_named_and_nothing_is_half_read(box: Box) -> None:
    # https://github.com/kvcache-ai/Mooncake/issues/3
    file = box.file("trace.jsonl", mooncake((0, 10, 20), (100, 10, "2748 610"), (200, 10, 20)))
    message = box.refusal("--arrivals", file)
    assert f"{file}:2: not JSON" in message
    assert "2748 610" in message
    (point,) = box.points("--arrivals", file, "--lenient")
    assert (point["completed"], point["skipped_rows"]) == (2, 1)


def test_rows_without_response_tokens_are_failures_and_divide_nothing_by_zero(box: Box) -> None:
    # https://github.com/HPMLL/BurstGPT/issues/11
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    rows = [(1, 10, 0), (2, 20, 12), (3, 30, 0), (4, 40, 1)]
    text = head + "".join(f"{t},ChatGPT,{i},{o},{i + o},API log\n" for t, i, o in rows)
    (point,) = box.points("--arrivals", box.file("burst.csv", text))
    assert (point["completed"], point["failed"], point["total_output_tokens"]) == (2, 2, 13)
    assert point["mean_tpot_ms"] > 0


def test_a_request_without_prompt_tokens_is_refused_with_the_reason(box: Box) -> None:
    # https://github.com/inference-sim/inference-sim/issues/1301
    file = box.file("a.csv", plain((0, 10, 20), (1, 0, 20)))
    assert f"{file}:3: input_tokens: found 0, allowed: at least 1 prompt token" in box.refusal("--arrivals", file)


@pytest.mark.parametrize("time", ["-1", "", "NaN", "inf", "1e999"])
def test_an_impossible_arrival_time_names_request_and_field_before_anything_runs(box: Box, time: str) -> None:
    # https://github.com/inference-sim/inference-sim/issues/1302, https://github.com/ai-dynamo/aisimulate/pull/183
    file = box.file("a.csv", plain((0, 10, 20), (time, 10, 20)))
    assert f"{file}:3: arrival_s: found '{time}'" in box.refusal("--arrivals", file)


def test_epoch_microseconds_give_the_results_of_relative_seconds_and_a_warning(box: Box) -> None:
    # https://github.com/inference-sim/inference-sim/issues/1606
    times = (0, 250_000, 500_000, 2_000_000)
    relative = box.file("r.csv", plain(*((time / 1e6, 30, 20) for time in times)))
    epoch = box.file("e.csv", plain(*((1_700_000_000_000_000 + time, 30, 20) for time in times)))
    one = box.points("--arrivals", relative)
    done = box.run("--arrivals", epoch, "--policy", "fixed:8")
    assert "read as microseconds since 1970" in done.stderr
    other = [point for point in box.document()["points"] if point["policy"] == "fixed:8"]
    assert other[0]["completed"] == 4
    assert [point | {"load_note": None} for point in other] == [point | {"load_note": None} for point in one]


def test_a_simulated_run_exported_as_arrivals_and_replayed_is_the_same_run(box: Box) -> None:
    # https://github.com/inference-sim/inference-sim/issues/1615
    file = box.file("a.csv", plain(*((i / 64, 10 + i, 5 * i + 1) for i in range(12))))
    (once,) = box.points("--arrivals", file, "--save-detailed")
    (detail,) = box.folder.joinpath("out").rglob("fixed_8*.json")
    copied = box.file("replayed.json", detail.read_text())
    (again,) = box.points("--arrivals", copied, "--save-detailed")
    assert once == again
    assert json.loads(detail.read_text()) == json.loads(copied.read_text())


def test_a_cap_changes_an_open_loop_and_is_echoed_and_two_clocks_are_refused(box: Box) -> None:
    # https://github.com/ai-dynamo/dynamo/pull/11633
    file = box.file("a.csv", plain(*((i / 1000, 50, 40) for i in range(40))))
    one, many = box.points("--arrivals", file, CAPS, "1,64")
    assert (one["max_concurrency"], many["max_concurrency"]) == (1, 64)
    assert one["mean_client_queue_ms"] > many["mean_client_queue_ms"]
    assert one["mean_e2el_ms"] < many["mean_e2el_ms"]
    box.monkeypatch.chdir(box.folder)
    done = box.run("--arrivals", file, "--request-rate", 3)
    assert done.code == 2
    assert "request-rate: found beside arrivals" in done.stderr


def test_a_concurrency_that_is_never_reached_says_so_and_none_is_refused(box: Box) -> None:
    # https://github.com/sgl-project/sglang/issues/808, https://github.com/vllm-project/vllm/pull/21095
    for wrong in ("0", "-1"):
        assert f"max-concurrency: found '{wrong}'" in box.refusal(CAPS, wrong)
    done = box.run(CAPS, 128, "--num-prompts", 5, "--policy", "fixed:8")
    assert done.code == 0
    assert "max-concurrency 128 is never reached by 5 requests" in done.stderr
    point = box.document()["points"][-1]
    assert point["max_concurrent_requests"] <= 5
    assert point["concurrency"] <= 5
    assert point["steady_output_throughput"] is None


def test_a_trace_that_accepts_nothing_commits_one_token_a_round_and_shows_its_slowness(box: Box) -> None:
    # https://github.com/vllm-project/vllm/pull/24322, https://github.com/vllm-project/vllm/issues/48494
    box.trace(random_trace(1, 8, min_output_tokens=20, ease=0.0))
    (point,) = box.points(CAPS, 2)
    assert (point["accept_length"], point["draft_acceptance_rate"], point["matched_length"]) == (1.0, 0.0, 0.0)
    assert point["speedup"] < 1
    (plain_point,) = box.points(CAPS, 2, policy="ar")
    assert (plain_point["accept_length"], plain_point["draft_acceptance_rate"]) == (None, None)


def test_eos_inside_an_accepted_block_ends_the_count(box: Box) -> None:
    # https://github.com/vllm-project/vllm/issues/56101
    made = hand_traces.request("r", 6, (8,), finish="eos")
    # seven drafts match from every position on, as far as the text goes: EOS is its sixth token
    hand_traces.put_matched(made, 8, {position: 6 - position for position in range(6)})
    box.trace(hand_traces.trace(made, block_sizes=(8,)))
    (point,) = box.points(CAPS, 1)
    assert point["total_output_tokens"] == 6
    assert (point["num_rounds"], point["accept_length"], point["cut_rounds"]) == (1, 5.0, 1)


def test_matches_behind_the_first_mismatch_do_not_count() -> None:
    # https://github.com/vllm-project/vllm/pull/2658
    made = hand_traces.request("r", 6, (8,))
    hand_traces.put(made, "seeded", 8, "match", {1: 0b1101})
    assert accept_lens(made.drafts["seeded", 8].match)[1] - 1 == 1
    assert rounds_of(hand_traces.trace(made, block_sizes=(8,))).emitted[8][1] == 2


@pytest.mark.parametrize(("limit", "prompt"), [(4096, 4090), (2048, 2040)])
def test_at_the_context_limit_blocks_are_clipped_and_a_full_prompt_is_refused(
    box: Box, limit: int, prompt: int
) -> None:
    # https://github.com/turboderp-org/exllamav2/issues/274, https://github.com/vllm-project/vllm/issues/57941,
    # https://github.com/vllm-project/vllm/issues/5342
    trace = constant_trace(32, 4, 60)
    box.trace(replace(trace, provenance=replace(trace.provenance, max_context=limit)))
    file = box.file("a.csv", plain((0, prompt, 50)))
    (point,) = box.points("--arrivals", file, "--force", policy="fixed:32")
    assert (point["completed"], point["shortened_requests"]) == (1, 1)
    assert point["total_output_tokens"] == limit - prompt + 1
    assert point["block_share_32"] == 0
    (point,) = box.points("--arrivals", box.file("b.csv", plain((0, limit - 40, 40))), "--force", policy="fixed:32")
    assert 0 < point["block_share_32"] < 1
    full = box.file("c.csv", plain((0, limit, 50)))
    done = box.run("--arrivals", full)
    assert done.code == 2
    assert f"{full}:2: input tokens: found {limit}, allowed: under {limit}" in done.stderr


def test_one_long_request_changes_no_other_ones_acceptance(box: Box) -> None:
    # https://github.com/vllm-project/vllm/issues/58080
    trace = constant_trace(8, 1, 60)
    box.trace(replace(trace, provenance=replace(trace.provenance, max_context=2048)))
    short = [(0, 20, 33)] * 32
    (alone,) = box.points("--arrivals", box.file("a.csv", plain(*short)), policy="fixed:32")
    (beside,) = box.points("--arrivals", box.file("b.csv", plain((0, 2044, 4), *short)), policy="fixed:32")
    assert alone["accept_length"] == 8
    assert alone["block_share_32"] == 1
    # the long one has room for a block of 4, then for one token at a time
    assert 0 < 1 - beside["block_share_32"] < 0.05
    assert beside["num_rounds"] - alone["num_rounds"] <= 2


def test_prompts_beyond_context_or_profile_are_refused_or_shown_and_never_clipped(box: Box) -> None:
    # https://github.com/microsoft/vidur/issues/60
    file = box.file("long.jsonl", mooncake((0, 100_000, 20)))
    assert "input tokens: found 100000, allowed: under 8192" in box.refusal("--arrivals", file)
    trace = random_trace(0, 12)
    box.trace(replace(trace, provenance=replace(trace.provenance, max_context=200_000)))
    done = box.run("--arrivals", file, "--policy", "fixed:8", "--force")
    assert "outside the profiled grid" in done.stderr
    assert box.document()["points"][-1]["total_input_tokens"] == 100_000
    assert box.document()["points"][-1]["extrapolated_share"] == 1


def test_too_small_a_cache_is_refused_and_a_small_one_queues_and_counts_preemptions(box: Box) -> None:
    # https://github.com/casys-kaist/LLMServingSim/pull/59
    file = box.file("a.csv", plain(*((0, 100, 60) for _ in range(8))))
    wanted = 8 * 160
    assert "request 0: 100 prompt and 60 output tokens need 10 KV pages of 16 tokens, but there are 9" in box.refusal(
        "--arrivals", file, "--kv-tokens", 9 * 16
    )
    (half,) = box.points("--arrivals", file, "--kv-tokens", wanted // 2)
    assert half["completed"] == 8
    assert half["preemptions"] > 0
    assert half["recomputed_tokens"] > 0
    waits = [box.points("--arrivals", file, "--kv-tokens", share)[0]["mean_ttft_ms"] for share in (2000, 640, 320, 160)]
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]


def test_lookahead_slots_of_long_blocks_overflow_a_cache_that_final_lengths_would_fit(box: Box) -> None:
    # https://github.com/inference-sim/inference-sim/issues/1627
    box.trace(constant_trace(2, 4, 60))
    file = box.file("a.csv", plain(*((0, 100, 60) for _ in range(4))))
    exact = ("--arrivals", file, "--kv-page-size", 1, "--kv-tokens", 4 * 159)
    (long,), (short,), (none,) = (box.points(*exact, policy=name) for name in ("fixed:32", "fixed:8", "ar"))
    assert long["preemptions"] >= short["preemptions"] >= none["preemptions"] == 0
    assert long["preemptions"] > 0
    assert long["recomputed_tokens"] > short["recomputed_tokens"]
