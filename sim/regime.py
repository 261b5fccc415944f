"""Overlap while few requests run, blocks by certainty when more do (paper, sections 5 and 6.1)."""

from dataclasses import dataclass

import numpy as np

from recguide.sim.adaptive import Adaptive, Equation3
from recguide.sim.costs import CostModel
from recguide.sim.drafts import Key
from recguide.sim.history import Signal
from recguide.sim.oneforward import OneForward
from recguide.sim.overlap import Outcome, Overlap, overlap_tables
from recguide.sim.rounds import AR, Ints, Rounds
from recguide.sim.running import Running
from recguide.sim.sharing import Allocation
from recguide.sim.steps import Linear, Work

REUSE_SHARE = 0.6
"""Rounds whose draft came out of a branch: the paper's Table 3, NLD-8B, corrections and continuations together."""
MOST_REQUESTS = 128
TYPICAL_CONTEXT = 512
"""Cached tokens of a request, at which the two ways are compared."""


@dataclass(frozen=True, slots=True)
class Regime:
    """Which way runs at which load."""

    overlap: Overlap
    above: Equation3 | Allocation
    switch: int
    """Requests running at the step, up to which it is overlap."""

    @property
    def signal(self) -> Signal:
        """What the policy above the switch looks at."""
        return self.above.signal

    @property
    def keys(self) -> tuple[Key, ...]:
        """The recorded drafts that it plays."""
        return self.overlap.keys


def switch_point(costs: CostModel, block_size: int) -> int:
    """The most requests up to which overlapped rounds are faster than a draft and a verify, from the profile.

    A round then takes one forward, and a second one where nothing was reused; each has the rows of all branches.
    """
    for count in range(1, MOST_REQUESTS + 1):
        tokens, context = count * block_size, count * TYPICAL_CONTEXT
        rows_s = costs.forward_s("rows", count, 4 * tokens, context)
        apart_s = costs.curve(("draft", "verify"), count, tokens)(context)
        if (2 - REUSE_SHARE) * rows_s >= apart_s:
            return count - 1
    return MOST_REQUESTS


def low_load_rules(fitted: Adaptive) -> Overlap:
    """Overlap as the file has it for few requests; the paper's where it has none."""
    low = fitted.low_load
    return Overlap(low.block_size, low.delta) if low else Overlap()


def switch_of(fitted: Adaptive, costs: CostModel, block_size: int) -> int:
    """Requests up to which overlap at this block size runs: the file's number, or the profile's without one for it."""
    low = fitted.low_load
    return low.switch if low and low.block_size == block_size else switch_point(costs, block_size)


class Switching:
    """Plays each step by the requests running at it; a draft that was prepared before a switch is dropped with it."""

    def __init__(self, rounds: Rounds, costs: CostModel, rules: Regime, above: Linear) -> None:
        self.rounds, self.switch, self.above = rounds, rules.switch, above
        self.below = OneForward(overlap_tables(rounds, rules.overlap), costs, "rows")
        self.outcomes: list[int] | None = self.below.outcomes
        self._active: Linear | OneForward = above

    @property
    def rows(self) -> Ints | None:
        """Places of the requests that emit."""
        return self._active.rows

    def start(self, running: Running, step: int) -> Work:
        """Plan the step by the load."""
        self._active = self.below if len(running.ids) <= self.switch else self.above
        return self._active.start(running, step)

    def finish(self, running: Running, step: int) -> tuple[list[int], list[int]]:
        """End it."""
        if self._active is self.below:
            return self.below.finish(running, step)
        at = np.array(running.at_of(self.rows))
        tokens, sizes = self.above.finish(running, step)
        if self.outcomes is not None:
            self.outcomes += map(self._flags, at.tolist(), sizes, tokens)
        return tokens, sizes

    def _flags(self, at: int, size: int, tokens: int) -> int:
        cut = int(self.rounds.accept_len[size][at]) > tokens
        return cut * Outcome.CUT.value + (Outcome.DRAFTED.value if size > AR else 0)
