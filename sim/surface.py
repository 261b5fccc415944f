"""The cost of a round over concurrency and block size, T_C(B), as a view of a profile (paper, section 5.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from recguide.sim.costs import CostModel, Profile

Knot = tuple[int, float, bool]
"""Requests, milliseconds of the round, and whether these lie inside of what was profiled."""


@dataclass(frozen=True, slots=True)
class Surface:
    """Rounds of requests that have the same context."""

    context: int
    """Cached tokens of each request."""
    lines: dict[int, list[Knot]]
    """By block size, 1 for AR steps; requests ascend."""
    profiled: list[tuple[int, float]]
    """Requests and milliseconds of the rounds whose shapes were measured."""
    span: tuple[float, float]
    """Fewest and most requests profiled."""


def surface(profile: Profile, block_sizes: Sequence[int], most: int, context: int) -> Surface:
    """Rounds of 1 to ``most`` requests with ``context`` cached tokens each, at every block size and as AR steps."""
    costs = profile.costs()
    counts = {row.requests for row in profile.rows if row.kind in ("draft", "verify", "decode")}
    steps = sorted({count for count in counts if count <= most} | {2**i for i in range(most.bit_length())} | {most})
    lines = {size: [_knot(costs, size, count, context) for count in steps] for size in (1, *block_sizes)}
    measured = {(row.query_tokens // row.requests, row.requests) for row in profile.rows if row.kind == "verify"}
    measured |= {(1, row.requests) for row in profile.rows if row.kind == "decode"}
    profiled = [(count, ms) for size, line in lines.items() for count, ms, _ in line if (size, count) in measured]
    return Surface(context, lines, profiled, (float(min(counts, default=1)), float(max(counts, default=1))))


def _knot(costs: CostModel, size: int, count: int, context: int) -> Knot:
    curve = costs.round_curve(size, count)
    return count, curve(context * count) * 1e3, curve.covers(context * count)
