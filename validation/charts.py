"""The plots of a validation as plotly figures, plain data (https://plotly.com/javascript/reference)."""

from collections.abc import Mapping, Sequence
from typing import Any

from recguide.sim.campaigns import PointKey
from recguide.sim.charts import COLORS, GREY
from recguide.sim.sweep import BASELINE
from recguide.validation.budget import INGREDIENTS
from recguide.validation.frontiers import spot
from recguide.validation.points import THROUGHPUT, Compared
from recguide.validation.verdict import TPOT

Figure = dict[str, Any]


def figures(points: Sequence[Compared], anchors: Mapping[PointKey, Sequence[float]]) -> dict[str, tuple[str, Figure]]:
    """Heading and figure by id, in the order of the page."""
    found: dict[str, tuple[str, Figure]] = {}
    for number, dataset in enumerate(sorted({point.key.dataset for point in points})):
        here = [point for point in points if point.key.dataset == dataset]
        found[f"frontier-{number}"] = f"Frontier, {dataset}", frontier_figure(here)
        found[f"error-{number}"] = f"Error of the throughput, {dataset}", error_figure(here)
    found["tpot"] = "p99 TPOT", tpot_figure(points)
    found["budget"] = "Error budget", budget_figure(points)
    if anchors:
        found["drift"] = "Drift", drift_figure(anchors)
    return found


def frontier_figure(points: Sequence[Compared]) -> Figure:
    """Measured points with the spread of their repeats, and the simulated frontier as a line."""
    traces = []
    for name, mine in _by_policy(points).items():
        color = _color(points, name)
        measured = [spot(point, simulated=False) for point in mine]
        spreads = [(point.spread[THROUGHPUT] or 0) * (point.measured[THROUGHPUT] or 0) / 2 for point in mine]
        text = [f"C={point.key.concurrency}" for point in mine]
        bars = {"type": "data", "array": spreads, "visible": True}
        dots = {"mode": "markers+text", "marker": {"color": color, "size": 9}, "error_y": bars, "text": text}
        traces.append(_series(f"{name}, measured", measured) | dots | {"textposition": "top right"})
        foretold = [spot(point, simulated=True) for point in mine]
        line = {"mode": "lines+markers", "line": {"color": color, "dash": "dash"}, "marker": {"symbol": "x-thin-open"}}
        traces.append(_series(f"{name}, simulated", foretold) | line)
    return _figure(traces, "tokens/s per request", "tokens/s of all requests", log="xy")


def error_figure(points: Sequence[Compared]) -> Figure:
    """Signed error of the aggregate throughput against C; bars are the spread of the repeats."""
    traces = []
    for name, mine in _by_policy(points).items():
        spots = [(point.key.concurrency, _percent(point.error[THROUGHPUT])) for point in mine]
        bars = {"type": "data", "array": [(_percent(point.spread[THROUGHPUT]) or 0) / 2 for point in mine]}
        looks = {"mode": "lines+markers", "line": {"color": _color(points, name)}, "error_y": bars}
        traces.append(_series(name, spots) | looks)
    figure = _figure(traces, "concurrency C", "% (simulated over measured)", log="x")
    ticks = sorted({point.key.concurrency for point in points})
    figure["layout"]["xaxis"] |= {"tickmode": "array", "tickvals": ticks, "ticktext": list(map(str, ticks))}
    return figure


def tpot_figure(points: Sequence[Compared]) -> Figure:
    """Simulated against measured; on the line both are the same."""
    traces = []
    for name, mine in _by_policy(points).items():
        known = [point for point in mine if point.measured[TPOT] and point.simulated[TPOT]]
        spots = [(point.measured[TPOT], point.simulated[TPOT]) for point in known]
        looks = {"mode": "markers", "marker": {"color": _color(points, name), "size": 8}}
        traces.append(_series(name, spots) | looks | {"text": [str(point.key) for point in known]})
    values = [value for trace in traces for value in (*trace["x"], *trace["y"])]
    if values:
        ends = [min(values), max(values)]
        line = {"mode": "lines", "line": {"color": GREY, "dash": "dot", "width": 1}, "showlegend": False}
        traces.append(_series("the same", list(zip(ends, ends, strict=True))) | line)
    return _figure(traces, "measured, ms", "simulated, ms", log="xy")


def budget_figure(points: Sequence[Compared]) -> Figure:
    """What each ingredient carries of the gap, in percent of the throughput."""
    where = [[point.key.policy for point in points], [_place(point.key) for point in points]]
    traces: list[Figure] = [
        {
            "type": "bar",
            "name": name,
            "x": where,
            "y": [100 * point.budget.parts[name] for point in points],
            "marker": {"color": color},
        }
        for name, color in zip(INGREDIENTS, COLORS, strict=False)
    ]
    figure = _figure(traces, "", "% of the throughput")
    figure["layout"] |= {"barmode": "relative"}
    return figure


def drift_figure(anchors: Mapping[PointKey, Sequence[float]]) -> Figure:
    """Throughput of each anchor by session, over that of its first one."""
    traces = [
        _series(str(key), [(i, 100 * (speed / speeds[0] - 1)) for i, speed in enumerate(speeds, 1)])
        | {"mode": "lines+markers"}
        for key, speeds in anchors.items()
    ]
    return _figure(traces, "session", "% faster than in the first one")


def _by_policy(points: Sequence[Compared]) -> dict[str, list[Compared]]:
    found: dict[str, list[Compared]] = {}
    for point in sorted(points, key=lambda point: point.key.concurrency):
        found.setdefault(point.key.policy, []).append(point)
    return found


def _place(key: PointKey) -> str:
    return f"C={key.concurrency}, {key.dataset}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _color(points: Sequence[Compared], name: str) -> str:
    others = list(dict.fromkeys(point.key.policy for point in points if point.key.policy != BASELINE))
    return GREY if name == BASELINE else COLORS[others.index(name) % len(COLORS)]


def _series(name: str, spots: Sequence[tuple[Any, Any]]) -> Figure:
    return {"type": "scatter", "name": name, "x": [x for x, _ in spots], "y": [y for _, y in spots]}


def _figure(traces: list[Figure], x: str, y: str, log: str = "") -> Figure:
    axes: dict[str, Figure] = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    for axis in log:
        axes[f"{axis}axis"] |= {"type": "log"}
    layout = {"template": "none", "hovermode": "closest", "margin": {"l": 70, "r": 20, "t": 30, "b": 70}}
    return {"data": traces, "layout": {**layout, **axes}}
