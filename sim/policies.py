"""Choosing the next block size of every running request (paper, sections 5.2 and 6.1).

A policy is a function of outcomes. It gives one block size for each request, or a single one for all of them; 1 means
an AR step, one decode forward.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from recguide.sim.costs import CostModel
from recguide.sim.history import PAPER, Floats, Signal
from recguide.sim.rounds import AR, Ints, Rounds


@dataclass(slots=True)
class Tally:
    """Rounds of requests at one block size so far."""

    rounds: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Of steps, shared out among their requests evenly."""


@dataclass(slots=True)
class Outcomes:
    """All that a policy may see: what is known of the running requests, one entry each, while it is called."""

    request: Ints
    """Which one of the served requests."""
    tokens: Ints
    """Output tokens so far."""
    block_size: Ints
    """Of the last round, 1 after an AR step; 0 before the first."""
    accept_len: Ints
    """Of the last round; 0 before the first."""
    context_tokens: int = 0
    """Cached tokens, summed over the running requests."""
    entropy: Floats | None = None
    """Mean over the last round's decisions of the verifier, in nats; NaN before the first round.

    This and what follows is there for policies with a ``signal`` alone.
    """
    entropy_before: Floats | None = None
    """Of the round before that; NaN before the second."""
    matched: Floats | None = None
    """Draft tokens that were accepted so far."""
    checked: Floats | None = None
    """Draft tokens that were accepted, or were the first rejected one of a round, so far."""
    tallies: Mapping[int, "Tally"] = field(default_factory=dict)
    """By block size: what the server has got out of it, all requests together."""

    @property
    def running(self) -> int:
        """Requests running at this step."""
        return len(self.request)


@dataclass(frozen=True, slots=True)
class Informed:
    """A block policy that looks at the verifier's entropy, at acceptance so far, or at tallies."""

    choose: "BlockPolicy"
    signal: Signal = PAPER

    def __call__(self, seen: Outcomes) -> "int | Ints":
        """The block sizes that the function chooses."""
        return self.choose(seen)


BlockPolicy = Callable[[Outcomes], int | Ints]


@dataclass(frozen=True, slots=True)
class Fixed:
    """One block size for every request at all times."""

    block_size: int

    def __call__(self, seen: Outcomes) -> int:
        """The block size."""
        return self.block_size


ar = Fixed(AR)
"""No drafts: every forward emits one token a request."""


def fixed(block_size: int) -> Fixed:
    """Every request drafts a block of this size, as vanilla self-speculation does."""
    return Fixed(block_size)


@dataclass(frozen=True, slots=True)
class ByLoad:
    """One block size for all, by the number of running requests."""

    ranges: tuple[tuple[int | None, int], ...]
    """Requests running at the step, up to which a block size holds, ascending; the last one holds for more, too."""

    def __call__(self, seen: Outcomes) -> int:
        """The block size of the running requests."""
        return self.at(seen.running)

    def at(self, running: int) -> int:
        """The block size at so many running requests."""
        return next((size for most, size in self.ranges if most is None or running <= most), self.ranges[-1][1])


RECIPE = ((4, 32), (32, 16), (None, 8))
"""The model family's official serving recipe."""
recipe = ByLoad(RECIPE)
"""One block size for all, smaller the more requests are running."""


def oracle(rounds: Rounds, costs: CostModel) -> BlockPolicy:
    """The block sizes that emit the most tokens per second of their round, from the recorded future.

    Either each request has its own best B, found as if all the running ones used it, and the batch splits into
    buckets; or the best B for all of them, where splitting costs more than it gains. AR steps are a choice too. It
    looks one round ahead: where a round leaves a request is no part of the choice.
    """
    sizes = np.array(sorted(rounds.emitted))
    emitted = np.stack([rounds.emitted[int(size)] for size in sizes])

    def choose(seen: Outcomes) -> int | Ints:
        seconds = [round_s(costs, size, seen, seen.running) for size in sizes.tolist()]
        progress = emitted[:, rounds.first[seen.request] + seen.tokens]
        speed = progress / np.array(seconds)[:, None]
        own = speed.argmax(axis=0)
        counts = Counter(own.tolist())
        if len(counts) == 1:
            return int(sizes[own[0]])
        together = speed.sum(axis=1)
        split_s = sum(round_s(costs, int(sizes[i]), seen, count) for i, count in counts.items())
        if progress[own, np.arange(seen.running)].sum() / split_s > together.max():
            return np.asarray(sizes[own])
        return int(sizes[together.argmax()])

    return choose


def round_s(costs: CostModel, block_size: int, seen: Outcomes, count: int) -> float:
    """Seconds of a round of ``count`` of the running requests, with their share of the context."""
    seconds = costs.round_curve(block_size, count)(seen.context_tokens * count / seen.running)
    # where everything is free, the round with the most tokens is the best
    return seconds or 1e-12
