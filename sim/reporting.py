"""The report of a sweep out of its points, its kept requests, its trace and its profile."""

from collections.abc import Mapping, Sequence
from typing import Any

from recguide.sim.charts import LATENCIES
from recguide.sim.costs import Profile
from recguide.sim.report import report
from recguide.sim.store import Store
from recguide.sim.surface import Surface, surface
from recguide.sim.sweep import Point
from recguide.traces.dense import DenseTrace

FILE = "report.html"


def page_of(
    points: Sequence[Point],
    about: Mapping[str, Any],
    title: str,
    store: Store,
    trace: DenseTrace,
    profile: Profile,
) -> str:
    """The page."""
    quantiles = store.quantiles(points, LATENCIES)
    shares = store.block_shares(points)
    return report(points, about, title, quantiles, shares, _surface(points, trace, profile))


def _surface(points: Sequence[Point], trace: DenseTrace, profile: Profile) -> Surface:
    cached = [request.prompt_tokens + request.output_tokens / 2 for request in trace.requests]
    most = max(int(point["max_concurrency"] or point["max_concurrent_requests"] or 1) for point in points)
    return surface(profile, trace.provenance.block_sizes, most, round(sum(cached) / len(cached)))
