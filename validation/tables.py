"""A validation as rows of text, for the terminal and the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recguide.validation.budget import INGREDIENTS
from recguide.validation.points import OUTCOMES, PER_REQUEST, THROUGHPUT, Compared
from recguide.validation.rankings import Crossing, Ranking
from recguide.validation.verdict import TPOT, Check, Outcome, Summary


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: a title, the heads of its columns, and rows of as many cells."""

    title: str
    heads: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]


def tables(outcome: Outcome, found: Sequence[Check], summaries: Mapping[str, Summary]) -> list[Rows]:
    """All of them, those that decide first."""
    return [
        checks_table(found),
        summary_table(summaries),
        points_table(outcome.points),
        rankings_table(outcome.rankings),
        frontiers_table(outcome),
        crossings_table(outcome.crossings),
        budget_table(outcome.points),
        shares_table(outcome.points),
    ]


def checks_table(found: Sequence[Check]) -> Rows:
    """What was asked for, and whether it holds."""
    rows = [(each.name, number(each.found), number(each.allowed), "yes" if each.passed else "NO") for each in found]
    return Rows("Thresholds", ("figure", "found", "allowed", "kept"), tuple(rows))


def summary_table(summaries: Mapping[str, Summary]) -> Rows:
    """Errors of groups of points."""
    heads = ("points of", "points", "tokens/s mean |error| %", "worst %", "bias %", "per request %", "p99 TPOT %",
             "worst %", "spread %")  # fmt: skip
    rows = [
        (name, str(each.points), *map(percent, (each.mean_error, each.worst_error, each.bias, each.per_request_error,
                                                each.tpot_error, each.worst_tpot_error, each.spread)))
        for name, each in summaries.items()
    ]  # fmt: skip
    return Rows("Errors", heads, tuple(rows))


def points_table(points: Sequence[Compared]) -> Rows:
    """A row for each point; errors are simulated over measured, less 1."""
    throughputs = ("tokens/s", "simulated", "error %", "spread %", "per request %")
    latencies = ("mean TPOT %", "p99 TPOT %", "mean TTFT %", "p99 TTFT %")
    heads = ("policy", "data", "C", "runs", *throughputs, *latencies, "forwards", "decisions %", "CPU x", "held out")
    return Rows("Points", heads, tuple(map(_point, points)))


def _point(point: Compared) -> tuple[str, ...]:
    error = point.error
    latencies = ("mean_tpot_ms", TPOT, "mean_ttft_ms", "p99_ttft_ms")
    forwards = point.difference["forwards"]
    return (
        point.key.policy,
        point.key.dataset,
        str(point.key.concurrency),
        str(point.repeats),
        f"{point.measured[THROUGHPUT] or 0:,.1f}",
        f"{point.simulated[THROUGHPUT] or 0:,.1f}",
        *map(percent, (error[THROUGHPUT], point.spread[THROUGHPUT], error[PER_REQUEST])),
        *(percent(error[name]) for name in latencies),
        "-" if forwards is None else f"{forwards:+g}",
        percent(point.agreement.decisions),
        _cpu(point.cpu),
        ", ".join(point.held_out) or "-",
    )


def _cpu(slowness: Sequence[float | None]) -> str:
    """How many times slower than the profile's the CPU was: the range over the repeats."""
    known = [value for value in slowness if value is not None]
    return "-".join(f"{value:.2f}" for value in sorted({min(known), max(known)})) if known else "-"


def rankings_table(found: Mapping[tuple[str, int], Ranking]) -> Rows:
    """Kendall's tau at each concurrency."""
    rows = [
        (dataset, str(count), number(each.tau), number(each.tau_b), str(each.pairs), str(each.ties), _disorder(each))
        for (dataset, count), each in found.items()
    ]
    heads = ("data", "C", "tau", "tau, no ties", "pairs", "ties", "measured faster, simulated slower")
    return Rows("Ranking of the policies", heads, tuple(rows))


def _disorder(each: Ranking) -> str:
    return "; ".join(f"{fast} > {slow}" for fast, slow in each.disordered) or "-"


def frontiers_table(outcome: Outcome) -> Rows:
    """Areas below the frontiers."""
    rows = [
        (dataset, policy, f"{theirs:.4g}", f"{ours:.4g}", percent(error))
        for (dataset, policy), (ours, theirs, error) in outcome.frontiers.items()
    ]
    return Rows("Hypervolume, (tokens/s)²", ("data", "policy", "measured", "simulated", "error %"), tuple(rows))


def crossings_table(found: Mapping[tuple[str, str], Crossing]) -> Rows:
    """Where policies fall behind AR."""
    rows = [
        (dataset, policy, _place(each.measured), _place(each.simulated), number(each.octaves))
        for (dataset, policy), each in found.items()
    ]
    return Rows("Slower than AR from C =", ("data", "policy", "measured", "simulated", "octaves late"), tuple(rows))


def _place(concurrency: float | None) -> str:
    return "never here" if concurrency is None else f"{concurrency:.3g}"


def budget_table(points: Sequence[Compared]) -> Rows:
    """Parts of the gap, in percent of the throughput; they add up."""
    rows = [
        (
            point.key.policy,
            point.key.dataset,
            str(point.key.concurrency),
            percent(point.budget.gap),
            *(percent(point.budget.parts[name]) for name in INGREDIENTS),
            percent(point.spread[THROUGHPUT]),
            _cpu(point.cpu[point.budget_of : point.budget_of + 1]),
        )
        for point in points
    ]
    heads = ("policy", "data", "C", "gap", *INGREDIENTS, "spread of repeats", "CPU x")
    return Rows("Error budget, %", heads, tuple(rows))


def shares_table(points: Sequence[Compared]) -> Rows:
    """Measured and simulated shares of block sizes and branch outcomes, where they are not all one block's."""
    names = [name for name in dict.fromkeys(name for point in points for name in point.measured) if _is_share(name)]
    rows = [
        (point.key.policy, point.key.dataset, str(point.key.concurrency), name, *_both(point, name))
        for point in points
        for name in names
        if point.measured.get(name) not in (None, 0, 1) or point.simulated.get(name) not in (None, 0, 1)
    ]
    return Rows("Block sizes and branches, % of rounds", ("policy", "data", "C", "share", "measured", "simulated"),
                tuple(rows))  # fmt: skip


def _is_share(name: str) -> bool:
    return name.startswith("block_share_") or name in OUTCOMES


def _both(point: Compared, name: str) -> tuple[str, str]:
    return percent(point.measured.get(name)), percent(point.simulated.get(name))


def percent(share: float | None) -> str:
    """Two decimals, or a dash."""
    return "-" if share is None else f"{100 * share:.2f}"


def number(value: float | None) -> str:
    """Four digits, or a dash."""
    return "-" if value is None else f"{value:.4g}"
