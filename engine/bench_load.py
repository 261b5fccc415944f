"""The load of `recguide bench serve`: prompts of a dataset, random ones, or the requests of a trace."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from recguide.engine.bench_serve_command import ServeOptions
from recguide.engine.forced import Forced
from recguide.engine.loading import LoadedModel
from recguide.engine.model import ModelConfig
from recguide.engine.requests import MAX_SEED, Live, Wish
from recguide.engine.serving import Engine
from recguide.sim.arrivals import Arrival, Clients, random_times
from recguide.traces.datasets import read_prompts
from recguide.traces.errors import InputError
from recguide.traces.files import read_traces, resolve_traces

RANDOM_PROMPTS = 100


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """Requests, and who says what is accepted."""

    prompts: Sequence[Sequence[int]]
    wishes: Sequence[Wish]
    judge: Forced | None

    def __len__(self) -> int:
        return len(self.prompts)

    def longest(self, block_size: int) -> int:
        """Tokens of the longest request, with room for a last block and a branch behind it."""
        pairs = zip(self.prompts, self.wishes, strict=True)
        return max(len(prompt) + wish.max_new_tokens for prompt, wish in pairs) + 2 * block_size

    def send(self, engine: Engine, row: int, arrival_s: float | None = None) -> Live:
        """Let an engine serve one of the requests."""
        if self.judge is not None:
            return self.judge.send(engine, row, arrival_s)
        return engine.add(self.prompts[row], self.wishes[row], row, arrival_s)

    def clients(self, options: ServeOptions) -> Clients:
        """Who sends all of them, and when."""
        times = random_times(options.request_rate, options.burstiness, options.seed)
        arrivals = [
            Arrival(next(times), row, len(prompt), wish.max_new_tokens)
            for row, (prompt, wish) in enumerate(zip(self.prompts, self.wishes, strict=True))
        ]
        return Clients(arrivals, options.max_concurrency)


class LoadOptions(Protocol):
    """What of a command line describes a load."""

    @property
    def block_sizes(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def dataset_path(self) -> tuple[Path, ...]: ...  # noqa: D102
    @property
    def random_input_len(self) -> int: ...  # noqa: D102
    @property
    def output_len(self) -> int: ...  # noqa: D102
    @property
    def force_acceptance(self) -> str | None: ...  # noqa: D102
    @property
    def num_prompts(self) -> int | None: ...  # noqa: D102
    @property
    def ignore_eos(self) -> bool: ...  # noqa: D102
    @property
    def temperature(self) -> float: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102
    @property
    def model(self) -> str: ...  # noqa: D102


def load_of(options: LoadOptions, model: LoadedModel) -> BenchLoad:
    """The load that the options describe."""
    if options.force_acceptance is not None:
        return _recorded(options, options.force_acceptance, model)
    prompts = _prompts(options, model)
    eos_ids = () if options.ignore_eos else None
    wishes = [
        Wish(options.output_len, options.temperature, (options.seed + row) % MAX_SEED, eos_ids)
        for row in range(len(prompts))
    ]
    return BenchLoad(prompts, wishes, None)


def _prompts(options: LoadOptions, model: LoadedModel) -> list[list[int]]:
    if not options.dataset_path:
        count = options.num_prompts or RANDOM_PROMPTS
        return random_prompts(model.config, options.random_input_len, count, options.seed)
    prompts = prompts_of(model, options.dataset_path, options.random_input_len)
    count = options.num_prompts or len(prompts)
    return [prompts[i % len(prompts)] for i in range(count)]


def random_prompts(config: ModelConfig, length: int, count: int = RANDOM_PROMPTS, seed: int = 0) -> list[list[int]]:
    """Prompts of ``length`` random tokens of a model, none of them its mask."""
    drawn = np.random.default_rng(seed).integers(0, config.vocab_size, (count, length))
    drawn[drawn == config.mask_id] = (config.mask_id + 1) % config.vocab_size
    return [[int(token) for token in row] for row in drawn]


def prompts_of(model: LoadedModel, paths: Sequence[Path] | None, random_input_len: int) -> list[list[int]]:
    """All prompts of datasets as tokens; without any, random ones of that length, which are those of seed 0."""
    if not paths:
        return random_prompts(model.config, random_input_len)
    if model.tokenizer is None:
        raise InputError(f"model {model.config.name!r}: has no tokenizer, so it cannot read prompts")
    return [model.tokenizer.encode_chat(prompt.text) for prompt in read_prompts(paths)]


def _recorded(options: LoadOptions, name: str, model: LoadedModel) -> BenchLoad:
    trace = read_traces(resolve_traces(name))
    missing = [size for size in options.block_sizes if size not in trace.provenance.block_sizes]
    if missing:
        recorded = ",".join(map(str, trace.provenance.block_sizes))
        raise InputError(f"--block-sizes: found {missing}, which {name} does not have, allowed: {recorded}")
    order = np.random.default_rng(options.seed).permutation(len(trace.requests))[: options.num_prompts]
    judge = Forced(replace(trace, requests=tuple(trace.requests[row] for row in order)), model.config, options.seed)
    requests = judge.trace.requests
    return BenchLoad(
        [judge.prompt(row) for row in range(len(requests))], [Wish(each.output_tokens) for each in requests], judge
    )
