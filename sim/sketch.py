"""The distribution of a stream of numbers, in memory that does not grow with it."""

import math
from collections import Counter

ERROR = 0.005
"""Relative error of a percentile."""
_STEP = math.log1p(2 * ERROR)


class Sketch:
    """Numbers of at least 0, counted by their logarithm in bins that are 1% wide."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = self.squares = 0.0
        self._bins: Counter[int | None] = Counter()

    def add(self, value: float) -> None:
        """One more number."""
        self.count += 1
        self.sum += value
        self.squares += value * value
        # below a nanosecond everything is nothing
        self._bins[math.floor(math.log(value) / _STEP) if value > 1e-9 else None] += 1

    @property
    def mean(self) -> float | None:
        """Exact."""
        return self.sum / self.count if self.count else None

    @property
    def std(self) -> float | None:
        """Exact but for rounding."""
        if not self.count:
            return None
        mean = self.sum / self.count
        return math.sqrt(max(self.squares / self.count - mean * mean, 0.0))

    def percentile(self, percentile: float) -> float | None:
        """The number at this rank to within ``ERROR``: the middle of its bin."""
        if not self.count:
            return None
        rank = percentile / 100 * (self.count - 1)
        seen = self._bins[None]
        if rank < seen:
            return 0.0
        for index in sorted(index for index in self._bins if index is not None):
            seen += self._bins[index]
            if rank < seen:
                return math.exp((index + 0.5) * _STEP)
        return None
