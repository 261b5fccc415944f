"""Steps of the serving engine where a place of the grid says, and what each of them tells of."""

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from recguide.engine.outcomes import Change
from recguide.engine.places import LAYOUT_BLOCK, Place
from recguide.engine.requests import Held, Live, Wish
from recguide.engine.scheduler import Part
from recguide.engine.serving import MANY
from recguide.engine.station import Station
from recguide.engine.ways import Planned
from recguide.sim.overlap import CONTINUED
from recguide.sim.rounds import AR

Key = tuple[str, int, int, int]
"""Kind, requests, query tokens and context tokens of a profile's row, the last two summed over requests."""

SAMPLES = 8
"""Steps of a visit, at most."""


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

    At least once: graphs are captured by it, and brought to the device. Requests stand where they stood.
    """
    prefills = place.method == "prefill"
    work = partial(_prefill, station, place) if prefills else partial(_run, station, _work(station, place))
    work()
    while time.monotonic() < until:
        work()


def _work(station: Station, place: Place) -> list[Planned]:
    """One step of each kind that is told of."""
    running = station.scheduler.running
    planned = station.scheduler.find_pages(lambda: station.way.plan(running, station.steps))
    if place.method != "rows":
        return [planned]
    # that one drafts, for nobody holds a draft yet
    whole = place.requests * place.size
    return [planned, *(each for each in station.way.rehearse(running) if each.work.query_tokens == whole)]


def _run(station: Station, work: Sequence[Planned]) -> None:
    for planned in work:
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
    """One step over prompts of like lengths, with other tokens at every position; who sends them takes no time."""
    with station.stoppable.standing_still():
        tokens = np.arange(place.size) * 7919 % station.decoder.config.vocab_size
        prompts = np.array_split(tokens, place.requests)
        lives = [station.add(prompt.tolist(), Wish(2, eos_ids=())) for prompt in prompts]
    station.step()
    with station.stoppable.standing_still():
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
