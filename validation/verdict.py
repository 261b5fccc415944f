"""What a validation comes to: errors summed up over groups of points, and whether they keep their thresholds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from recguide.sim.campaigns import PointKey
from recguide.validation.heldout import CONCURRENCY, DATASET, POLICY
from recguide.validation.points import PER_REQUEST, THROUGHPUT, Compared
from recguide.validation.rankings import Crossing, Ranking

EVERY = "all points"
TPOT = "p99_tpot_ms"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Shares (0.02 is 2%), taus and counts; None asks for nothing."""

    mean_error: float | None = 0.02
    """Of the aggregate throughput, absolute, over all points."""
    worst_error: float | None = 0.05
    per_request_error: float | None = 0.03
    """Mean, absolute."""
    tpot_error: float | None = 0.10
    """p99, at the worst point."""
    tau: float | None = 1.0
    hypervolume_error: float | None = 0.02
    """At the worst frontier."""
    agreement: float | None = None
    """Smallest share of measured rounds whose block size was foretold."""
    octaves: float | None = None
    """By which a crossover with AR may be off."""
    repeats: int = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One threshold; ``found`` is None where there is nothing to compare."""

    name: str
    found: float | None
    allowed: float
    passed: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors over a group of points."""

    points: int
    mean_error: float | None
    worst_error: float | None
    bias: float | None
    """The signed mean."""
    per_request_error: float | None
    tpot_error: float | None
    """p99, mean of the absolute ones."""
    worst_tpot_error: float | None
    spread: float | None
    """Mean of the repeats' own, (largest - smallest) / mean."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that checks look at."""

    points: Sequence[Compared]
    rankings: Mapping[tuple[str, int], Ranking]
    """By dataset and concurrency."""
    frontiers: Mapping[tuple[str, str], tuple[float, float, float | None]]
    """By dataset and policy: simulated and measured hypervolume, and the error."""
    crossings: Mapping[tuple[str, str], Crossing]
    missing: Mapping[PointKey, int]


def groups(points: Sequence[Compared]) -> dict[str, Summary]:
    """All points, and those with something held out."""
    found = {EVERY: list(points)}
    for name in (CONCURRENCY, DATASET, POLICY):
        found[f"held out: {name}"] = [point for point in points if name in point.held_out]
    found["nothing held out"] = [point for point in points if not point.held_out]
    return {name: summary(group) for name, group in found.items() if group}


def summary(points: Sequence[Compared]) -> Summary:
    """The errors of some points."""
    aggregate, alone, tpot = (_errors(points, name) for name in (THROUGHPUT, PER_REQUEST, TPOT))
    spreads = [spread for point in points if (spread := point.spread[THROUGHPUT]) is not None]
    return Summary(
        len(points),
        _mean([abs(error) for error in aggregate]),
        max(map(abs, aggregate), default=None),
        _mean(aggregate),
        _mean([abs(error) for error in alone]),
        _mean([abs(error) for error in tpot]),
        max(map(abs, tpot), default=None),
        _mean(spreads),
    )


def checks(outcome: Outcome, wanted: Thresholds) -> list[Check]:
    """Every threshold that is asked for, and that nothing is missing."""
    whole = summary(outcome.points)
    taus = [each.tau for each in outcome.rankings.values() if each.tau is not None]
    areas = [abs(error) for _, _, error in outcome.frontiers.values() if error is not None]
    most = {
        "throughput, mean error": (whole.mean_error, wanted.mean_error),
        "throughput, worst error": (whole.worst_error, wanted.worst_error),
        "throughput per request, mean error": (whole.per_request_error, wanted.per_request_error),
        "p99 TPOT, worst error": (whole.worst_tpot_error, wanted.tpot_error),
        "hypervolume, worst error": (max(areas, default=None), wanted.hypervolume_error),
        "missing repeats": (float(sum(outcome.missing.values())), 0.0),
    }
    least = {
        "policy ranking, smallest tau": (min(taus, default=None), wanted.tau),
        "decisions foretold, smallest share": (
            min((point.agreement.decisions for point in outcome.points), default=None),
            wanted.agreement,
        ),
    }
    return [
        *(_check(name, found, limit, at_most=True) for name, (found, limit) in most.items() if limit is not None),
        *(_check(name, found, limit, at_most=False) for name, (found, limit) in least.items() if limit is not None),
        *_crossovers(outcome, wanted),
    ]


def _check(name: str, found: float | None, allowed: float, *, at_most: bool) -> Check:
    if found is None:
        # one policy has no ranking, one without AR no crossover; but throughputs and latencies there must be
        return Check(name, None, allowed, not name.startswith(("throughput", "p99")))
    return Check(name, found, allowed, found <= allowed if at_most else found >= allowed)


def _crossovers(outcome: Outcome, wanted: Thresholds) -> Iterator[Check]:
    """By how many octaves they are off; None, and failed, where only one of the two ever crosses."""
    if wanted.octaves is None:
        return
    found = list(outcome.crossings.values())
    worst = max((abs(each.octaves) for each in found if each.octaves is not None), default=None)
    if not all(each.agrees for each in found):
        yield Check("crossover, octaves", None, wanted.octaves, passed=False)
    else:
        yield _check("crossover, octaves", worst, wanted.octaves, at_most=True)


def _errors(points: Sequence[Compared], name: str) -> list[float]:
    return [error for point in points if (error := point.error.get(name)) is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
