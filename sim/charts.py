"""The plots of a report as plotly figures, each plain data: traces and layout (https://plotly.com/javascript/reference)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recguide.sim.levels import Level, level_of, levels_of
from recguide.sim.pareto import undominated
from recguide.sim.sweep import BASELINE, NOTICED, Point, frontier

Figure = dict[str, Any]
Quantiles = Mapping[tuple[str, Level], Mapping[str, Sequence[float]]]
"""By policy and level: the sorted values of each latency, or evenly spaced quantiles of them."""

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#3b3b98")
GREY = "#666666"
LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2el_ms": "E2E latency"}


def policies_of(points: Sequence[Point]) -> list[str]:
    """Names of the policies, in order."""
    return list(dict.fromkeys(str(point["policy"]) for point in points))


def frontier_figure(points: Sequence[Point], label: str) -> Figure:
    """Aggregate against per-request tokens/s (paper, Figure 5); what nothing beats wears a ring."""
    traces = [_frontier_line(points, name) for name in policies_of(points)]
    spots = [frontier(point) for point in points]
    best = [spot for spot, stands in zip(spots, undominated(spots), strict=True) if stands]
    ring = {"symbol": "circle-open", "size": 15, "color": "#222222", "line": {"width": 1.5}}
    traces.append({**_series("beaten by no other point", best, ring), "mode": "markers"})
    return _figure(traces, label, "Throughput frontier", "tokens/s per request", "tokens/s of all requests", log="xy")


def _frontier_line(points: Sequence[Point], name: str) -> Figure:
    mine = [point for point in points if point["policy"] == name]
    line: Figure = _series(name, [frontier(point) for point in mine], _markers(points, name))
    text = [str(level_of(point)) for point in mine]
    hover = "%{text}<br>%{x:,.0f} tokens/s per request<br>%{y:,.0f} tokens/s of all"
    looks: Figure = {"textposition": "top right", "textfont": {"size": 10}, "hovertemplate": hover}
    return {**line, "mode": "lines+markers+text", "text": text, "line": _line(points, name), **looks}


def load_figure(points: Sequence[Point], label: str, metric: str, title: str, unit: str) -> Figure:
    """A metric against the load, a line for each policy; ``metric`` may be ``tokens/s`` as in the frontier.

    The load is the request rate where there are several, with a line for each concurrency, and the concurrency else.
    """
    by_rate = len({level.rate for level in levels_of(points)}) > 1
    lines = sorted({level.concurrency if by_rate else level.rate for level in levels_of(points)})
    traces = []
    for name in policies_of(points):
        for fixed in lines:
            here = [point for point in points if point["policy"] == name and level_of(point)[not by_rate] == fixed]
            mine = sorted(here, key=level_of)
            values = [frontier(point)[1] if metric == "tokens/s" else point[metric] for point in mine]
            spots = [(float(level_of(point)[by_rate]), value) for point, value in zip(mine, values, strict=True)]
            said = name if len(lines) == 1 else f"{name}, {Level(int(fixed))}"
            line = _series(said, spots, _markers(mine, name, policies_of(points)))
            traces.append({**line, "mode": "lines+markers", "line": _line(points, name)})
    ticks = sorted({level[by_rate] for level in levels_of(points)})
    return _figure(traces, label, title, "requests per second" if by_rate else "concurrency C", unit, "xy", ticks)


def shares_figure(points: Sequence[Point], label: str) -> Figure:
    """The shares of block sizes among the rounds of requests (paper, Table 4), policy by policy and C by C."""
    mixed = mixed_points(points)
    where = [[str(point["policy"]) for point in mixed], [str(level_of(point)) for point in mixed]]
    traces: list[Figure] = [
        {"type": "bar", "name": _block(key), "x": where, "y": [100 * float(point[key] or 0) for point in mixed]}
        for key in share_keys(points)
    ]
    for trace, color in zip(traces, (GREY, *COLORS), strict=False):
        trace["marker"] = {"color": color}
    figure = _figure(traces, label, "Block sizes chosen", "", "% of the rounds of requests")
    figure["layout"] |= {"barmode": "stack"}
    return figure


def share_keys(points: Sequence[Point]) -> list[str]:
    """The metrics with a block size's share, by block size."""
    keys = {key for point in points for key in point if key.startswith("block_share_")}
    return sorted(keys, key=lambda key: int(key.rpartition("_")[2]))


def mixed_points(points: Sequence[Point]) -> list[Point]:
    """The points whose rounds have several block sizes; all of them where none has."""
    return [point for point in points if not _lone(point)] or list(points)


def _lone(point: Point) -> bool:
    return any(float(value or 0) == 1 for key, value in point.items() if key.startswith("block_share_"))


def _block(key: str) -> str:
    size = key.rpartition("_")[2]
    return "AR step" if size == "1" else f"B = {size}"


def distribution_figure(quantiles: Quantiles, points: Sequence[Point], label: str, metric: str) -> Figure:
    """The share of requests below a latency, at the load that the menu chooses."""
    levels = levels_of(points)
    traces = [
        {**_cdf(quantiles[name, level][metric], name), "line": _line(points, name), "visible": level == levels[-1]}
        for level in levels
        for name in policies_of(points)
        if len(quantiles.get((name, level), {}).get(metric, ()))
    ]
    owners = [level for level in levels for name in policies_of(points) if quantiles.get((name, level), {}).get(metric)]
    figure = _figure(traces, label, LATENCIES[metric], "ms", "% of requests", log="x")
    buttons = [
        {"label": str(level), "method": "restyle", "args": ["visible", [owner == level for owner in owners]]}
        for level in levels
    ]
    menu = {"buttons": buttons, "active": len(levels) - 1, "x": 1.0, "xanchor": "right", "y": 1.14}
    figure["layout"] |= {"updatemenus": [menu]}
    return figure


