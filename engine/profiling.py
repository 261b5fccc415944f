"""Measuring what steps cost on this machine, as the serving engine runs them (docs/profile.md).

Nothing is rebuilt for it: requests that stand where the grid says are put into an engine, and its own steps are timed,
forwards by the device's clock and everything else as the host's.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recguide.engine.model import Decoder
from recguide.engine.pinning import loop_s
from recguide.engine.places import LAYOUT_BLOCK, QUADRATIC_TOKENS, Grid
from recguide.engine.serving import EngineConfig
from recguide.engine.sizes import FillSizes
from recguide.engine.standing import SAMPLES, Walk
from recguide.engine.station import Station
from recguide.engine.visits import Key, visit
from recguide.sim.batching import BUCKETED
from recguide.sim.memory import Limits
from recguide.sim.profile_rows import PRODUCTS, Row, is_host

LOOPS = 3
"""Before a visit, and behind it."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: ``repeats`` passes over all places, of which ``seconds`` cut all but the first two.

    In a pass a place is visited for ``least_s`` seconds, but for 2 steps at least, once its work has kept the GPU busy
    for ``warm_s``.
    """

    repeats: int
    least_s: float
    seconds: float = math.inf
    warm_s: float = 0.0

    def another(self, done: int, spent_s: float) -> bool:
        """Whether to go on after ``done`` passes in ``spent_s``, if the next one takes as long as they did."""
        if done < min(2, self.repeats):
            return True
        return done < self.repeats and spent_s * (done + 1) / done <= self.seconds


@dataclass(frozen=True, slots=True)
class Timing:
    """``repeats`` measurements: their median, and half the distance of the quartiles."""

    median_s: float
    spread_s: float
    repeats: int


def summary(samples: Sequence[float]) -> Timing:
    """The timing of one shape from its repeats."""
    low, median, high = np.percentile(samples, (25, 50, 75))
    return Timing(float(median), float(high - low) / 2, len(samples))


def station_for(decoder: Decoder, grid: Grid) -> Station:
    """An engine with room for every place of a grid, whose cache holds random numbers.

    Drawn, not zero: matrix products run faster on zeros than on real data.
    """
    widest = max(QUADRATIC_TOKENS, *grid.block_sizes) + 2 * SAMPLES
    most = max(*grid.contexts, *grid.prefill_tokens) + 2 * widest
    each = max(Walk(place, most).most() + place.context for place in grid.places() if place.method != "prefill")
    pages = Limits().pages(max(most, max(grid.requests) * each)) + max(grid.requests)
    limits = Limits(max(grid.prefill_tokens), max_running=max(grid.requests), kv_pages=pages)
    sizes = tuple(sorted({*grid.block_sizes, *(place.block_size for place in grid.places() if place.method == "rows"),
                          LAYOUT_BLOCK}))  # fmt: skip
    config = EngineConfig(sizes, limits, most, BUCKETED)
    station = Station(decoder, [place.policy for place in grid.places()], config, time.perf_counter)
    for part in (station.forwards.cache.keys, station.forwards.cache.values):
        for layer in part:
            layer.normal_()
    return station


@dataclass(frozen=True, slots=True)
class Passed:
    """What the passes so far found."""

    timings: Mapping[Key, Timing]
    """The host's on a CPU on which the loop takes its median."""
    loop: Timing
    """Of the Python loop around every visit, which says how fast the CPU was (:func:`loop_s`)."""


def measure(station: Station, grid: Grid, effort: Effort, say: Callable[[str], None]) -> Iterator[Passed]:
    """The timing of every row so far, after each pass but the first of several.

    The repeats are interleaved and shuffled: a drift of the clock meets all places alike.
    """
    places = list(grid.places())
    samples: dict[Key, list[float]] = {}
    loops: list[float] = []
    order = np.random.default_rng(0)
    started, done = time.monotonic(), 0
    while effort.another(done, time.monotonic() - started):
        for index in order.permutation(len(places)):
            before = _loop_s()
            found = visit(station, places[index], effort.least_s, effort.warm_s)
            loops.append((before + _loop_s()) / 2)
            for row, seconds in found.items():
                samples.setdefault(row, []).append(seconds / loops[-1] if is_host(row[0]) else seconds)
        done += 1
        say(f"pass {done} of {effort.repeats}: {time.monotonic() - started:.1f} s so far")
        if done >= min(2, effort.repeats):
            yield _passed(samples, summary(loops))


def _loop_s() -> float:
    """Of a few loops, so that one that was interrupted does not tell."""
    return float(np.median([loop_s() for _ in range(LOOPS)]))


def _passed(samples: Mapping[Key, Sequence[float]], loop: Timing) -> Passed:
    """The host's samples are loops."""
    unit = {row: loop.median_s if is_host(row[0]) else 1.0 for row in samples}
    return Passed({row: summary([each * unit[row] for each in found]) for row, found in samples.items()}, loop)


def rows(timings: Mapping[Key, Timing]) -> list[Row]:
    """Profile rows, in microseconds, of these times."""
    return [
        Row(*key, round(timing.median_s * 1e6, 3), round(timing.spread_s * 1e6, 3), timing.repeats)
        for key, timing in timings.items()
    ]


def product_rows(sizes: FillSizes) -> list[Row]:
    """Rows of what products take at every size that was timed."""
    return rows({(PRODUCTS, 1, size, 0): summary(samples) for size, samples in sizes.products_s.items()})


def speed(loop: Timing) -> dict[str, str]:
    """What a profile's header says of the CPU."""
    return {"python_loop_us": f"{loop.median_s * 1e6:.0f}", "python_loop_spread_us": f"{loop.spread_s * 1e6:.0f}"}
