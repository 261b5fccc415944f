"""Who sends requests and when: all at once (a closed loop), at random times, or at the times of a file."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from recguide.sim.prefixes import Prefix
from recguide.sim.rounds import Rounds


class Arrival(NamedTuple):
    """One request that a client wants to send."""

    arrival_s: float
    row: int
    """The recorded request whose rounds it plays."""
    prompt_tokens: int
    output_tokens: int
    then: tuple[int, ...] = ()
    """Recorded requests that it goes on with, once ``row`` is played to its end."""
    prefix: Prefix | None = None
    """What its prompt begins with, where that is known and of use."""


class Clients:
    """Requests in order of arrival, at most ``limit`` of them in flight; the others wait at their client."""

    def __init__(self, arrivals: Iterable[Arrival], limit: int | None) -> None:
        self._arrivals = iter(arrivals)
        self.limit = math.inf if limit is None else limit
        self.next: Arrival | None = None
        self._read()

    def _read(self) -> None:
        last_s = self.next.arrival_s if self.next else 0.0
        self.next = next(self._arrivals, None)
        if self.next is not None and not last_s <= self.next.arrival_s < math.inf:
            raise ValueError(f"arrival_s: found {self.next.arrival_s} after {last_s}, allowed: ascending, 0 or more")

    def due(self, now: float, in_flight: int) -> Iterator[Arrival]:
        """The requests that are there by ``now`` and find a place."""
        while self.next is not None and self.next.arrival_s <= now and in_flight < self.limit:
            yield self.next
            in_flight += 1
            self._read()

    def rest(self) -> Iterator[Arrival]:
        """All that are still to come, in order."""
        while self.next is not None:
            yield self.next
            self._read()


def as_recorded(
    rounds: Rounds, order: Sequence[int], times: Iterable[float] | None = None, prefixes: Sequence[Prefix] = ()
) -> Iterator[Arrival]:
    """Recorded requests with their own lengths, by default all there at time 0; ``prefixes`` are [recorded]."""
    prompts, outputs = rounds.prompt_tokens, rounds.output_tokens
    clock = iter(times) if times is not None else None
    for row in order:
        prefix = prefixes[row] if prefixes else None
        yield Arrival(next(clock) if clock else 0.0, int(row), int(prompts[row]), int(outputs[row]), (), prefix)


def random_times(rate: float, burstiness: float | None, seed: int) -> Iterator[float]:
    """Seconds of arrivals at ``rate`` requests per second, without end; the first comes at 0.

    Gaps are Gamma distributed with shape ``burstiness``: 1 is a Poisson process, less is burstier, more is smoother.
    None makes all gaps equal. An infinite rate sends everything at 0.
    """
    rng = np.random.default_rng(seed)
    now = 0.0
    while True:
        yield now
        if math.isinf(rate):
            continue
        now += 1 / rate if burstiness is None else float(rng.gamma(burstiness, 1 / (rate * burstiness)))
