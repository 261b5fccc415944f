"""Whether simulation ranks policies as measurement does, and draws the same frontier."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log2

from scipy.stats import kendalltau

from recguide.sim.pareto import Spot, crossover, hypervolume


@dataclass(frozen=True, slots=True)
class Ranking:
    """Policies by throughput at one concurrency, simulated against measured."""

    tau: float | None
    """Over the pairs that measurement tells apart: (agreeing - disagreeing) / all of them; None without any."""
    tau_b: float | None
    """Kendall's, over all pairs, whether or not the repeats tell them apart."""
    pairs: int
    ties: int
    """Pairs closer than the spread of their repeats."""
    disordered: tuple[tuple[str, str], ...]
    """Pairs that disagree, the one that was measured faster first."""


def ranking(simulated: Mapping[str, float], measured: Mapping[str, Sequence[float]]) -> Ranking:
    """The ranking of policies; ``measured`` holds the repeats of each.

    Two policies tie where their means are no further apart than the wider spread (largest - smallest) of both. That
    is no equivalence, and so not what scipy calls a tie; without ties both taus are the same.
    """
    means = {name: sum(values) / len(values) for name, values in measured.items()}
    spread = {name: max(values) - min(values) for name, values in measured.items()}
    pairs = list(combinations(means, 2))
    apart = [(a, b) for a, b in pairs if abs(means[a] - means[b]) > max(spread[a], spread[b])]
    faster = [(a, b) if means[a] > means[b] else (b, a) for a, b in apart]
    wrong = tuple((a, b) for a, b in faster if simulated[a] < simulated[b])
    right = sum(simulated[a] > simulated[b] for a, b in faster)
    tau = (right - len(wrong)) / len(apart) if apart else None
    plain = kendalltau([simulated[name] for name in means], list(means.values())).statistic if pairs else float("nan")
    return Ranking(tau, float(plain) if plain == plain else None, len(pairs), len(pairs) - len(apart), wrong)


def area_error(simulated: Sequence[Spot], measured: Sequence[Spot]) -> tuple[float, float, float | None]:
    """Hypervolumes of both frontiers, and by how much the simulated one is too large (a share of the measured)."""
    ours, theirs = hypervolume(simulated), hypervolume(measured)
    return ours, theirs, ours / theirs - 1 if theirs > 0 else None


@dataclass(frozen=True, slots=True)
class Crossing:
    """From which concurrency on a policy is slower than AR; None where it never is."""

    simulated: float | None
    measured: float | None

    @property
    def octaves(self) -> float | None:
        """By how many doublings the simulated one is too late; None where one of both never crosses."""
        if self.simulated is None or self.measured is None:
            return None
        return log2(self.simulated / self.measured)

    @property
    def agrees(self) -> bool:
        """Whether both cross, or neither does."""
        return (self.simulated is None) == (self.measured is None)


def crossing(simulated: Sequence[tuple[int, float]], measured: Sequence[tuple[int, float]]) -> Crossing:
    """Out of the speedups over AR by concurrency."""
    return Crossing(crossover(simulated), crossover(measured))
