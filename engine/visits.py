"""Steps of the serving engine where a place of the grid says, and what each of them tells of."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from recguide.engine.halves import usable_tokens
from recguide.engine.places import LAYOUT_BLOCK, Place
from recguide.engine.requests import Wish
from recguide.engine.standing import SAMPLES, Standing, Walk, judge_of, look_back, move, stand
from recguide.engine.station import Station
from recguide.engine.ways import Planned
from recguide.sim.costs import HOST, PLANNERS
from recguide.sim.rounds import AR

Key = tuple[str, int, int, int]
"""Kind, requests, query tokens and context tokens of a profile's row, the last two summed over requests."""


def visit(station: Station, place: Place, least_s: float, warm_s: float = 0.0) -> dict[Key, float]:
    """Seconds of each row that steps at a place tell of: the median over the steps of this visit.

    These are as many as fill ``least_s``, but 2 at least and ``SAMPLES`` at most.
    """
    prefills = place.method == "prefill"
    found = _prefills(station, place, least_s, warm_s) if prefills else _rounds(station, place, least_s, warm_s)
    samples: dict[Key, list[float]] = {}
    for step in found:
        for row, seconds in _told(station, place, step).items():
            samples.setdefault(row, []).append(seconds)
    return {row: float(np.median(each)) for row, each in samples.items()}


def _prefills(station: Station, place: Place, least_s: float, warm_s: float) -> range:
    """Which steps tell of the prefills of a place."""
    station.turn_to(place.policy, place.requests)
    work = partial(_prefill, station, place)
    steps = min(_filling(least_s, _warm(station, [work], warm_s)), SAMPLES)
    return _steps(station, work, steps)


def _rounds(station: Station, place: Place, least_s: float, warm_s: float) -> range:
    """Which steps tell of the rounds of a place."""
    judge = judge_of(place, usable_tokens(station.decoder.config))
    station.turn_to(place.policy, place.requests + place.waiting, judge)
    walk, standing = Walk(place, station.max_context), Standing(judge, place)
    lives = stand(station, standing, walk.contexts(walk.steps))
    if place.method in PLANNERS:
        look_back(station, place)
    work = [partial(_run, station, planned) for planned in _work(station, place)]
    steps = min(_filling(least_s, _warm(station, work, warm_s)), walk.steps)
    # fewer steps begin later, for the same context in the mean
    move(station, standing, lives, walk.first(steps) - walk.first(walk.steps))
    if place.method in PLANNERS:
        look_back(station, place)
    told = _steps(station, station.step, steps)
    for live in lives:
        station.cancel(live)
    return told


def _filling(least_s: float, step_s: float) -> int:
    """The even number of steps that fills so many seconds."""
    return 2 * max(1, min(SAMPLES, int(least_s / max(step_s, 1e-9))) // 2)


def _steps(station: Station, step: Callable[[], object], count: int) -> range:
    """Take so many steps, and one more: how long the host takes to get to the next one is part of a step."""
    first = station.steps
    for _ in range(count + 1):
        step()
    return range(first, first + count)


def _warm(station: Station, work: Sequence[Callable[[], object]], warm_s: float) -> float:
    """Keep the GPU busy with this work: where it draws more power than it may for long, it slows down after a while.

    At least once: graphs are captured by it, and brought to the device. Requests stand where they stood. Gives the
    seconds of the fastest of all.
    """
    until, fastest = time.monotonic() + warm_s, math.inf
    while fastest == math.inf or time.monotonic() < until:
        started = station.now
        for each in work:
            each()
        fastest = min(fastest, (station.now - started) / len(work))
    return fastest


def _work(station: Station, place: Place) -> list[Planned]:
    """One step of each kind that is told of."""
    running = station.scheduler.running
    planned = station.scheduler.find_pages(lambda: station.way.plan(running, station.steps))
    if place.method != "rows":
        return [planned]
    # that one drafts, for nobody holds a draft yet
    whole = place.requests * place.size
    return [planned, *(each for each in station.way.rehearse(running) if each.work.query_tokens == whole)]


def _run(station: Station, planned: Planned) -> None:
    station.way.run(planned)
    station.way.draft_seconds(planned, 0.0)
    station.forwards.spent()


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
    if place.method in PLANNERS:
        # their forwards are those of other places
        return {(HOST[place.method], count, tokens, 0): host_s}
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
