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
from recguide.engine.outcomes import Change
from recguide.engine.requests import Held, Live, Wish
from recguide.engine.scheduler import Part
from recguide.engine.serving import MANY, EngineConfig
from recguide.engine.station import Station
from recguide.sim.batching import BUCKETED
from recguide.sim.costs import Row
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy
from recguide.sim.overlap import CONTINUED, Overlap
from recguide.sim.policies import Fixed
from recguide.sim.rounds import AR
from recguide.sim.tidar import Tidar

Key = tuple[str, int, int, int]
"""Kind, requests, query tokens and context tokens of a profile's row, the last two summed over requests."""

LAYOUTS = "rows", "quadratic"
LAYOUT_BLOCK = 16
"""The block size at which layouts of several rows are measured."""
MOST_ROWS = 4
"""A verifier's row and three branches."""
ROW_TOKENS = 16, 32, 48, 64, 128
"""At block size 16 one row to four, and four at 32; the first is for drafts that are made alone."""
PROMPTS = 1, 4, 12
"""That share a prefill."""
SAMPLES = 8
"""Steps of a visit, at most."""
QUADRATIC_TOKENS = LAYOUT_BLOCK * (LAYOUT_BLOCK + 1)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Requests that are alike: how they are served, how many they are, and the tokens that each has cached.

    ``size`` is the block size of linear rounds, 1 for AR steps, the query tokens of a request under "rows" and
    "quadratic", and those of all prompts under "prefill".
    """

    method: str
    requests: int
    size: int
    context: int

    @property
    def policy(self) -> Policy:
        """One whose steps are those to be timed."""
        if self.method == "rows":
            # hardly a position is sure, so there are as many branches as there may be
            rows = self.size // self.block_size
            return Overlap(self.block_size, 255 / 256, max(rows - 2, 0), "always" if rows > 1 else "never")
        return Tidar(LAYOUT_BLOCK) if self.method == "quadratic" else Fixed(self.size)

    @property
    def block_size(self) -> int:
        """Of rows: the smallest with which so many tokens are a verifier's row and three branches at most."""
        return LAYOUT_BLOCK if self.size <= MOST_ROWS * LAYOUT_BLOCK else self.size // MOST_ROWS


