"""Requests walked through round by round, all at once and without a clock: what a choice of block sizes comes to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from recguide.sim.adaptive import Equation3, certainty
from recguide.sim.history import Floats, Signal
from recguide.sim.overlap import Bools
from recguide.sim.rounds import Ints, Rounds

Plan = Callable[[Floats, Ints, Bools], Ints]
"""The next block size of each request from its certainty s (NaN before the first round), and its last block size (0
before the first round) with whether that was fully accepted."""


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """Rounds, a column each: all first rounds of the requests, then all second ones, and so on."""

    request: Ints
    at: Ints
    """Row of ``Rounds``."""
    s: Floats
    last: Ints
    """The block size of the round before, 0 where there is none."""
    full: Bools
    """Whether that was fully accepted."""
    chosen: Ints
    """The round's own block size."""
    emitted: Ints

    def of(self, keep: Bools) -> "Walk":
        """The rounds that are to be kept."""
        return Walk(*(getattr(self, field.name)[keep] for field in fields(self)))

    def seconds(self, cost_s: Mapping[int, float], requests: int) -> Floats:
        """[requests] Seconds of each one's rounds, at so many seconds by block size."""
        lookup = np.zeros(64)
        for size, cost in cost_s.items():
            lookup[size] = cost
        seconds: Floats = np.bincount(self.request, lookup[self.chosen], requests).astype(np.float64)
        return seconds


def sums_of(rounds: Rounds) -> Floats:
    """Running sums of the verifier's entropy, for many walks over the same rounds."""
    return np.concatenate([[0.0], np.cumsum(rounds.entropy)])


def walk(rounds: Rounds, plan: Plan, signal: Signal, requests: Ints | None = None, sums: Floats | None = None) -> Walk:
    """Every round under a plan: of all requests, or of those named."""
    sums = sums_of(rounds) if sums is None else sums
    request = np.arange(len(rounds.first)) if requests is None else requests
    request = request[rounds.output_tokens[request] > 1]
    at = rounds.first[request] + 1
    entropy, before = np.full((2, len(request)), np.nan)
    last, full = np.zeros(len(request), np.int64), np.zeros(len(request), bool)
    visited = [Walk(request[:0], at[:0], entropy[:0], last[:0], full[:0], last[:0], at[:0])]
    while len(request):
        s = certainty(entropy, before)
        size = plan(s, last, full)
        if rounds.largest is not None:
            size = np.minimum(size, rounds.largest[at])
        emitted = _emitted(rounds, size, at)
        visited.append(Walk(request, at, s, last, full, size, emitted))
        count = signal.decisions(emitted, size)
        entropy, before = (sums[at + count] - sums[at]) / count, entropy
        at, last, full = at + emitted, size, emitted == size
        going = ~rounds.finished[at]
        request, at, entropy, before, last, full = (x[going] for x in (request, at, entropy, before, last, full))
    return Walk(*(np.concatenate([getattr(part, field.name) for part in visited]) for field in fields(Walk)))


def _emitted(rounds: Rounds, size: Ints, at: Ints) -> Ints:
    emitted = np.zeros(len(at), np.int64)
    for one in set(size.tolist()):
        here = size == one
        emitted[here] = rounds.emitted[one][at[here]]
    return emitted


def plan_of(policy: Equation3, load: int) -> Plan:
    """What the policy does at one of its loads, whatever the number of requests in flight."""

    def plan(s: Floats, last: Ints, full: Bools) -> Ints:
        return policy.choose_at(load, s, last, full)

    return plan


def always(size: int, s: Floats, last: Ints, full: Bools) -> Ints:
    """The plan of one block size for all rounds, once ``size`` is given."""
    return np.full(len(s), size)
