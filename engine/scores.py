"""What forwards found at the tokens that are scored, on the host, and drafts made of it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recguide.engine.requests import Held
from recguide.sim.overlap import SEEDED
from recguide.sim.rounds import Ints


class Scores(NamedTuple):
    """What the distributions at the scored tokens prefer; arrays of as many entries."""

    first: Ints
    """-1 where there is no distribution, because logits are NaN."""
    second: Ints
    second_no_eos: Ints
    margin: NDArray[np.uint8]
    """Steps of 1/256, as traces have them."""
    p1: NDArray[np.uint8]
    entropy: NDArray[np.float32]

    def at(self, where: slice | Ints) -> "Scores":
        """Some of the scores."""
        ids = self.first[where], self.second[where], self.second_no_eos[where]
        return Scores(*ids, self.margin[where], self.p1[where], self.entropy[where])

    def copy(self) -> "Scores":
        """The same in arrays of its own."""
        ids = self.first.copy(), self.second.copy(), self.second_no_eos.copy()
        return Scores(*ids, self.margin.copy(), self.p1.copy(), self.entropy)

    def part(self, first: int, end: int) -> "Scores":
        """The scores from one to before another."""
        return self.at(slice(first, end))


def scores_of(words: NDArray[np.int32]) -> Scores:
    """Scores out of :func:`packed_statistics`, int32 ``[6, scores]``, in arrays of their own."""
    first, second, second_no_eos = words[:3].astype(np.int64)
    margin, p1 = words[3:5].astype(np.uint8)
    return Scores(first, second, second_no_eos, margin, p1, words[5].view(np.float32).copy())


def blank(count: int) -> Scores:
    """So many scores that say nothing."""
    ids, levels = np.zeros(count, np.int64), np.zeros(count, np.uint8)
    return Scores(ids, ids, ids, levels, levels, np.zeros(count, np.float32))


def held_of(seed: int, found: Scores, cached: int, source: int = SEEDED) -> Held:
    """The draft whose B scores these are, with its seed in front."""
    tokens = found.first.copy()
    tokens[0] = seed
    return Held(tokens, found.second, found.second_no_eos, found.margin, found.p1, source, cached)


class Unmade(NamedTuple):
    """Drafts that were verified at once, for whoever still asks for one."""

    seeds: Ints
    """[drafts]"""
    found: Scores
    """[drafts * size]"""
    size: int
    cached: Ints

    def made(self, place: int) -> Held:
        """One of the drafts."""
        part = self.found.part(place * self.size, (place + 1) * self.size)
        return held_of(int(self.seeds[place]), part, int(self.cached[place]))


def is_broken(found: Scores, size: int, skip: int = 0) -> NDArray[np.bool_]:
    """Whether any of each ``size`` scores, the first few apart, comes from NaN."""
    broken: NDArray[np.bool_] = np.any(found.first.reshape(-1, size)[:, skip:] < 0, axis=1)
    return broken


def spread(starts: Ints, size: int) -> Ints:
    """Indices of ``size`` scores from each start on, one below the other."""
    indices: Ints = (starts[:, None] + np.arange(size)).ravel()
    return indices
