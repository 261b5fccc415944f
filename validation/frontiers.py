"""Rankings, frontiers and crossovers out of compared points."""

from collections.abc import Sequence

from recguide.sim.pareto import Spot
from recguide.sim.sweep import BASELINE
from recguide.validation.points import PER_REQUEST, THROUGHPUT, Compared
from recguide.validation.rankings import Crossing, Ranking, area_error, crossing, ranking

TOGETHER = "all policies"
"""Stands where a policy is named: the frontier of whatever is best."""


def rankings(points: Sequence[Compared]) -> dict[tuple[str, int], Ranking]:
    """Of the policies, by dataset and concurrency, where there are two or more."""
    places = sorted({(point.key.dataset, point.key.concurrency) for point in points})
    found = {}
    for dataset, concurrency in places:
        here = [point for point in points if (point.key.dataset, point.key.concurrency) == (dataset, concurrency)]
        if len(here) > 1:
            ours = {point.key.policy: float(point.simulated[THROUGHPUT] or 0) for point in here}
            theirs = {point.key.policy: point.throughputs for point in here}
            found[dataset, concurrency] = ranking(ours, theirs)
    return found


def frontiers(points: Sequence[Compared]) -> dict[tuple[str, str], tuple[float, float, float | None]]:
    """Simulated and measured hypervolume and the error, by dataset and policy, and of all policies together."""
    found = {}
    for dataset in sorted({point.key.dataset for point in points}):
        here = [point for point in points if point.key.dataset == dataset]
        names = list(dict.fromkeys(point.key.policy for point in here))
        for name in (TOGETHER, *names):
            mine = [point for point in here if name in (TOGETHER, point.key.policy)]
            found[dataset, name] = area_error(*([spot(point, how) for point in mine] for how in (True, False)))
    return found


def spot(point: Compared, simulated: bool) -> Spot:
    """Its place on the frontier."""
    found = point.simulated if simulated else point.measured
    return float(found[PER_REQUEST] or 0), float(found[THROUGHPUT] or 0)


def crossings(points: Sequence[Compared]) -> dict[tuple[str, str], Crossing]:
    """From where on a policy is slower than AR, by dataset and policy, where AR was measured too at every place."""
    found = {}
    base = {(p.key.dataset, p.key.concurrency): p for p in points if p.key.policy == BASELINE}
    for dataset, name in sorted({(p.key.dataset, p.key.policy) for p in points if p.key.policy != BASELINE}):
        mine = [p for p in points if (p.key.dataset, p.key.policy) == (dataset, name)]
        pairs = [(p, base[dataset, p.key.concurrency]) for p in mine if (dataset, p.key.concurrency) in base]
        if len(pairs) > 1:
            sides = (
                [(p.key.concurrency, spot(p, how)[1] / spot(ar, how)[1]) for p, ar in pairs] for how in (True, False)
            )
            found[dataset, name] = crossing(*sides)
    return found