@dataclass(frozen=True, slots=True)
class Grid:
    """What to measure. Layouts for low load (rows, quadratic) are measured up to ``layout_requests`` requests."""

    requests: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    contexts: tuple[int, ...] = (64, 512, 2048)
    block_sizes: tuple[int, ...] = (4, 8, 16, 32)
    prefill_tokens: tuple[int, ...] = (16, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
    layout_requests: int = 8
    layouts: tuple[str, ...] = LAYOUTS

    def places(self) -> Iterator[Place]:
        """Everywhere to measure."""
        for requests in self.requests:
            for context in self.contexts:
                for size in (AR, *self.block_sizes):
                    yield Place("linear", requests, size, context)
                if requests <= self.layout_requests:
                    yield from self._layouts(requests, context)
        for tokens in self.prefill_tokens:
            for prompts in PROMPTS:
                if prompts <= min(tokens, max(self.requests)):
                    yield Place("prefill", prompts, tokens, 0)

    def _layouts(self, requests: int, context: int) -> Iterator[Place]:
        if "rows" in self.layouts:
            for tokens in ROW_TOKENS:
                yield Place("rows", requests, tokens, context)
        if "quadratic" in self.layouts:
            yield Place("quadratic", requests, QUADRATIC_TOKENS, context)


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
    each = max(grid.contexts) + max(*ROW_TOKENS, *grid.block_sizes) + 2 * SAMPLES
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


def measure(station: Station, grid: Grid, effort: Effort, say: Callable[[str], None]) -> Iterator[dict[Key, Timing]]:
    """The timing of every row so far, after each pass but the first of several.

    The repeats are interleaved and shuffled: a drift of the clock meets all places alike.
    """
    places = list(grid.places())
    samples: dict[Key, list[float]] = {}
    order = np.random.default_rng(0)
    started, done = time.monotonic(), 0
    while effort.another(done, time.monotonic() - started):
        for index in order.permutation(len(places)):
            for row, seconds in visit(station, places[index], effort.least_s, effort.warm_s).items():
                samples.setdefault(row, []).append(seconds)
        done += 1
        say(f"pass {done} of {effort.repeats}: {time.monotonic() - started:.1f} s so far")
        if done >= min(2, effort.repeats):
            yield {row: summary(found) for row, found in samples.items()}


class _Standing:
    """In the place of prefills: requests run at once, and their caches hold whatever lies there.

    Their first tokens differ, for a GPU needs less power for the same numbers over and over.
    """

    def __init__(self, held: bool, vocab_size: int) -> None:
        self.held, self.vocab_size = held, vocab_size
        self.rng = np.random.default_rng(0)

    def run(self, parts: Sequence[Part]) -> list[Change]:
        """The first token of each request."""
        tokens = self.rng.integers(0, self.vocab_size, len(parts)).tolist()
        pairs = zip(parts, tokens, strict=True)
        return [Change(live, 0, 1, [token], [0.0], 0, self._draft(live)) for (live, _), token in pairs]

    def _draft(self, live: Live) -> Held | None:
        nothing, levels = np.ones(LAYOUT_BLOCK, np.int64), np.zeros(LAYOUT_BLOCK, np.uint8)
        return Held(nothing, nothing, nothing, levels, levels, CONTINUED, live.known) if self.held else None


def visit(station: Station, place: Place, least_s: float, warm_s: float = 0.0) -> dict[Key, float]:
    """Seconds of each row that steps at a place tell of: the median over the steps of this visit."""
    station.turn_to(place.policy, place.requests)
    lives: list[Live] = []
    if place.method != "prefill":
        lives = _standing(station, place)
    if warm_s > 0:
        _warm(station, place, time.monotonic() + warm_s)
    first = steps = station.steps
    started = time.monotonic()
    # one step more than count: how long the host takes to get to the next one is part of a step
    while steps < first + 3 or (steps <= first + SAMPLES and time.monotonic() - started < least_s):
        if place.method == "prefill":
            _prefill(station, place)
        else:
            station.step()
        steps += 1
    for live in lives:
        station.cancel(live)
    found: dict[Key, list[float]] = {}
    for step in range(first, steps - 1):
        for row, seconds in _told(station, place, step).items():
            found.setdefault(row, []).append(seconds)
    return {row: float(np.median(samples)) for row, samples in found.items()}


def _warm(station: Station, place: Place, until: float) -> None:
    """Keep the GPU busy with this work: where it draws more power than it may for long, it slows down after a while.

    Nothing changes by it: requests stand where they stood.
    """
    if place.method == "prefill":
        while time.monotonic() < until:
            _prefill(station, place)
        return
    running = station.scheduler.running
    planned = station.scheduler.find_pages(lambda: station.way.plan(running, station.steps))
    while time.monotonic() < until:
        station.way.run(planned)
        station.way.draft_seconds(planned, 0.0)
        station.forwards.spent()


def _standing(station: Station, place: Place) -> list[Live]:
    """Requests that run, and will have so many tokens cached about half of the visit's steps from now."""
    prompt = [1] * max(place.context - SAMPLES // 2, 1)
    lives = [station.add(prompt, Wish(MANY, eos_ids=())) for _ in range(place.requests)]
    own, station.prefills = station.prefills, _Standing(place.method == "quadratic", station.decoder.config.vocab_size)  # type: ignore[assignment]
    while station.scheduler.waiting:
        station.step()
    station.prefills = own
    return lives


def _prefill(station: Station, place: Place) -> None:
    """One step over prompts of like lengths, with other tokens at every position."""
    tokens = np.arange(place.size) * 7919 % station.decoder.config.vocab_size
    prompts = np.array_split(tokens, place.requests)
    lives = [station.add(prompt.tolist(), Wish(2, eos_ids=())) for prompt in prompts]
    station.step()
    for live in lives:
        station.cancel(live)


def _told(station: Station, place: Place, number: int) -> dict[Key, float]:
    """What one step says: of its forwards by the device's clock, and of the host up to the next step."""
    log = station.log
    assert log.log is not None
    step, following = log.log.steps[number], log.log.steps[number + 1]
    draft_s, forward_s = log.draft_s[number], log.forward_s[number]
    whole_s = following.start_s - step.start_s
    host_s = max(whole_s - forward_s, 0.0)
    count, context = place.requests, place.requests * place.context
    if place.method == "prefill":
        # the simulator knows no host's time of a prefill's own
        return {("prefill", count, place.size, 0): whole_s}
    tokens = count * place.size
    if place.method == "linear" and place.size == AR:
        return {("decode", count, tokens, context): forward_s, ("host", count, tokens, 0): host_s}
    if place.method == "linear":
        halves = {"draft": draft_s, "verify": forward_s - draft_s}
        timed = {(kind, count, tokens, context): seconds for kind, seconds in halves.items()}
        return {**timed, ("host", count, tokens, 0): host_s}
    return _of_layout(place, step.query_tokens, forward_s, host_s)


def _of_layout(place: Place, tokens: int, forward_s: float, host_s: float) -> dict[Key, float]:
    """The same of a step of one forward. One that only drafts costs what any draft costs, but for the host."""
    count, context = place.requests, place.requests * place.context
    if place.method == "quadratic":
        timed = {("quadratic", count, tokens, context): forward_s, ("host-quadratic", count, tokens, 0): host_s}
        return timed if tokens == count * place.size else {}
    if not tokens:
        return {("host-rows", count, count * place.size, 0): host_s} if place.size == LAYOUT_BLOCK else {}
    timed = {("rows", count, tokens, context): forward_s, ("host-rows", count, tokens, 0): host_s}
    return timed if place.size > LAYOUT_BLOCK and tokens == count * place.size else {}


def rows(timings: Mapping[Key, Timing]) -> list[Row]:
    """Profile rows, in microseconds, of these times."""
    return [
        Row(*key, round(timing.median_s * 1e6, 3), round(timing.spread_s * 1e6, 3), timing.repeats)
        for key, timing in timings.items()
    ]
