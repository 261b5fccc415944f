"""What verification told of each request, round after round, for policies that look back (paper, section 5.2)."""

from collections.abc import Sequence
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


class History:
    """Figures of every request, by the number that it was sent under."""

    def __init__(self, entropy: Floats, signal: Signal) -> None:
        self.signal = signal
        self._sums = np.concatenate([[0.0], np.cumsum(entropy)])
        self._table = np.zeros((4, 0))

    def of(self, ids: Sequence[int]) -> Floats:
        """[4, requests] Entropy of the last round, of the one before it (both NaN before there was one), draft tokens
        matched so far, and draft tokens checked so far."""
        self._grow(max(ids, default=-1))
        return self._table[:, np.asarray(ids, np.int64)]

    def forget(self, sent: int) -> None:
        """Nothing is known of this request."""
        self._grow(sent)
        self._table[:, sent] = (np.nan, np.nan, 0, 0)

    def tell(self, ids: Sequence[int], at: Ints, block_size: Ints | int, emitted: Ints) -> None:
        """A round of these requests ended, which started at these rows of ``Rounds``."""
        self._grow(max(ids, default=-1))
        where = np.asarray(ids, np.int64)
        count = self.signal.decisions(emitted, block_size)
        table = self._table
        table[ENTROPY_BEFORE, where] = table[ENTROPY, where]
        table[ENTROPY, where] = (self._sums[at + count] - self._sums[at]) / count
        drafts = np.asarray(block_size) - 1
        table[MATCHED, where] += np.minimum(emitted - 1, drafts)
        table[CHECKED, where] += np.minimum(emitted, drafts)

    def _grow(self, sent: int) -> None:
        missing = sent + 1 - self._table.shape[1]
        if missing > 0:
            fresh = np.zeros((4, max(missing, 64, self._table.shape[1])))
            fresh[:2] = np.nan
            self._table = np.concatenate([self._table, fresh], axis=1)
