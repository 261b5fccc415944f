"""A step's query tokens shared out by certainty: unequal blocks in one step, without padding and without buckets.

Equation 3 of the paper prices a block as if everyone had it, and its buckets run one block size at a time. Where a
forward of few requests takes nearly as long as one of many, that costs more than it gains (docs/policies.md). Here all
run together, and of all ways to lengthen blocks in order of what they promise, the one with the most expected tokens
per second of this very step is taken (as DSpark, arXiv 2607.05147, and TETRIS, arXiv 2502.15197, admit draft tokens).
"""

import numpy as np

from recguide.sim.adaptive import Adaptive
from recguide.sim.allocation import concave_steps
from recguide.sim.costs import ROUND, CostModel
from recguide.sim.expected import Expected
from recguide.sim.history import Floats
from recguide.sim.policies import Outcomes, round_s
from recguide.sim.rounds import AR, Ints

PARTS = 16
"""Of the query tokens that a step has at least: such a part, rounded down to a power of 2, is what prices are apart."""
NEAR = 128
"""Context tokens a request: a step is priced as one whose contexts are a multiple of it."""


class Allocation:
    """The policy: block sizes of the running requests from V_B(s, z) of a fit and the costs of a profile."""

    def __init__(self, fitted: Adaptive, costs: CostModel) -> None:
        self.fitted, self.costs, self.signal = fitted, costs, fitted.signal
        self.expected = Expected(fitted)
        self._seconds: dict[tuple[int, int], Floats] = {}
        values, sizes = self.expected.values, self.expected.sizes
        shape = *values.shape[:2], len(sizes) - 1
        # by stratum and bin: where the steps of a request that stands there lead, steepest first
        self.to, self.more = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.gain, self.slope = np.zeros(shape), np.full(shape, -np.inf)
        flat = values.reshape(-1, len(sizes))
        taken = np.zeros(len(flat), np.int64)
        for row, start, to, slope in zip(*(part.tolist() for part in concave_steps(flat, sizes)), strict=True):
            place = *divmod(row, shape[1]), int(taken[row])
            self.to[place], self.more[place], self.slope[place] = to, sizes[to] - sizes[start], slope
            self.gain[place] = flat[row, to] - flat[row, start]
            taken[row] += 1

    def __call__(self, seen: Outcomes) -> int | Ints:
        """[requests] The block sizes with the most expected tokens per second of this step; AR for all if that is."""
        where, sizes = self.expected.places_of(seen), self.expected.sizes
        slope, most = self.slope[where], self.slope.shape[2]
        order = np.argsort(-slope, axis=None, kind="stable")[: int((slope > 0).sum())]
        # of the first so many steps, from none to all
        queries = np.cumsum(np.concatenate([[seen.running * sizes[0]], self.more[where].ravel()[order]]))
        least = self.expected.values[where][:, 0].sum()
        tokens = np.cumsum(np.concatenate([[least], self.gain[where].ravel()[order]]))
        rate = tokens / self._seconds_of(seen.running, seen.context_tokens)[-(-queries // self._unit(seen.running))]
        if rate.max() < seen.running / round_s(self.costs, AR, seen, seen.running):
            return AR
        taken = order[: int(rate.argmax())]
        choice = np.zeros(seen.running, np.int64)
        np.maximum.at(choice, taken // max(most, 1), self.to[where].ravel()[taken])
        chosen: Ints = sizes[choice]
        return chosen

    def _unit(self, count: int) -> int:
        """Query tokens at whose multiples steps of so many requests are priced; what is between costs as the next one.

        So do forwards on a GPU, which are filled up to eighths of a power of 2 or further.
        """
        least = count * int(self.expected.sizes[0])
        return 1 << max(least // PARTS, 1).bit_length() - 1

    def _seconds_of(self, count: int, context_tokens: int) -> Floats:
        """Of a round of ``count`` requests, by its query tokens in units; nothing fits into the first ones."""
        near = round(context_tokens / count / NEAR)
        if (count, near) not in self._seconds:
            unit, context = self._unit(count), float(near * NEAR * count)
            first, last = (-(-count * int(size) // unit) for size in self.expected.sizes[[0, -1]])
            found = [self.costs.curve(ROUND, count, each * unit)(context) for each in range(first, last + 1)]
            # where everything is free, the most tokens are the best
            self._seconds[count, near] = np.maximum([np.inf] * first + found, 1e-12)
        return self._seconds[count, near]
