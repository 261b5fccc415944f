"""Forward time as piecewise linear curves over context, interpolated between the shapes that were profiled."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import mul

Points = Mapping[float, float]
"""Seconds by context tokens per request."""
TINY_S = 1e-12
Grid = Mapping[float, Mapping[float, Points]]
"""One kind of forward: query tokens per request, then requests, then points."""
PartOf = Callable[[float, float], float]
"""Seconds of a part of a forward, by requests and query tokens per request."""


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

    def at_knots(self, knots: tuple[float, ...]) -> Sequence[float]:
        """The same at these knots, where the outer pieces go on for ever."""
        if knots == self.knots:
            return self.seconds
        if len(self.knots) == 1:
            return self.seconds * len(knots)
        pieces = [bisect_right(self.breaks, knot) for knot in knots]
        return [self.seconds[i] + self.slopes[i] * (k - self.knots[i]) for i, k in zip(pieces, knots, strict=True)]

    def covers(self, context_tokens: float) -> bool:
        """Whether the seconds at this many context tokens are measured or lie between measurements."""
        return self.low <= context_tokens <= self.high


def through(points: Points, floor_s: float = -inf) -> Curve:
    """The curve through ``points``, all of them measured; a single point makes a constant."""
    knots = tuple(sorted(points))
    return _through(knots, tuple(points[knot] for knot in knots), floor_s, knots[0], knots[-1])


def _through(knots: tuple[float, ...], seconds: tuple[float, ...], floor_s: float, low: float, high: float) -> Curve:
    slopes = tuple((seconds[i + 1] - seconds[i]) / (knots[i + 1] - knots[i]) for i in range(len(knots) - 1))
    return Curve(knots, knots[1:-1], seconds, slopes or (0.0,), floor_s, low, high)


def weighted(parts: Sequence[tuple[Curve, float]], floor_s: float = -inf) -> Curve:
    """The sum of curves times weights; it is measured where all of them are, and has no floor but the one given."""
    knots = max((curve.knots for curve, _ in parts), key=len)
    if not all(curve.knots == knots or len(curve.knots) == 1 for curve, _ in parts):
        knots = tuple(sorted({knot for curve, _ in parts for knot in curve.knots}))
    columns = [curve.at_knots(knots) for curve, _ in parts]
    weights = [weight for _, weight in parts]
    seconds = tuple(sum(map(mul, weights, each)) for each in zip(*columns, strict=True))
    low, high = max(curve.low for curve, _ in parts), min(curve.high for curve, _ in parts)
    return _through(knots, seconds, floor_s, low, high)


def added(curves: Sequence[Curve]) -> Curve:
    """Seconds of several forwards one after the other."""
    return weighted([(curve, 1.0) for curve in curves], sum(curve.floor_s for curve in curves))


def nothing(requests: float, per_request: float) -> float:
    """No part of any forward."""
    return 0.0


MOST_OF_FORWARD = 2
"""Times the seconds of a forward with them that products take at most; above 1, for both are measured."""


class Surface:
    """Curves of one kind of forward at the profiled shapes, and between them.

    Where there are more than ``most`` requests with more than ``largest`` tokens each it goes by another kind,
    ``plain``, if one is given: by what that takes at the shape, times what this one takes more at ``most`` requests.
    Steps of many requests would be far too cheap otherwise, or too dear, where shapes of few are all that is known.

    ``products`` are a part that is known at every shape: the rest of a forward alone is interpolated.
    """

    def __init__(
        self,
        grid: Grid,
        plain: "Surface | None" = None,
        most: float = 0,
        largest: float = 0,
        products: PartOf = nothing,
    ) -> None:
        self._plain, self._most, self._largest, self._products = plain, most, largest, products
        self._per_request = sorted(grid)
        self._counts = {tokens: sorted(rows) for tokens, rows in grid.items()}
        self._curves = {
            (tokens, count): through(_without(points, products(count, tokens)))
            for tokens, rows in grid.items()
            for count, points in rows.items()
        }
        self.most_requests = int(max(max(counts) for counts in self._counts.values()))
        """Of any shape."""
        self._fastest = min(min(points.values()) for rows in grid.values() for points in rows.values())

    def at(self, requests: float, per_request: float) -> Curve:
        """The curve between the profiled ones: linear in query tokens ``per_request``, then in requests.

        Requests of unequal context count as equal ones, for the sum is what is profiled. Outside the profiled shapes
        the outermost two go on; the curve then covers no context, and never falls below the fastest forward, or half
        of the products.
        """
        if self._plain is not None and requests > self._most and per_request > self._largest:
            return self._stretched(self._plain, requests, per_request)
        parts: list[tuple[Curve, float]] = []
        measured = _spans(self._per_request, per_request)
        for profiled, outer in _around(self._per_request, per_request):
            counts = self._counts[profiled]
            measured &= _spans(counts, requests)
            parts += [(self._curves[profiled, count], outer * inner) for count, inner in _around(counts, requests)]
        products = self._products(requests, per_request)
        # what is left of forwards may fall with tokens, as where part of the products runs beside something else
        floor_s = self._fastest if measured else max(self._fastest, products / MOST_OF_FORWARD)
        return _scaled(weighted(parts), requests, measured, floor_s, products)

    def _stretched(self, plain: "Surface", requests: float, per_request: float) -> Curve:
        wide, same = plain.at(requests, per_request), plain.at(self._most, per_request)
        known, share = self.at(self._most, per_request), self._most / requests
        points = {knot: wide(knot) * known(knot * share) / max(same(knot * share), TINY_S) for knot in wide.knots}
        return replace(through(points, wide.floor_s), low=inf, high=-inf)


class Above:
    """Curves of a kind of time that is another one and something more, which alone is interpolated.

    Beyond the shapes where it is known it stays what it is at the nearest of them.
    """

    def __init__(self, grid: Grid, plain: Surface) -> None:
        self._plain, self.most_requests = plain, plain.most_requests
        self._more = Surface(
            {
                tokens: {count: _above(points, plain.at(count, tokens), count) for count, points in rows.items()}
                for tokens, rows in grid.items()
            }
        )
        self._tokens = min(grid), max(grid)
        counts = [count for rows in grid.values() for count in rows]
        self._requests = min(counts), max(counts)

    def at(self, requests: float, per_request: float) -> Curve:
        """The curve of the other kind, and so much more; it covers what that one does."""
        more = self._more.at(_within(requests, self._requests), _within(per_request, self._tokens))
        plain = self._plain.at(requests, per_request)
        both = added([plain, more])
        # where rows scatter, what is more may be less
        return _through(both.knots, tuple([max(each, 0.0) for each in both.seconds]), 0.0, plain.low, plain.high)


def _above(points: Points, plain: Curve, requests: float) -> dict[float, float]:
    return {knot: seconds - plain(knot * requests) for knot, seconds in points.items()}


def _within(wanted: float, span: tuple[float, float]) -> float:
    return min(max(wanted, span[0]), span[1])


def _without(points: Points, seconds: float) -> Points:
    return {knot: each - seconds for knot, each in points.items()}


def _scaled(curve: Curve, requests: float, measured: bool, floor_s: float, more_s: float) -> Curve:
    """From context tokens per request to their sum, with so many seconds more everywhere."""
    low, high = (curve.low * requests, curve.high * requests) if measured else (inf, -inf)
    knots = tuple(knot * requests for knot in curve.knots)
    slopes = tuple(slope / requests for slope in curve.slopes)
    seconds = tuple([each + more_s for each in curve.seconds]) if more_s else curve.seconds
    return Curve(knots, knots[1:-1], seconds, slopes, floor_s, low, high)


def _spans(profiled: Sequence[float], wanted: float) -> bool:
    return profiled[0] <= wanted <= profiled[-1]


def _around(profiled: Sequence[float], wanted: float) -> list[tuple[float, float]]:
    """The one or two profiled values around ``wanted`` with their weights; a lone value stands for all others."""
    if len(profiled) == 1:
        return [(profiled[0], 1.0)]
    above = min(max(bisect_right(profiled, wanted), 1), len(profiled) - 1)
    low, high = profiled[above - 1], profiled[above]
    if wanted in (low, high):
        return [(wanted, 1.0)]
    weight = (wanted - low) / (high - low)
    return [(low, 1.0 - weight), (high, weight)]
