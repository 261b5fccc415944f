"""Requests that have so much behind them as a place says, and go on from there as served ones do."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recguide.engine.halves import Halves
from recguide.engine.outcomes import Change, apply
from recguide.engine.places import LAYOUT_BLOCK, Place
from recguide.engine.requests import Live, Wish
from recguide.engine.scheduler import Part
from recguide.engine.scores import blank, held_of
from recguide.engine.serving import MANY
from recguide.engine.station import Station
from recguide.sim.history import ENTROPY, ENTROPY_BEFORE
from recguide.sim.memory import Limits
from recguide.sim.overlap import CONTINUED
from recguide.sim.rounds import Ints

SAMPLES = 8
"""Steps of a visit, at most; always an even number of them."""
STAGGER = Limits().page_size // 2
"""Tokens that a request has more or less than the others in the mean: in any step some need a page, and not all."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How requests at a place go on while its steps are timed, so that their context in the mean is the place's.

    ``room`` is the longest context that there may be. Where a place is nearer to 1 or to this than its requests go in
    ``SAMPLES`` steps, there are fewer of them, and with 2 of them contexts are as near to the place's as may be.
    """

    place: Place
    room: int

    @property
    def steps(self) -> int:
        """Most steps that may be told of."""
        return next((steps for steps in range(SAMPLES, 2, -2) if self._fits(steps)), 2)

    def first(self, steps: int) -> int:
        """The context at the first one of so many, in the mean over the requests."""
        return max(1, min(self.place.context - self._below(steps), self.room - self._onward(steps)))

    def contexts(self, steps: int) -> Ints:
        """[requests, those that wait too] The context of each, the mean of which is :meth:`first`."""
        first, count = self.first(steps), self.place.requests + self.place.waiting
        half = min(STAGGER, first - 1)
        # towards 0, so that what one has more another one has less
        return first + np.trunc(half * ((2 * np.arange(count) + 1) / count - 1)).astype(np.int64)

    def most(self) -> int:
        """Tokens that there has to be room for behind the place's context."""
        return max(self._onward(steps) - self._below(steps) for steps in (2, SAMPLES))

    def _fits(self, steps: int) -> bool:
        first = self.place.context - self._below(steps)
        return STAGGER < first == self.first(steps)

    def _below(self, steps: int) -> int:
        """What a request goes on by in the mean over so many steps."""
        return round((self._rounds(steps) - 1) * self._span / 4)

    def _onward(self, steps: int) -> int:
        """What a request has more at most when the step behind so many plans its forwards, and what these add."""
        block_size = self.place.block_size
        added = block_size * (2 if self.place.method in ("rows", "quadratic") else 1)
        # a request whose block size changes may accept all of each
        span = 2 * block_size if self.place.method == "allocation" else self._span
        return STAGGER + -(-self._rounds(steps) // 2) * span + added

    def _rounds(self, steps: int) -> int:
        """Of so many steps; every other one of rows only drafts."""
        return steps // 2 if self.place.method == "rows" else steps

    @property
    def _span(self) -> int:
        """Tokens of two rounds, in the mean."""
        size = self.place.size if self.place.method == "allocation" else self.place.block_size
        return judge_of(self.place, np.arange(3)).span(size)


def judge_of(place: Place, usable: Ints) -> Halves:
    """Who says what a place's requests accept: under rows nothing that would let one of them hold a draft alone."""
    return Halves(usable, whole=place.method != "rows")


class Standing:
    """In the place of prefills: requests run at once, and their caches hold whatever lies there."""

    def __init__(self, judge: Halves, place: Place) -> None:
        self.judge, self.place = judge, place

    def run(self, parts: Sequence[Part]) -> list[Change]:
        """The first token of each request."""
        return [self.onward(live, 0, 1) for live, _ in parts]

    def onward(self, live: Live, block_size: int, count: int) -> Change:
        """So many tokens more, as a prefill or in a round at a block size, and the draft that is held behind them."""
        at, made = np.array([len(live.tokens)]), blank(count)
        tokens = self.judge.verified([live], at, count, made).first.tolist()
        held = None
        if self.place.method == "quadratic":
            found = self.judge.drafted([live], "continuation", at + count - 1, LAYOUT_BLOCK, blank(LAYOUT_BLOCK))
            held = held_of(tokens[-1], found, live.cached + count, CONTINUED)
        return Change(live, block_size, count, tokens, [0.0] * count, 0, held)


def stand(station: Station, standing: Standing, contexts: Ints) -> list[Live]:
    """Requests that run with so many tokens cached, [requests]."""
    lives = [station.add([1] * context, Wish(MANY)) for context in contexts.tolist()]
    own, station.prefills = station.prefills, standing  # type: ignore[assignment]
    while station.scheduler.waiting:
        station.step()
    station.prefills = own
    return lives


def look_back(station: Station, place: Place) -> None:
    """Let running requests be as if they had rounds behind them, in which the verifier was certain.

    The last round of those that are to wait was at no block size that the policy knows.
    """
    running = station.scheduler.running
    running.figures[[ENTROPY, ENTROPY_BEFORE]] = 0.0
    waits = np.diff(np.arange(len(running) + 1) * place.waiting // len(running))
    for live, wait in zip(running, waits.tolist(), strict=True):
        live.block_size, live.accept_len = (0, 0) if wait else (place.block_size, 1)
        # a step later than it is, so that nobody has waited for too long before all steps are over
        live.ran = station.steps + 1
    running.told_anew()


def move(station: Station, standing: Standing, lives: Sequence[Live], count: int) -> None:
    """Let running requests be so many tokens further, as if by a round that takes no time."""
    if count < 1:
        return
    size, many = standing.place.block_size, len(lives)
    standing.judge.start += count
    apply([standing.onward(live, size, count) for live in lives], None, station.steps)
    station.scheduler.running.moved(None, np.full(many, count), np.full(many, size), station.steps)
