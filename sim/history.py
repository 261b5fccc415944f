"""What verification told of each request, round after round, for policies that look back (paper, section 5.2)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.sim.rounds import Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Signal:
    """Over which of the verifier's decisions in a round its entropy is averaged.

    The paper takes all causally valid ones: those up to the first rejected draft token, whose place is the
    verifier's own token, and the bonus token after a fully accepted block.
    """

    head: int | None = None
    """Only the first few of them."""
    bonus: bool = True
    """Whether the bonus token is one of them."""

    def decisions(self, emitted: Ints, block_size: Ints | int) -> Ints:
        """How many decisions of a round count, at least 1."""
        counted = emitted if self.bonus else emitted - ((emitted == block_size) & (emitted > 1))
        return counted if self.head is None else np.minimum(counted, self.head)


PAPER = Signal()
ENTROPY, ENTROPY_BEFORE, MATCHED, CHECKED = range(4)
NOTHING: tuple[float, ...] = (np.nan, np.nan, 0.0, 0.0)
"""The figures of a request without a round behind it."""


class History:
    """How the figures of each running request change, which are a column of floats for each.

    They are the entropy of the last round and of the one before it (both NaN before there was one), draft tokens
    matched so far, and draft tokens checked so far.
    """

    def __init__(self, entropy: Floats, signal: Signal) -> None:
        self.signal = signal
        self._sums = np.concatenate([[0.0], np.cumsum(entropy)])

    def tell(self, figures: Floats, places: Ints | None, at: Ints, block_size: Ints | int, emitted: Ints) -> None:
        """Rounds of the requests in these columns (None: of all) ended, which started at these rows of ``Rounds``."""
        count = self.signal.decisions(emitted, block_size)
        mean = (self._sums.take(at + count) - self._sums.take(at)) / count
        tell(figures, places, mean, block_size, emitted)


def tell(figures: Floats, places: Ints | None, mean: Floats, block_size: Ints | int, emitted: Ints) -> None:
    """Rounds of the requests in these columns (None: of all) ended, with these means of the verifier's entropy."""
    drafts = block_size - 1
    matched, checked = np.minimum(emitted - 1, drafts), np.minimum(emitted, drafts)
    if places is None:
        figures[ENTROPY_BEFORE] = figures[ENTROPY]
        figures[ENTROPY] = mean
        figures[MATCHED] += matched
        figures[CHECKED] += checked
    else:
        figures[ENTROPY_BEFORE, places] = figures[ENTROPY, places]
        figures[ENTROPY, places] = mean
        figures[MATCHED, places] += matched
        figures[CHECKED, places] += checked
