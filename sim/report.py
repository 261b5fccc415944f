"""One HTML page about a sweep that needs nothing beside itself: figures, tables, and where everything comes from."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from recguide.sim.charts import (
    LATENCIES,
    Figure,
    Quantiles,
    cost_figure,
    distribution_figure,
    frontier_figure,
    load_figure,
    mixed_points,
    outcomes_figure,
    policies_of,
    share_keys,
    shares_figure,
)
from recguide.sim.guards import COMPARED
from recguide.sim.levels import Level, level_of, levels_of
from recguide.sim.pages import html_page
from recguide.sim.pareto import crossover, hypervolume
from recguide.sim.surface import Surface
from recguide.sim.sweep import BASELINE, Point, frontier
from recguide.traces.dense import differ

Shares = Mapping[tuple[str, Level], Mapping[str, Mapping[int, float]]]
"""By policy and level, by dataset, by block size."""

OUTCOMES = {
    "correction_coverage": "correction ready",
    "correction_reuse": "correction used",
    "continuation_coverage": "continuation ready",
    "continuation_reuse": "continuation used",
    "no_hit": "no hit",
}


def report(
    points: Sequence[Point],
    about: Mapping[str, Any],
    title: str,
    quantiles: Quantiles,
    shares: Shares,
    costs: Surface | None = None,
) -> str:
    """The page. The same arguments give the same text.

    ``about`` is what results.json says about the points, ``quantiles`` the latencies of each point's requests, and
    ``shares`` those of block sizes among their rounds.
    """
    label = _label(about)
    figures = _figures(points, label, quantiles, costs)
    sections = [f'<h2>{escape(heading)}</h2><div class="plot" id="{name}"></div>{text}' for name, heading, text in
                _sections(points, figures, shares, costs)]  # fmt: skip
    parts = [
        f'<p class="cross">{escape(label)}</p>' if label else "",
        *(f'<p class="warning">{escape(text)}</p>' for text in about.get("warnings", ())),
        *sections,
        f"<h2>All points</h2>{points_table(points)}",
        f"<h2>Where this comes from</h2>{origin_table(about)}",
    ]
    return html_page(title, parts, figures)


def _label(about: Mapping[str, Any]) -> str:
    if not about.get("cross_model"):
        return ""
    return f"CROSS-MODEL: acceptance of {about['trace']['model']}, costs of {about['profile']['model']}"


def _figures(points: Sequence[Point], label: str, quantiles: Quantiles, costs: Surface | None) -> dict[str, Figure]:
    figures = {"frontier": frontier_figure(points, label)}
    if len(levels_of(points)) > 1:
        figures["throughput"] = load_figure(points, label, "tokens/s", "Throughput against load", "tokens/s of all")
        figures["tpot"] = load_figure(points, label, "mean_tpot_ms", "Mean TPOT against load", "ms per output token")
    figures["shares"] = shares_figure(points, label)
    if any(point.get(key) is not None for point in points for key in OUTCOMES):
        figures["outcomes"] = outcomes_figure(points, label, OUTCOMES)
    for metric in LATENCIES:
        if any(len(latencies.get(metric, ())) for latencies in quantiles.values()):
            figures[metric] = distribution_figure(quantiles, points, label, metric)
    if costs is not None:
        dots = {"x": [count for count, _ in costs.profiled], "y": [ms for _, ms in costs.profiled]}
        figures["costs"] = cost_figure(costs.lines, dots, label, costs.span)
    return figures


def _sections(
    points: Sequence[Point], figures: Mapping[str, Figure], shares: Shares, costs: Surface | None
) -> list[tuple[str, str, str]]:
    texts = {
        "frontier": ("Frontier", frontier_table(points)),
        "throughput": ("Throughput against load", ""),
        "tpot": ("Time per output token against load", ""),
        "shares": ("Block sizes (paper, Table 4)", shares_table(points, shares)),
        "outcomes": ("Branch outcomes (paper, Table 3)", ""),
        "costs": ("Cost surface", _about_costs(costs)),
    }
    texts |= {metric: (f"{name} of the requests", "") for metric, name in LATENCIES.items()}
    return [(name, *texts[name]) for name in figures]


def _about_costs(costs: Surface | None) -> str:
    context = costs.context if costs else 0
    return (
        f"<p>A draft, a verify and the host's time (AR: a decode and the host's time) of requests with {context} "
        "cached tokens each, the mean of this trace. Rings: shapes that were profiled. Dotted, and grey "
        "in the background: extrapolated.</p>"
    )


def frontier_table(points: Sequence[Point]) -> str:
    """Area below each policy's frontier, and from which concurrency on it loses against AR."""
    rows = []
    base = hypervolume([frontier(point) for point in points if point["policy"] == BASELINE])
    for name in policies_of(points):
        mine = [point for point in points if point["policy"] == name]
        area = hypervolume([frontier(point) for point in mine])
        over = [
            (level_of(point).concurrency, float(point["speedup"])) for point in mine if point["speedup"] is not None
        ]
        # a line over concurrencies needs some, and one point at each
        lost = crossover(over) if 0 not in dict(over) and len(dict(over)) == len(over) else None
        until = "-" if name == BASELINE else "never here" if lost is None else f"C = {lost:.3g}"
        rows.append([name, f"{area:.4g}", f"{area / base:.2f}" if base else "-", until])
    heads = ["policy", "hypervolume, (tokens/s)²", "over AR's", "slower than AR from"]
    return _table(heads, rows) + (
        "<p>Hypervolume: the area of (tokens/s per request) x (tokens/s of all) that a policy's points dominate, down "
        "to 0. Rings: points that no other is at least as good as in both and better in one. Hollow points: more than "
        "5% of their time is extrapolated.</p>"
    )