def _cdf(values: Sequence[float], name: str) -> Figure:
    heights = np.linspace(0, 100, len(values)) if len(values) > 1 else np.array([100.0])
    line = _series(name, list(zip(values, heights.tolist(), strict=True)), {})
    return {**line, "mode": "lines" if len(values) > 1 else "markers"}


def outcomes_figure(points: Sequence[Point], label: str, keys: Mapping[str, str]) -> Figure:
    """How often each kind of branch was ready and used (paper, Table 3), in % of all rounds."""
    mine = [point for point in points if any(point.get(key) is not None for key in keys)]
    where = [[str(point["policy"]) for point in mine], [str(level_of(point)) for point in mine]]
    traces = [
        {"type": "bar", "name": name, "x": where, "y": [100 * float(point.get(key) or 0) for point in mine]}
        for key, name in keys.items()
    ]
    figure = _figure(traces, label, "Branch outcomes", "", "% of rounds")
    figure["layout"] |= {"barmode": "group", "colorway": list(COLORS)}
    return figure


def cost_figure(lines: Mapping[int, Sequence[tuple[int, float, bool]]], dots: Figure, label: str, span: Any) -> Figure:  # noqa: ANN401
    """The cost surface T_C(B): seconds of a round over concurrency, a line for each block size.

    ``lines`` holds concurrency, milliseconds and whether this was measured; what was not is dotted, and lies in the
    shaded area outside ``span``, the first and last profiled number of requests. ``dots`` are measured points.
    """
    traces = []
    for i, (size, knots) in enumerate(lines.items()):
        color = GREY if size == 1 else COLORS[(i - 1) % len(COLORS)]
        inside = [(c, ms if measured else None) for c, ms, measured in knots]
        name = "AR step" if size == 1 else f"B = {size}"
        traces.append({**_series(f"{name}, extrapolated", [(c, ms) for c, ms, _ in knots], {}), "mode": "lines"})
        traces[-1] |= {"line": {"color": color, "dash": "dot", "width": 1}, "showlegend": False}
        traces.append({**_series(name, inside, {}), "mode": "lines", "line": {"color": color, "width": 2}})
    marks = {"color": "rgba(0,0,0,0)", "size": 8, "line": {"color": "#222222", "width": 1}}
    traces.append({**dots, "type": "scatter", "mode": "markers", "name": "profiled shape", "marker": marks})
    levels = sorted({c for knots in lines.values() for c, _, _ in knots})
    figure = _figure(traces, label, "Cost of a round, T_C(B)", "requests in the step", "ms", log="xy", ticks=levels)
    figure["layout"] |= {"shapes": _shades(levels, span)}
    return figure


def _shades(levels: Sequence[int], span: tuple[float, float]) -> list[Figure]:
    edges = [(levels[0], span[0]), (span[1], levels[-1])]
    grey = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "fillcolor": "rgba(120,120,120,0.18)", "layer": "below"}
    return [grey | {"x0": low, "x1": high, "line": {"width": 0}} for low, high in edges if low < high]


def _series(name: str, spots: Sequence[tuple[Any, Any]], marker: Figure) -> Figure:
    series = {"type": "scatter", "name": name, "x": [x for x, _ in spots], "y": [y for _, y in spots]}
    return series | ({"marker": marker} if marker else {})


def _color(name: str, names: Sequence[str]) -> str:
    others = [other for other in names if other != BASELINE]
    return GREY if name == BASELINE else COLORS[others.index(name) % len(COLORS)]


def _line(points: Sequence[Point], name: str) -> Figure:
    dash = "dash" if name == BASELINE else "solid"
    return {"color": _color(name, policies_of(points)), "dash": dash, "width": 2}


def _markers(points: Sequence[Point], name: str, names: Sequence[str] = ()) -> Figure:
    """Hollow where too much of a point's time was extrapolated."""
    mine = [point for point in points if point["policy"] == name]
    hollow = [float(point["extrapolated_share"] or 0) > NOTICED for point in mine]
    color = _color(name, names or policies_of(points))
    return {"color": color, "size": 8, "symbol": ["circle-open" if each else "circle" for each in hollow]}


def _figure(
    traces: list[Figure], label: str, title: str, x: str, y: str, log: str = "", ticks: Sequence[float] = ()
) -> Figure:
    whole = f"{title} · <b>{label}</b>" if label else title
    axes: dict[str, Figure] = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    for axis in axes:
        axes[axis] |= {"type": "log", **_ticks(traces, axis[0])} if axis[0] in log else {}
    if ticks:
        axes["xaxis"] |= {"tickmode": "array", "tickvals": list(ticks), "ticktext": [f"{tick:g}" for tick in ticks]}
    layout = {"title": {"text": whole, "font": {"size": 15}}, "template": "none", "hovermode": "closest"}
    return {"data": traces, "layout": {**layout, **axes, "margin": {"l": 70, "r": 20, "t": 70, "b": 60}}}


def _ticks(traces: Sequence[Figure], axis: str) -> Figure:
    """1, 2, 5, 10, ... written out, where plotly would leave out the powers of ten; its own marks in narrow ranges."""
    values = [value for trace in traces for value in trace[axis] if value]
    if not values:
        return {}
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    marks = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    if sum(min(values) <= mark <= max(values) for mark in marks) < 3:
        return {}
    return {"tickmode": "array", "tickvals": marks, "ticktext": [f"{mark:,.15g}" for mark in marks]}
