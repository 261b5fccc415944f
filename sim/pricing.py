"""rho_C of Equation 3: the price of time at which block sizes achieve the most tokens per second (section 5.2)."""

from typing import NamedTuple

import numpy as np

from recguide.sim.history import Floats
from recguide.sim.rounds import Ints

GRID = 33
"""Evenly spaced prices that are tried beside those at which a decision changes, as in the authors' repository."""


class Cells(NamedTuple):
    """Rounds put together wherever the policy cannot tell them apart: a stratum and a bin of certainty each."""

    weight: Floats
    """[cells]"""
    value: Floats
    """[cells, block sizes] V_B(s, z), which decides."""
    tokens: Floats
    """[cells, block sizes] Mean tokens that rounds of the cell really emit at each block size."""


def decide(value: Floats, cost: Floats, rho: float) -> Ints:
    """[cells] The index of Equation 3's block size, the smallest among equals."""
    best: Ints = (value - rho * cost).argmax(axis=1)
    return best


def achieved(cells: Cells, cost: Floats, rho: float) -> float:
    """Tokens per second of all rounds together, when Equation 3 decides at this price."""
    choice = decide(cells.value, cost, rho)
    tokens = cells.weight @ cells.tokens[np.arange(len(choice)), choice]
    return float(tokens / (cells.weight @ cost[choice]))


def search(cells: Cells, cost: Floats) -> float:
    """The price that achieves the most, the smallest among equals; exact, for between candidates nothing changes.

    Decisions change only where two block sizes are worth the same, so one price from every interval between such
    points, and the points themselves, stand for all others.
    """
    found = candidates(cells.value, cost)
    # equal rates differ in their last bits
    rates = np.array([round(achieved(cells, cost, float(rho)), 9) for rho in found])
    return float(found[rates.argmax()])


def candidates(value: Floats, cost: Floats) -> Floats:
    """Ascending prices: 0, all points where a decision changes, what lies between them, and an even grid."""
    pairs = [(i, j) for i in range(len(cost)) for j in range(i) if cost[i] != cost[j]]
    crossings = [(value[:, i] - value[:, j]) / (cost[i] - cost[j]) for i, j in pairs]
    points = np.unique(np.concatenate([[0.0], *crossings]))
    points = points[points >= 0]
    beyond = 2 * points[-1] + 1.0
    between = (points[1:] + points[:-1]) / 2
    return np.unique(np.concatenate([points, between, np.linspace(0.0, beyond, GRID), [beyond]]))
