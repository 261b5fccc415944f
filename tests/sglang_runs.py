"""Runs of SGLang's engine on the CPU, and of our own on the same model."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sglang
from sglang_env import ENGINE_ARGS, TOY, own_port

from recguide.engine.api import generate
from recguide.engine.forced import Forced
from recguide.engine.loading import open_model
from recguide.engine.policyof import policy_of
from recguide.engine.requests import Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.sim.batching import batching_named
from recguide.sim.memory import Limits
from recguide.traces.dense import DenseTrace

BLOCK_SIZES = (4, 8, 16, 32)


@dataclass(frozen=True)
class Outputs:
    """Of each prompt."""

    tokens: list[list[int]]
    rounds: list[int]
    """Verified; 0 throughout where nothing was drafted."""


@contextmanager
def running(config: object = None, **arguments: Any) -> Iterator[sglang.Engine]:
    """An engine, with the plugin where there is a config."""
    told = {}
    if config is not None:
        told = {"speculative_algorithm": "RECGUIDE", "speculative_adaptive_config": json.dumps(config)}
    engine = sglang.Engine(**{**ENGINE_ARGS, "nccl_port": own_port(), **told, **arguments})
    try:
        yield engine
    finally:
        engine.shutdown()


def greedy(lengths: list[int]) -> list[dict[str, Any]]:
    return [{"temperature": 0, "max_new_tokens": length, "ignore_eos": True} for length in lengths]


def flush(engine: sglang.Engine) -> None:
    """Flush the cache, which writes the log, as soon as SGLang has let everyone go."""
    for _ in range(100):
        if engine.flush_cache().success:
            return
    raise AssertionError("the engine is never idle")


def under_sglang(prompts: Sequence[Sequence[int]], count: int, **arguments: Any) -> Outputs:
    """Greedy outputs of ``count`` tokens."""
    engine = sglang.Engine(**{**ENGINE_ARGS, "nccl_port": own_port(), **arguments})
    try:
        asked = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
        found = engine.generate(input_ids=[list(prompt) for prompt in prompts], sampling_params=asked)
    finally:
        engine.shutdown()
    rounds = [answer["meta_info"].get("spec_verify_ct", 0) for answer in found]
    return Outputs([answer["output_ids"] for answer in found], rounds)


def under_recguide(prompts: Sequence[Sequence[int]], count: int, policy: str, **arguments: Any) -> Outputs:
    """The same by our plugin."""
    told = {"speculative_algorithm": "RECGUIDE", "speculative_adaptive_config": policy}
    return under_sglang(prompts, count, **told, **arguments)


def by_our_engine(
    model: Path, prompts: Sequence[Sequence[int]], count: int, policy: str, adapter: str | None = None
) -> Outputs:
    """The same by the engine of `recguide serve`."""
    loaded = open_model(str(model), adapter, "cpu", "fp32")
    config = EngineConfig(BLOCK_SIZES, Limits(2048, None, 8, 16, 400), 200, batching_named("bucket"))
    engine = Engine(loaded.decoder, policy_of(policy, BLOCK_SIZES, "toy", None), config)
    answers = generate(engine, prompts, Wish(count, eos_ids=()))
    run = engine.replay()
    rounds = np.bincount(run.emission_request[run.emission_block_size > 1], minlength=len(prompts))
    return Outputs([list(answer.tokens) for answer in answers], rounds.tolist())


def sampled_by_our_engine(prompt: Sequence[int], count: int, temperature: float, seed: int) -> list[int]:
    """A sampled output by the engine of `recguide serve`."""
    loaded = open_model(str(TOY), None, "cpu", "fp32")
    engine = Engine(loaded.decoder, policy_of("fixed:8", BLOCK_SIZES, "toy", None), EngineConfig(max_context=200))
    (answer,) = generate(engine, [prompt], Wish(count, temperature, seed, eos_ids=()))
    return list(answer.tokens)


def forced_by_our_engine(trace: DenseTrace, policy: str) -> list[list[tuple[int, int]]]:
    """Tokens and outcome of every emission of every request, acceptance forced, by the engine of `recguide serve`."""
    loaded = open_model(str(TOY), None, "cpu", "fp32")
    sizes = trace.provenance.block_sizes
    config = EngineConfig(sizes, Limits(2048, None, 8, 16, 400), trace.provenance.max_context)
    judge = Forced(trace, loaded.config)
    engine = Engine(loaded.decoder, policy_of(policy, sizes, "toy", None), config, judge)
    for row in range(len(trace.requests)):
        judge.send(engine, row)
    engine.drain()
    run = engine.replay()
    emissions = zip(run.emission_request, run.emission_tokens, run.emission_outcome, strict=True)
    found: list[list[tuple[int, int]]] = [[] for _ in trace.requests]
    for number, tokens, outcome in emissions:
        found[number].append((int(tokens), int(outcome)))
    return found
