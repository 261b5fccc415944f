"""SGLang's own engine with the plugin on the CPU: the same tokens as without it, in every mode, and nothing leaks.

SGLang checks for itself that every KV slot is free or accounted for, after each step and when it is idle, and ends
where one is not.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import profiles
import pytest
from engines import ADAPTIVE
from hand_traces import put, put_levels, put_matched, request, trace
from sglang_env import PRESENT, prompts

from recguide.sim.adaptive import ALL, Load, LowLoad, write_policy
from recguide.sim.batching import MAX_WAIT
from recguide.sim.history import PAPER
from recguide.sim.measurement import Measurement, read_measurement
from recguide.sim.overlap import Outcome
from recguide.traces.dense import DenseTrace
from recguide.traces.files import read_trace, write_trace

if not PRESENT:
    pytest.skip("SGLang is not installed here: make test-sglang", allow_module_level=True)

import sglang
from sglang_runs import flush, forced_by_our_engine, greedy, running, sampled_by_our_engine

PROMPTS = prompts(10, seed=3)
LENGTHS = [48, 20, 36, 44, 28, 48, 12, 40, 1, 33]
SIZES = [4, 8, 16]


@dataclass(frozen=True)
class Run:
    """What a run of an engine came to."""

    tokens: list[list[int]]
    measured: Measurement | None


def generated(engine: sglang.Engine) -> list[list[int]]:
    answers = engine.generate(input_ids=PROMPTS, sampling_params=greedy(LENGTHS))
    return [answer["output_ids"] for answer in answers]


def served(folder: Path, policy: str, options: dict[str, Any] | None = None, **arguments: Any) -> Run:
    config = {"policy": policy, "block_sizes": SIZES, "log": str(folder)} | (options or {})
    with running(config, **arguments) as engine:
        tokens = generated(engine)
        flush(engine)
    return Run(tokens, read_measurement(folder / "run-0001.json.gz"))


@pytest.fixture(scope="module", autouse=True)
def strict() -> Iterator[None]:
    """SGLang checks its pools after every step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY", "1")
        yield


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """What SGLang says without us."""
    with running() as engine:
        return generated(engine)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy file whose blocks are the larger the surer the verifier is."""
    unsure, sure = {4: 2.0, 8: 2.2, 16: 2.3}, {4: 3.9, 8: 7.0, 16: 12.0}
    values = {ALL: {size: (unsure[size], sure[size]) for size in SIZES}}
    loads = tuple(Load(count, 1000.0, {4: 1.0e-3, 8: 1.5e-3, 16: 2.5e-3}, 8) for count in (1, 8))
    path = tmp_path_factory.mktemp("fitted") / "policy.json"
    made = replace(
        ADAPTIVE, model="model", candidates=tuple(SIZES), signal=PAPER, edges=(-0.3,), values=values, loads=loads,
        low_load=LowLoad(8, 0.5, 3), provenance={"profile": {"model": "model", "gpu": "Test GPU"}},
    )  # fmt: skip
    write_policy(made, path)
    return path


def sizes(run: Run) -> set[int]:
    """Block sizes of the rounds."""
    assert run.measured is not None
    return set(run.measured.run.emission_block_size.tolist()) - {0}


def outcomes(run: Run, flag: Outcome) -> int:
    """How many rounds had it."""
    assert run.measured is not None
    return int(np.count_nonzero(run.measured.run.emission_outcome & flag.value))


def test_fixed_blocks_give_the_tokens_of_one_token_decoding(plain: list[list[int]], tmp_path: Path) -> None:
    run = served(tmp_path, "fixed:8")
    assert run.tokens == plain
    assert sizes(run) == {8}
    assert run.measured is not None
    assert len(run.measured.run.emission_request) < sum(LENGTHS) / 2


def test_tiers_follow_the_load(plain: list[list[int]], tmp_path: Path) -> None:
    path = tmp_path / "tiers.json"
    tiers = [{"low": 1, "high": 4, "block_size": 16}, {"low": 5, "high": 64, "block_size": 4}]
    path.write_text(json.dumps({"recguide_policy": 1, "kind": "tiers", "tiers": tiers}))
    run = served(tmp_path / "log", f"tiers:{path}")
    assert run.tokens == plain
    assert sizes(run) == {4, 16}


def test_adaptive_blocks_run_in_buckets(plain: list[list[int]], fitted: Path, tmp_path: Path) -> None:
    run = served(tmp_path, f"adaptive:{fitted}")
    assert run.tokens == plain
    assert len(sizes(run)) > 1
    assert all(len(found) == 1 for found in sizes_by_step(run))
    assert longest_wait(run) <= MAX_WAIT + len(SIZES)


def sizes_by_step(run: Run) -> list[set[int]]:
    """Block sizes of everyone in a step, of each step but prefills."""
    assert run.measured is not None
    log = run.measured.run
    per_step: dict[int, set[int]] = {}
    for step, size in zip(log.emission_step, log.emission_block_size, strict=True):
        per_step.setdefault(step, set()).add(int(size))
    return [found for found in per_step.values() if found != {0}]


@pytest.mark.parametrize("ahead", [False, True])
def test_allocation_has_unequal_blocks_in_one_step(
    plain: list[list[int]], fitted: Path, tmp_path: Path, ahead: bool
) -> None:
    profile = profiles.write(tmp_path / "profile.csv", model="model")
    run = served(tmp_path, f"allocation:{fitted}", {"profile": str(profile), "ahead": ahead})
    assert run.tokens == plain
    assert sum(len(found) > 1 for found in sizes_by_step(run)) > 3
    # nobody waits for others' block sizes; whoever arrives while a step runs ahead takes part one step later
    assert longest_wait(run) <= 1 + ahead


def longest_wait(run: Run) -> int:
    """The most rounds from one emission of a request to its next one."""
    assert run.measured is not None
    log = run.measured.run
    rounds_so_far = np.cumsum(log.steps["block_size"] > 0)[log.emission_step]
    waits = [np.diff(rounds_so_far[log.emission_request == number]) for number in range(len(log.request))]
    return int(max(wait.max(initial=0) for wait in waits))


def test_branches_of_both_kinds_are_hit(plain: list[list[int]], tmp_path: Path) -> None:
    run = served(tmp_path, "overlap:B=8")
    assert run.tokens == plain
    assert outcomes(run, Outcome.CORRECTION_REUSED) > 0
    assert outcomes(run, Outcome.CONTINUATION_REUSED) > 0
    trace = read_trace(tmp_path / "run-0001.served.parquet")
    assert len(trace.requests) == len(PROMPTS)


def test_the_regime_switches_by_load(plain: list[list[int]], fitted: Path, tmp_path: Path) -> None:
    run = served(tmp_path, f"regime:file={fitted}")
    assert run.tokens == plain
    assert outcomes(run, Outcome.PREPARED) > 0
    assert len(sizes(run)) > 1


def test_steps_that_are_launched_ahead_give_the_same(
    plain: list[list[int]], fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that leave or give way while their next step runs, and such as join it late."""
    monkeypatch.setenv("SGLANG_TEST_RETRACT", "1")
    run = served(tmp_path, f"regime:file={fitted}", {"ahead": True}, max_running_requests=4)
    assert run.tokens == plain
    assert outcomes(run, Outcome.PREPARED) > 0
    assert len(sizes(run)) > 1
    assert run.measured is not None
    assert run.measured.run.preemptions > 0


