"""Policies that choose by certainty, for steps that are to be timed: the real ones over a small fit that is made up."""

from functools import cache
from itertools import cycle

import numpy as np

from recguide.sim.adaptive import ALL, CANDIDATES, Adaptive, Equation3, Load, adaptive, stratum
from recguide.sim.costs import linear_costs
from recguide.sim.fitting import BINS, CONCURRENCIES
from recguide.sim.history import PAPER
from recguide.sim.policies import Outcomes
from recguide.sim.rounds import Ints
from recguide.sim.sharing import Allocation

COSTS = linear_costs(5e-3, 1e-5, 1e-8, 3e-4)
"""About those of an 8B shape on an H200: blocks pay at any load."""


def made_up_fit(candidates: tuple[int, ...], wanted: int | None = None) -> Adaptive:
    """As many tables as a real fit has, over these block sizes.

    With a ``wanted`` one it is worth the most after a round at any candidate, and another one before the first.
    """
    shares = np.linspace(0.2, 0.9, BINS)
    rising = {size: (1 + (size - 1) * shares).tolist() for size in candidates}
    values = {ALL: rising} | {stratum(size, full): rising for size in candidates for full in (False, True)}
    if wanted is not None:
        other = next(size for size in candidates if size != wanted)
        values = {name: _only(other if name == ALL else wanted, candidates) for name in values}
    price = dict.fromkeys(candidates, 1.0)
    loads = tuple(Load(running, 0.0, price, candidates[0]) for running in CONCURRENCIES)
    edges = tuple(np.linspace(-2.0, -0.05, BINS - 1).tolist())
    return Adaptive("", "", candidates, PAPER, edges, values, loads, None, {})


def _only(block_size: int, candidates: tuple[int, ...]) -> dict[int, list[float]]:
    return {size: [float(size == block_size)] * BINS for size in candidates}


def candidates_with(*sizes: int) -> tuple[int, ...]:
    """The paper's block sizes, and these."""
    return tuple(sorted({*CANDIDATES, *sizes}))


@cache
def one_size(block_size: int) -> Equation3:
    """Looks at everyone's certainty, and finds this block size for all who had a round, another one for the rest."""
    return adaptive(made_up_fit(candidates_with(block_size), block_size))


class Mixture(Allocation):
    """Shares tokens out as any allocation, and then lets about half of the requests have blocks twice as large.

    In turns these are a few more and a few less than half: no two steps are laid out alike, as when serving.
    """

    def __init__(self, small: int) -> None:
        super().__init__(made_up_fit(candidates_with(small, 2 * small)), COSTS)
        self.small = small
        self._signs = cycle((1, -1))

    def __call__(self, seen: Outcomes) -> Ints:
        """[requests] The block sizes."""
        super().__call__(seen)
        running = seen.running
        # everyone has a block, and somebody each size
        apart = running % 2 or min(running - 2, 2)
        larger = (running + next(self._signs) * apart) // 2
        # every second one before the others
        order = np.argsort(np.arange(running) % 2, kind="stable")
        sizes = np.full(running, self.small)
        sizes[order[:larger]] *= 2
        return sizes


@cache
def mixture(small: int) -> Mixture:
    """The one of this block size and the next larger one; what it knows of prices stays from visit to visit."""
    return Mixture(small)