def shares_table(points: Sequence[Point], shares: Shares) -> str:
    """The paper's Table 4: shares of the block sizes by dataset, their mean over datasets, and those of all rounds.

    There is a row for each policy and load where block sizes vary.
    """
    sizes = [int(key.rpartition("_")[2]) for key in share_keys(points)]
    mixed = mixed_points(points)
    datasets = sorted({name for by_dataset in shares.values() for name in by_dataset})
    rows = []
    for point in mixed:
        mine = shares.get((str(point["policy"]), level_of(point)), {})
        macro = {size: sum(each[size] for each in mine.values()) / len(mine) for size in sizes} if mine else {}
        pooled = {size: float(point[f"block_share_{size}"] or 0) for size in sizes}
        cells = [_joined(each, sizes) for each in (*(mine.get(name, {}) for name in datasets), macro, pooled)]
        rows.append([f"{point['policy']}, {level_of(point)}", *cells])
    return _table([f"B = {' / '.join(map(str, sizes))}, %", *datasets, "mean of datasets", "all rounds"], rows)


def _joined(shares: Mapping[int, float], sizes: Sequence[int]) -> str:
    return " / ".join(f"{100 * shares[size]:.2f}" for size in sizes) if shares else "-"


def _percent(value: object) -> str:
    return "-" if value is None else f"{100 * float(str(value)):.2f}"


def points_table(points: Sequence[Point]) -> str:
    """The figures of the terminal's table."""
    names = (
        "speedup",
        "headroom_share",
        "accept_length",
        "tpf",
        "mean_ttft_ms",
        "mean_tpot_ms",
        "p99_tpot_ms",
        "mean_e2el_ms",
    )
    rows = []
    for point in points:
        mine, all_of = frontier(point)
        values = [point.get(name) for name in names]
        cells = ["-" if value is None else f"{float(value):,.2f}" for value in values]
        share = _percent(point["extrapolated_share"])
        rows.append([str(point["policy"]), str(level_of(point)), f"{all_of:,.0f}", f"{mine:,.0f}", *cells, share])
    return _table(["policy", "load", "tokens/s", "per request", *names, "extrapolated %"], rows)


def origin_table(about: Mapping[str, Any]) -> str:
    """Trace and profile side by side; what should agree and does not is marked."""
    trace, profile = about.get("trace", {}), about.get("profile", {})
    keys = [*dict.fromkeys([*trace, *profile])]
    lines = []
    for key in keys:
        pair = [_shown(trace.get(key)), _shown(profile.get(key))]
        differs = key in COMPARED and differ(*pair)
        mark = ' class="differs"' if differs else ""
        lines.append(f"<tr><td>{escape(key)}</td>{''.join(f'<td{mark}>{escape(cell)}</td>' for cell in pair)}</tr>")
    for key, value in {"datasets": about.get("datasets"), "options": about.get("options")}.items():
        lines.append(f"<tr><td>{key}</td><td colspan=2>{escape(_shown(value))}</td></tr>")
    return f'<table class="origin"><tr><th></th><th>trace</th><th>profile</th></tr>{"".join(lines)}</table>'


def _shown(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
