"""Forward time as piecewise linear curves over context, interpolated between the shapes that were profiled."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

Points = Mapping[float, float]
"""Seconds by context tokens per request."""
Grid = Mapping[float, Mapping[float, Points]]
"""One kind of forward: query tokens per request, then requests, then points."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of a forward as a function of its context tokens; call it.

    Behind the first and the last knot the nearest piece goes on, but never below ``floor_s``. Between ``low`` and
    ``high`` every number behind the curve was measured; elsewhere it is extrapolated.
    """

    knots: tuple[float, ...]
    breaks: tuple[float, ...]
    """The inner knots, where one piece ends and the next one starts."""
    seconds: tuple[float, ...]
    slopes: tuple[float, ...]
    """Seconds per context token; piece i starts at knot i."""
    floor_s: float
    low: float
    high: float

    def __call__(self, context_tokens: float) -> float:
        """Seconds at this many context tokens, summed over the requests."""
        piece = bisect_right(self.breaks, context_tokens)
        seconds = self.seconds[piece] + self.slopes[piece] * (context_tokens - self.knots[piece])
        return seconds if seconds > self.floor_s else self.floor_s

    def covers(self, context_tokens: float) -> bool:
        """Whether the seconds at this many context tokens are measured or lie between measurements."""
        return self.low <= context_tokens <= self.high


def through(points: Points, floor_s: float = -inf) -> Curve:
    """The curve through ``points``, all of them measured; a single point makes a constant."""
    knots = tuple(sorted(points))
    seconds = tuple(points[knot] for knot in knots)
    slopes = tuple((seconds[i + 1] - seconds[i]) / (knots[i + 1] - knots[i]) for i in range(len(knots) - 1))
    return Curve(knots, knots[1:-1], seconds, slopes or (0.0,), floor_s, knots[0], knots[-1])


def weighted(parts: Sequence[tuple[Curve, float]]) -> Curve:
    """The sum of curves times weights; it is measured where all of them are, and has no floor."""
    bare = [(replace(curve, floor_s=-inf), weight) for curve, weight in parts]
    knots = sorted({knot for curve, _ in bare for knot in curve.knots})
    total = through({knot: sum(weight * curve(knot) for curve, weight in bare) for knot in knots})
    low, high = max(curve.low for curve, _ in bare), min(curve.high for curve, _ in bare)
    return replace(total, low=low, high=high)


def added(curves: Sequence[Curve]) -> Curve:
    """Seconds of several forwards one after the other."""
    total = weighted([(curve, 1.0) for curve in curves])
    return replace(total, floor_s=sum(curve.floor_s for curve in curves))


def interpolated(grid: Grid, requests: int, query_tokens: int) -> Curve:
    """The curve of a forward between the profiled ones: linear in query tokens per request, then in requests.

    Requests of unequal context count as equal ones, for the sum is what is profiled. Outside the profiled shapes the
    outermost two go on; the curve then covers no context, and never falls below the fastest forward of the kind.
    """
    parts: list[tuple[Curve, float]] = []
    per_request = query_tokens / requests
    measured = _spans(grid, per_request)
    for profiled, outer in _around(sorted(grid), per_request):
        rows = grid[profiled]
        measured &= _spans(rows, requests)
        parts += [(through(rows[count]), outer * inner) for count, inner in _around(sorted(rows), requests)]
    fastest = min(seconds for rows in grid.values() for points in rows.values() for seconds in points.values())
    return replace(_scaled(weighted(parts), requests, measured), floor_s=fastest)


def _scaled(curve: Curve, requests: int, measured: bool) -> Curve:
    """From context tokens per request to their sum."""
    low, high = (curve.low * requests, curve.high * requests) if measured else (inf, -inf)
    knots = tuple(knot * requests for knot in curve.knots)
    slopes = tuple(slope / requests for slope in curve.slopes)
    return replace(curve, knots=knots, breaks=knots[1:-1], slopes=slopes, low=low, high=high)


def _spans(profiled: Iterable[float], wanted: float) -> bool:
    return min(profiled) <= wanted <= max(profiled)


def _around(profiled: Sequence[float], wanted: float) -> list[tuple[float, float]]:
    """The one or two profiled values around ``wanted`` with their weights; a lone value stands for all others."""
    if wanted in profiled or len(profiled) == 1:
        return [(wanted if wanted in profiled else profiled[0], 1.0)]
    above = min(max(bisect_right(profiled, wanted), 1), len(profiled) - 1)
    low, high = profiled[above - 1], profiled[above]
    weight = (wanted - low) / (high - low)
    return [(low, 1.0 - weight), (high, weight)]