def test_pages_chunks_and_retractions_change_nothing(
    plain: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SGLang's own way to have requests give way again and again
    monkeypatch.setenv("SGLANG_TEST_RETRACT", "1")
    run = served(tmp_path, "overlap:B=4", max_total_tokens=512, page_size=4, chunked_prefill_size=16)
    assert run.tokens == plain
    assert run.measured is not None
    assert run.measured.run.preemptions > 0


def test_processes_that_share_each_layer_give_the_same(
    plain: list[list[int]], fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|0")
    run = served(tmp_path, f"regime:file={fitted}", {"ahead": True}, tp_size=2)
    assert run.tokens == plain
    assert outcomes(run, Outcome.PREPARED) > 0
    assert outcomes(run, Outcome.DRAFTED) > 0
    # one of them writes what was served
    assert len(list(tmp_path.glob("*.json.gz"))) == 1


def test_clients_come_and_go(plain: list[list[int]]) -> None:
    with running({"policy": "overlap:B=8", "block_sizes": SIZES, "ahead": True}) as engine:
        assert engine.loop.run_until_complete(with_aborts(engine)) == {"abort"}
        # nothing is left of them: the same requests again, as if they were the first
        flush(engine)
        assert generated(engine) == plain
        flush(engine)
        streamed(engine, plain)
        refused(engine)
        sampled(engine)
        flush(engine)


async def with_aborts(engine: sglang.Engine) -> set[str]:
    """Abort everyone while they run, draft, or wait; gives why they ended."""
    rids = [f"gone-{i}" for i in range(10)]
    asked = {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True}
    tasks = [
        asyncio.create_task(engine.async_generate(input_ids=prompt, sampling_params=asked, rid=rid))
        for prompt, rid in zip(PROMPTS, rids, strict=True)
    ]
    for rid in rids:
        await asyncio.sleep(0.05)
        engine.tokenizer_manager.abort_request(rid=rid)
    answers = await asyncio.gather(*tasks)
    return {answer["meta_info"]["finish_reason"]["type"] for answer in answers}


def streamed(engine: sglang.Engine, plain: list[list[int]]) -> None:
    """A stream brings tokens as they come, and never nothing."""
    before: list[int] = []
    for chunk in engine.generate(input_ids=PROMPTS[0], sampling_params=greedy([48])[0], stream=True):
        assert len(chunk["output_ids"]) > 0
        before = chunk["output_ids"]
    assert before == plain[0]


def refused(engine: sglang.Engine) -> None:
    """What drafts know nothing of is refused with the reason, and others are not disturbed."""
    for params, says in (
        ({"frequency_penalty": 0.5}, "frequency_penalty: found 0.5, allowed with RECGUIDE: 0.0"),
        ({"temperature": 1.0, "top_p": 0.5}, "top_p: found 0.5"),
        ({"repetition_penalty": 1.5}, "repetition_penalty: found 1.5"),
    ):
        with pytest.raises(ValueError, match=says):
            engine.generate(input_ids=PROMPTS[0], sampling_params={"temperature": 0, "max_new_tokens": 4} | params)
    with pytest.raises(ValueError, match="return_logprob: found True"):
        engine.generate(input_ids=PROMPTS[0], sampling_params=greedy([4])[0], return_logprob=True)


def sampled(engine: sglang.Engine) -> None:
    """A sampled output depends on its seed alone, not on who else is served, and is that of our own engine."""
    asked = {"temperature": 1.0, "max_new_tokens": 24, "ignore_eos": True, "sampling_seed": 7}
    alone = engine.generate(input_ids=PROMPTS[0], sampling_params=asked)["output_ids"]
    params = [asked | {"sampling_seed": seed} for seed in (7, 8, 9)]
    together = [answer["output_ids"] for answer in engine.generate(input_ids=PROMPTS[:1] * 3, sampling_params=params)]
    assert together[0] == alone == sampled_by_our_engine(PROMPTS[0], 24, 1.0, 7)
    assert len({tuple(tokens) for tokens in together}) > 1


def forced_trace() -> DenseTrace:
    """Two requests whose drafts match now and then, with risky positions where corrections would be right."""
    even, odd, third = range(0, 40, 2), range(1, 40, 2), range(0, 40, 3)
    requests = []
    for name, matched in (("a", 7), ("b", 3)):
        made = request(name, 40, (4, 8))
        put_matched(made, 8, dict.fromkeys(even, matched) | dict.fromkeys(odd, 2))
        put(made, "seeded", 8, "second", dict.fromkeys(odd, 1 << 2))
        put(made, "continuation", 8, "match", dict.fromkeys(third, 0xFF))
        for position in range(40):
            put_levels(made, 8, position, [255] * 7, [255, 255, 20, 255, 255, 255, 255])
        requests.append(made)
    return trace(*requests, block_sizes=(4, 8))


def test_forced_acceptance_is_that_of_our_own_engine(tmp_path: Path) -> None:
    path, log = tmp_path / "trace.parquet", tmp_path / "log"
    write_trace(forced_trace(), path)
    recorded = read_trace(path)
    config = {"policy": "overlap:B=8", "forced_trace": str(path), "log": str(log)}
    with running(config) as engine:
        asked = [asdict | {"custom_params": {"recguide_row": row}} for row, asdict in enumerate(greedy([40, 40]))]
        engine.generate(input_ids=[[5, 6, 7, 8, 9]] * 2, sampling_params=asked)
        with pytest.raises(ValueError, match="recguide_row: found None, allowed: 0 to 1"):
            engine.generate(input_ids=[5, 6, 7, 8, 9], sampling_params=greedy([40])[0])
        flush(engine)
    measured = read_measurement(log / "run-0001.json.gz")
    assert measured.about.acceptance == "forced"
    found = zip(measured.run.emission_request, measured.run.emission_tokens, measured.run.emission_outcome, strict=True)
    by_request: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for number, tokens, outcome in found:
        by_request[int(number)].append((int(tokens), int(outcome)))
    assert [by_request[0], by_request[1]] == forced_by_our_engine(recorded, "overlap:B=8")
