"""Comparing frontiers: which points nothing beats, how much area they cover, and where a policy falls behind AR."""

from collections.abc import Sequence
from math import log2

Spot = tuple[float, float]
"""Two figures of a point, more of both is better."""


def undominated(spots: Sequence[Spot]) -> list[bool]:
    """Whether no other spot is as good in both figures and better in one; equal ones stand or fall together."""
    best_from: dict[Spot, bool] = {}
    highest = float("-inf")
    # from the largest x down, and the largest y first among equal ones: a spot stands if it tops all before it
    for spot in sorted(set(spots), reverse=True):
        best_from[spot] = spot[1] > highest
        highest = max(highest, spot[1])
    return [best_from[spot] for spot in spots]


def hypervolume(spots: Sequence[Spot]) -> float:
    """The area that the spots dominate, down to 0 in both figures; spots below 0 have none."""
    area, height = 0.0, 0.0
    for x, y in sorted(set(spots), reverse=True):
        if y > height:
            area, height = area + max(x, 0.0) * (y - height), y
    return area


def crossover(speedups: Sequence[tuple[int, float]]) -> float | None:
    """The concurrency from which a policy is slower than AR on, None where it ends at least as fast.

    ``speedups`` holds concurrencies and the speedups over AR there; between two of them the speedup is a line over
    log2 of the concurrency.
    """
    ordered = sorted(speedups)
    if not ordered or ordered[-1][1] >= 1:
        return None
    last_fast = max((i for i, (_, speedup) in enumerate(ordered) if speedup >= 1), default=None)
    if last_fast is None:
        return float(ordered[0][0])
    (low, fast), (high, slow) = ordered[last_fast : last_fast + 2]
    share = (fast - 1) / (fast - slow)
    return float(2 ** (log2(low) + share * (log2(high) - log2(low))))
