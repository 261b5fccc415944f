"""Block policies that learn while they serve, from what they have seen alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from recguide.sim.costs import CostModel
from recguide.sim.history import Floats
from recguide.sim.policies import BlockPolicy, Informed, Outcomes, round_s
from recguide.sim.rounds import AR, Ints

PRIOR_TOKENS = 8.0
"""Checked draft tokens that what was known before counts for."""
HOPE = 0.8
"""The acceptance rate of draft tokens before any was checked."""
EXPLORATION = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The next larger block after a full acceptance, the next smaller one when at most half was accepted.

    A request starts with the smallest. With a grid of doubling blocks this is mlx-vlm's window for this model family
    (https://github.com/Blaizzy/mlx-vlm/pull/1239): doubled, halved.
    """

    grid: Ints

    def __call__(self, seen: Outcomes) -> Ints:
        """The block sizes of the running requests."""
        return self.after(seen.block_size, seen.accept_len)

    def after(self, block_size: Ints, accept_len: Ints) -> Ints:
        """The block sizes after rounds at these, 0 before the first."""
        place = np.minimum(np.searchsorted(self.grid, block_size), len(self.grid) - 1)
        grows = (accept_len == block_size) & (block_size > AR)
        shrinks = 2 * accept_len <= block_size
        found: Ints = self.grid[np.clip(place + grows - shrinks, 0, len(self.grid) - 1)]
        return found


def window(sizes: Sequence[int]) -> Window:
    """The window over these block sizes, ascending."""
    return Window(np.array(sizes))


def acceptance_rates(seen: Outcomes) -> Floats:
    """Each running request's share of checked draft tokens that matched, drawn towards that of the whole server.

    A server that has drafted nothing yet takes ``HOPE``: from too low a guess it would never draft, and never learn.
    """
    if seen.matched is None or seen.checked is None:
        raise ValueError("the goodput policy looks at acceptance so far, and nobody keeps it")
    drafted = [tally for size, tally in seen.tallies.items() if size > AR]
    # every round with a draft checks its matched tokens and, but for full acceptance, one more
    matched = sum(tally.tokens - tally.rounds for tally in drafted)
    pooled = (matched + PRIOR_TOKENS * HOPE) / (sum(tally.tokens for tally in drafted) + PRIOR_TOKENS)
    rates: Floats = (seen.matched + PRIOR_TOKENS * pooled) / (seen.checked + PRIOR_TOKENS)
    return rates


def goodput(sizes: Sequence[int], costs: CostModel) -> BlockPolicy:
    """One block size for all: the most expected tokens per second of the round (SmartSpec, arXiv 2406.14066).

    A draft token counts as accepted with its request's rate so far, independently of the others; AR steps are a
    choice too.
    """
    grid = np.array([AR, *sizes])

    def choose(seen: Outcomes) -> int:
        rates = acceptance_rates(seen)[:, None]
        tokens = ((1 - rates**grid) / (1 - rates)).sum(axis=0)
        seconds = np.array([round_s(costs, size, seen, seen.running) for size in grid.tolist()])
        return int(grid[(tokens / seconds).argmax()])

    return Informed(choose)


def bandit(sizes: Sequence[int], exploration: float = EXPLORATION) -> BlockPolicy:
    """One block size for all: the largest upper confidence bound of tokens per second (UCB1, Auer et al. 2002).

    A pull is a round of a request, and its mean reward the block size's tokens per second of a request so far, as a
    share of the best one's. Each size is tried once first.
    """

    def choose(seen: Outcomes) -> int:
        untried = [size for size in sizes if size not in seen.tallies]
        if untried:
            return untried[0]
        return max(sizes, key=_bounds(seen, sizes, exploration).__getitem__)

    return Informed(choose)


def _bounds(seen: Outcomes, sizes: Sequence[int], exploration: float) -> dict[int, float]:
    tallies = {size: seen.tallies[size] for size in sizes}
    rates = {size: tally.tokens / (tally.seconds or 1e-12) for size, tally in tallies.items()}
    best, spread = max(rates.values()), 2 * log(sum(tally.rounds for tally in tallies.values()))
    return {size: rates[size] / best + exploration * sqrt(spread / tallies[size].rounds) for size in sizes}
