"""What makes the results of a sweep worthless, found before it or in it: refused, unless somebody insists."""

from collections.abc import Sequence
from dataclasses import dataclass

from recguide.sim.costs import DECODE, ROUND, CostModel, Profile
from recguide.sim.curves import Curve
from recguide.sim.sweep import MOSTLY, Point, place_of
from recguide.traces.dense import DenseTrace, differ
from recguide.traces.errors import InputError

FLAT = 1.05
"""The dearest forward over the cheapest one, up to which a profile says nothing about block sizes."""
TOLERANCE = 1.05
"""Of the ceiling: forwards are medians of measurements."""
COMPARED = {"weights_sha256": True, "adapter_sha256": True, "dtype": False}
"""What trace and profile should share, and whether it is refused if they do not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, in a sentence."""

    text: str
    refuses: bool = True
    """Whether nothing should be built on it; otherwise it is worth a warning."""


def settle(findings: Sequence[Finding], force: bool) -> list[str]:
    """The findings as warnings; ValueError where one of them refuses and ``force`` is not set."""
    refusals = [finding.text for finding in findings if finding.refuses]
    if refusals and not force:
        raise InputError("; ".join(refusals) + "; --force goes on all the same")
    return [f"FORCED: {finding.text}" if finding.refuses else finding.text for finding in findings]


def check_sources(trace: DenseTrace, profile: Profile) -> list[Finding]:
    """Whether trace and profile are of one model in one state, and the profile can tell block sizes apart."""
    return [*_stale(trace, profile), *_flat(profile)]


def check_points(points: Sequence[Point], costs: CostModel, block_sizes: Sequence[int]) -> list[Finding]:
    """Whether the points can be true at all, and rest on measurements."""
    return [*_guessed(points), *(finding for point in points for finding in _impossible(point, costs, block_sizes))]


def _stale(trace: DenseTrace, profile: Profile) -> list[Finding]:
    origin, header = trace.provenance, profile.header
    if origin.model != header["model"]:
        return []
    found = []
    for field, refuses in COMPARED.items():
        recorded, profiled = str(getattr(origin, field) or ""), header.get(field, "")
        if differ(recorded, profiled):
            found.append(
                Finding(f"{profile.path}: {field}: found {profiled[:16]}, but the trace has {recorded[:16]}", refuses)
            )
    return found


def _flat(profile: Profile) -> list[Finding]:
    shapes = {(row.requests, row.query_tokens): row.median_us for row in profile.rows if row.kind == "verify"}
    if len(shapes) < 2 or max(shapes.values()) > FLAT * min(shapes.values()):
        return []
    return [
        Finding(
            f"{profile.path}: flat profile: its {len(shapes)} verify forwards cost the same within {FLAT - 1:.0%}, so "
            "the largest block always wins and no policy can show anything"
        )
    ]


def _guessed(points: Sequence[Point]) -> list[Finding]:
    mostly = [point for point in points if float(point["extrapolated_share"] or 0) > MOSTLY]
    if not mostly:
        return []
    worst = max(mostly, key=lambda point: float(point["extrapolated_share"] or 0))
    text = (
        f"{len(mostly)} of {len(points)} points spend more than {MOSTLY:.0%} of their time outside the profiled grid: "
        f"do not trust them (the most: {place_of(worst)}, {worst['extrapolated_share']:.0%})"
    )
    return [Finding(text, refuses=2 * len(mostly) > len(points))]


def _impossible(point: Point, costs: CostModel, block_sizes: Sequence[int]) -> list[Finding]:
    # prefills emit one token each, at a rate that rounds do not limit
    tokens = int(point["total_output_tokens"] or 0) - int(point["completed"] or 0)
    duration, most = float(point["duration"] or 0), int(point["max_concurrent_requests"] or 1)
    limit = ceiling(costs, block_sizes, most, overlaps=point["draft_forwards"] != point["verify_forwards"])
    if tokens <= TOLERANCE * limit * duration:
        return []
    return [
        Finding(
            f"{place_of(point)}: {tokens / duration:,.0f} tokens/s are impossible: if "
            f"every draft were accepted, {most} requests would make {limit:,.0f}"
        )
    ]


def ceiling(costs: CostModel, block_sizes: Sequence[int], most: int, *, overlaps: bool = False) -> float:
    """Tokens per second that at most ``most`` requests make in rounds if all drafts are accepted.

    With ``overlaps`` a verify alone makes a block's tokens, for its drafts were made beside an earlier one.
    """
    counts = {min(most, 2**i) for i in range(most.bit_length() + 1)} | set(range(1, min(most, 128) + 1))
    rounds = ("verify", "host") if overlaps else ROUND
    rates = [
        count * size / max(_fastest(costs.curve(DECODE if size == 1 else rounds, count, count * size)), 1e-12)
        for count in counts
        for size in (1, *block_sizes)
    ]
    return max(rates)


def _fastest(curve: Curve) -> float:
    return min(curve(context) for context in (0, *curve.knots))
