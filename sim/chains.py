"""Requests followed round by round to their ends, many at once and without a clock.

Most policies look at a request's own rounds and at how many others run, and at nothing else. While that number stays
on one side of what the policy distinguishes, a request's rounds follow from where it stands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from recguide.sim.adaptive import Equation3, certainty
from recguide.sim.history import Floats, Signal
from recguide.sim.methods import Policy
from recguide.sim.oneforward import OneForward, look
from recguide.sim.online import Window
from recguide.sim.overlap import Bools, Outcome
from recguide.sim.policies import ByLoad, Fixed
from recguide.sim.rounds import AR, Ints, Rounds

Choose = Callable[[int, Ints, Ints, Floats], int | Ints]
"""The next block sizes: from the load, the last block sizes (0: none yet), what they emitted, and certainty s."""


@dataclass(frozen=True, slots=True)
class OwnChoices:
    """A block policy that looks at a request's own rounds and at the load."""

    load_of: Callable[[int], int]
    """What it distinguishes among numbers of running requests."""
    choose: Choose
    signal: Signal | None = None
    uniform: bool = False
    """Whether all requests get the same block size, which is then the load."""


def own_choices(policy: Policy) -> OwnChoices | None:
    """Such a policy as its parts, or None for one that may look at more."""
    if isinstance(policy, Fixed):
        return OwnChoices(lambda running: policy.block_size, lambda load, *_: load, uniform=True)
    if isinstance(policy, ByLoad):
        return OwnChoices(policy.at, lambda load, *_: load, uniform=True)
    if isinstance(policy, Window):
        return OwnChoices(lambda running: 0, lambda load, last, emitted, s: policy.after(last, emitted))
    if isinstance(policy, Equation3):

        def choose(load: int, last: Ints, emitted: Ints, s: Floats) -> Ints:
            return policy.choose_at(load, s, last, emitted == last)

        return OwnChoices(policy.load_of, choose, policy.signal)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where requests stand: [requests] each."""

    at: Ints
    """Row of ``Rounds`` of the next round."""
    last_at: Ints
    """Row and block size of the last round; size 0: there was none."""
    last_size: Ints
    before_at: Ints
    """And of the round before that."""
    before_size: Ints

    def and_then(self, other: "Standing") -> "Standing":
        """These requests, and behind them the others."""
        pairs = ((getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return Standing(*map(np.concatenate, pairs))


def standing_at(at: Ints) -> Standing:
    """Before the first round."""
    none = np.zeros_like(at)
    return Standing(at, none, none, none, none)


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """What requests do, an entry each time: all of the first request in order, then all of the second, and so on."""

    counts: Ints
    """[requests] Entries of each."""
    at: Ints
    """Row of ``Rounds``."""
    block_size: Ints
    query_tokens: Ints
    drafts: Bools
    """Whether it is a draft by itself, which emits nothing."""
    emitted: Ints
    outcome: Ints
    """``Outcome`` flags."""


class LinearChains:
    """Follows requests that draft, then verify."""

    def __init__(self, rounds: Rounds, own: OwnChoices, flagged: bool = False) -> None:
        self.rounds, self.own, self.flagged = rounds, own, flagged
        self._rows = len(rounds.finished)
        self._known = sorted(rounds.emitted)
        self._place = np.zeros(self._known[-1] + 1, np.int64)
        self._place[self._known] = np.arange(len(self._known))
        # a block has 32 tokens at most
        self._emitted = np.concatenate([rounds.emitted[size].astype(np.uint8) for size in self._known])
        self._sums = np.concatenate([[0.0], np.cumsum(rounds.entropy)]) if own.signal else np.zeros(0)

    def follow(self, load: int, standing: Standing) -> Chains:
        """All rounds from there on."""
        if self.own.uniform:
            self.rounds.check(load)
        who, at, last = np.arange(len(standing.at)), standing.at, standing.last_size
        emitted, entropy = self._before(standing.last_at, last)
        _, before = self._before(standing.before_at, standing.before_size)
        found: list[tuple[Ints, Ints, Ints, Ints]] = []
        going = ~self.rounds.finished[at]
        while count := np.count_nonzero(going):
            if count < len(going):
                who, at, last, emitted = who[going], at[going], last[going], emitted[going]
                entropy, before = entropy[going], before[going]
            # everyone has two rounds behind it by then
            s = certainty(entropy, before) if len(found) < 2 else -(entropy + before) / 2
            last = self._sizes(load, at, last, emitted, s)
            emitted = self._emitted_at(at, last)
            found.append((who, at, last, emitted))
            if self.own.signal:
                before, entropy = entropy, self._entropy(at, last, emitted)
            at = at + emitted
            going = ~self.rounds.finished.take(at)
        return self._chains(len(standing.at), found)

    def _sizes(self, load: int, at: Ints, last: Ints, emitted: Ints, s: Floats) -> Ints:
        wanted = self.own.choose(load, last, emitted, s)
        if self.rounds.largest is not None:
            return np.minimum(wanted, self.rounds.largest.take(at))
        return np.full(len(at), wanted) if isinstance(wanted, int) else wanted

    def _emitted_at(self, at: Ints, sizes: Ints) -> Ints:
        return self._emitted.take(self._place.take(sizes) * self._rows + at).astype(np.int64)

    def _before(self, at: Ints, sizes: Ints) -> tuple[Ints, Floats]:
        """What earlier rounds emitted, and their entropies: 0 and NaN where there was none."""
        emitted = self._emitted_at(at, sizes) * (sizes > 0)
        return emitted, np.where(sizes > 0, self._entropy(at, sizes, np.maximum(emitted, 1)), np.nan)

    def _entropy(self, at: Ints, sizes: Ints, emitted: Ints) -> Floats:
        """Mean over the decisions of rounds."""
        if self.own.signal is None:
            return np.zeros(len(at))
        count = self.own.signal.decisions(emitted, sizes)
        mean: Floats = (self._sums.take(at + count) - self._sums.take(at)) / count
        return mean

    def _chains(self, requests: int, found: list[tuple[Ints, Ints, Ints, Ints]]) -> Chains:
        counts, (at, size, emitted) = request_by_request(requests, found)
        outcome = np.zeros_like(at)
        if self.flagged:
            accepted = np.zeros_like(at)
            for one in set(size.tolist()):
                accepted[size == one] = self.rounds.accept_len[one][at[size == one]]
            outcome = (accepted > emitted) * Outcome.CUT.value + (size > AR) * Outcome.DRAFTED.value
        return Chains(counts, at, size, size, np.zeros(len(at), bool), emitted, outcome)


class OneForwardChains:
    """Follows requests whose every forward verifies a draft and makes the next one."""

    def __init__(self, rounds: Rounds, method: OneForward) -> None:
        self.rounds, self.method = rounds, method

    def follow(self, load: int, standing: Standing) -> Chains:
        """All forwards from there on; nobody holds a draft yet."""
        method, rows = self.method, self.method.num_rows
        who, entry = np.arange(len(standing.at)), standing.at
        found: list[tuple[Ints, Ints]] = []
        going = ~self.rounds.finished[entry]
        while going.any():
            who, entry = who[going], entry[going]
            found.append((who, entry))
            # whoever holds no draft takes that of the first source, after a draft forward or without one
            source = np.maximum(look(method.next_source, entry), 0)
            entry = source * rows + entry % rows + look(method.emitted, entry)
            going = ~self.rounds.finished.take(entry % rows)
        counts, (entry,) = request_by_request(len(standing.at), found)
        return self._with_drafts(counts, entry)

    def _with_drafts(self, counts: Ints, entry: Ints) -> Chains:
        """A round whose draft took a forward of its own has that forward before it."""
        method = self.method
        drafted = method.outcome.take(entry) & Outcome.DRAFTED.value != 0
        requests = np.repeat(np.arange(len(counts)), counts)
        counts = counts + np.bincount(requests[drafted], minlength=len(counts))
        place = np.repeat(np.arange(len(entry)), 1 + drafted)
        drafts = np.append(place[1:] == place[:-1], False)
        entry = entry[place]
        at = entry % method.num_rows
        size = method.block_size.take(at)
        return Chains(
            counts,
            at,
            size,
            np.where(drafts, size, look(method.query_tokens, entry)),
            drafts,
            np.where(drafts, 0, look(method.emitted, entry)),
            look(method.outcome, entry),
        )


def request_by_request(requests: int, found: Sequence[tuple[Ints, ...]]) -> tuple[Ints, tuple[Ints, ...]]:
    """From each time's entries, the request's number first in each, to those of one request after the other."""
    who, *columns = (np.concatenate(parts) for parts in zip(*found, strict=True))
    counts = np.bincount(who, minlength=requests)
    starts = np.cumsum(counts) - counts
    place = starts[who] + np.repeat(np.arange(len(found)), [len(part[0]) for part in found])
    ordered = tuple(np.zeros_like(column) for column in columns)
    for column, target in zip(columns, ordered, strict=True):
        target[place] = column
    return counts, ordered
