"""Measuring what a forward costs on this machine: every shape a server can reach, as it is served (docs/profile.md)."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from recguide.engine.clocks import device_seconds, wall_seconds
from recguide.engine.model import Decoder, KVCache, ModelConfig
from recguide.engine.uniform import UniformForward
from recguide.sim.costs import Row

# tokens a request brings to a forward: B for drafting and verifying; at B=16 a verifier row with three branches that
# share its tokens brings 16 + 17 + 17 + 16, and the quadratic layout B * (B + 1)
ROW_TOKENS = 66
QUADRATIC_TOKENS = 272


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A forward of ``requests`` requests, each with ``tokens`` query tokens behind ``context`` cached ones."""

    kind: str
    requests: int
    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class Grid:
    """What to measure. Layouts for low load (rows, quadratic) are measured up to ``layout_requests`` requests."""

    requests: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    contexts: tuple[int, ...] = (64, 512, 2048)
    block_sizes: tuple[int, ...] = (4, 8, 16, 32)
    prefill_tokens: tuple[int, ...] = (64, 256, 512, 1024, 2048)
    layout_requests: int = 8

    def shapes(self) -> Iterator[Shape]:
        """Every shape of the grid."""
        for requests in self.requests:
            for context in self.contexts:
                yield Shape("decode", requests, 1, context)
                for block_size in self.block_sizes:
                    yield Shape("draft", requests, block_size, context)
                    yield Shape("verify", requests, block_size, context)
                if requests <= self.layout_requests:
                    yield Shape("rows", requests, ROW_TOKENS, context)
                    yield Shape("quadratic", requests, QUADRATIC_TOKENS, context)
        for tokens in self.prefill_tokens:
            yield Shape("prefill", 1, tokens, 0)


def cache_bytes(config: ModelConfig, shape: Shape, itemsize: int) -> int:
    """Bytes of keys and values that a shape needs."""
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * itemsize
    return per_token * shape.requests * (shape.context + shape.tokens)


class CachePool:
    """One allocation, on which the caches of all shapes lie: forwards run one after the other."""

    def __init__(self, decoder: Decoder, num_bytes: int) -> None:
        self.decoder = decoder
        half = num_bytes // (2 * decoder.dtype.itemsize)
        # drawn, not zero: matrix products run faster on zeros than on real data
        self.keys, self.values = (torch.empty(half, dtype=decoder.dtype, device=decoder.device) for _ in range(2))
        for part in (*self.keys.split(2**28), *self.values.split(2**28)):
            part.normal_()

    def cache(self, shape: Shape) -> KVCache:
        """A cache for one shape."""
        config = self.decoder.config
        size = (config.num_layers, shape.requests, config.num_kv_heads, shape.context + shape.tokens, config.head_dim)
        count = int(np.prod(size))
        return KVCache.over(self.keys[:count].view(size), self.values[:count].view(size))


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: ``repeats`` passes over all shapes, of which ``seconds`` cut all but the first two.

    In a pass a shape is replayed for ``least_s`` seconds, and once at least.
    """

    repeats: int
    least_s: float
    seconds: float = math.inf

    def another(self, done: int, spent_s: float) -> bool:
        """Whether to go on after ``done`` passes in ``spent_s``, if the next one takes as long as they did."""
        if done < min(2, self.repeats):
            return True
        return done < self.repeats and spent_s * (done + 1) / done <= self.seconds


def timed(forward: UniformForward, least_s: float) -> float:
    """Seconds of one forward, timed on the device: a warm-up, one replay, and more where one does not fill least_s."""
    replay = forward.replay
    replay()
    clock = device_seconds if forward.ids.is_cuda else wall_seconds
    once = clock(replay, 1)
    return once if once >= least_s else clock(replay, math.ceil(least_s / max(once, 1e-6)))


@dataclass(frozen=True, slots=True)
class Timing:
    """``repeats`` measurements of a shape: their median, and half the distance of the quartiles."""

    median_s: float
    spread_s: float
    repeats: int


def summary(samples: Sequence[float]) -> Timing:
    """The timing of one shape from its repeats."""
    low, median, high = np.percentile(samples, (25, 50, 75))
    return Timing(float(median), float(high - low) / 2, len(samples))


def measure(
    decoder: Decoder, shapes: Sequence[Shape], effort: Effort, say: Callable[[str], None]
) -> Iterator[dict[Shape, Timing]]:
    """The timing of every shape so far, after each pass but the first of several.

    The repeats are interleaved and shuffled: a drift of the clock meets all shapes alike.
    """
    forwards = _ready(decoder, shapes)
    say(f"{len(forwards)} shapes ready")
    samples: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    order = np.random.default_rng(0)
    started, done = time.monotonic(), 0
    while effort.another(done, time.monotonic() - started):
        for index in order.permutation(len(shapes)):
            samples[shapes[index]].append(timed(forwards[shapes[index]], effort.least_s))
        done += 1
        say(f"pass {done} of {effort.repeats}: {time.monotonic() - started:.1f} s so far")
        if done >= min(2, effort.repeats):
            yield {shape: summary(found) for shape, found in samples.items()}


def _ready(decoder: Decoder, shapes: Sequence[Shape]) -> dict[Shape, UniformForward]:
    """A forward for every shape on one pool of memory, captured where there is a GPU."""
    pool = CachePool(decoder, max(cache_bytes(decoder.config, shape, decoder.dtype.itemsize) for shape in shapes))
    forwards = {
        shape: UniformForward(decoder, pool.cache(shape), shape.requests, shape.tokens, shape.context, shape.kind)
        for shape in shapes
    }
    if decoder.device.type == "cuda":
        memory = torch.cuda.graph_pool_handle()
        for forward in forwards.values():
            forward.capture(memory)
    return forwards


def rows(timings: dict[Shape, Timing]) -> list[Row]:
    """Profile rows, in microseconds, of forward times."""
    return [
        Row(
            shape.kind,
            shape.requests,
            shape.requests * shape.tokens,
            shape.requests * shape.context,
            round(timing.median_s * 1e6, 3),
            round(timing.spread_s * 1e6, 3),
            timing.repeats,
        )
        for shape, timing in timings.items()
    ]
