"""Plots of the page as plotly figures, each plain data: traces and layout."""

from collections.abc import Sequence
from typing import Any

from recguide.sim.charts import COLORS, GREY, Figure
from recguide.sim.paper.entries import Entry
from recguide.sim.paper.published import HIGH_LOADS
from recguide.sim.paper.subjects import Subject
from recguide.traces.replays import replay
from recguide.traces.summaries import confidence, cumulative

MOST_BARS = 90


def bars(entries: Sequence[Entry], recorded: bool) -> Figure:
    """Every figure of a table: paper, ours, recorded; those without a paper's where there are too many."""
    shown = [entry for entry in entries if entry.paper is not None] if len(entries) > MOST_BARS else list(entries)
    names = [entry.name for entry in shown]
    traces: list[Figure] = [
        {"type": "bar", "name": "paper", "x": names, "y": [entry.paper for entry in shown]},
        {"type": "bar", "name": "ours", "x": names, "y": [entry.ours for entry in shown]},
    ]
    if recorded:
        traces.append({"type": "bar", "name": "recorded", "x": names, "y": [entry.recorded for entry in shown]})
    for trace, color in zip(traces, (GREY, *COLORS), strict=False):
        trace["marker"] = {"color": color}
    return {"data": traces, "layout": _layout("", "") | {"barmode": "group", "margin": {"b": 170, "t": 20}}}


def frontier_lines(figures: dict[str, float]) -> Figure:
    """Figure 5: a line for each way of choosing blocks, a point for each C."""
    names = list(dict.fromkeys(name.split(", ", 1)[1].rsplit(", C", 1)[0] for name in figures))
    traces = []
    for name, color in zip(names, COLORS, strict=False):
        spots = [
            (figures[f"tokens/s per request, {name}, C = {c}"], figures[f"tokens/s, {name}, C = {c}"])
            for c in HIGH_LOADS
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers+text",
                "name": name,
                "x": [x for x, _ in spots],
                "y": [y for _, y in spots],
                "text": [str(c) for c in HIGH_LOADS],
                "textposition": "top right",
                "line": {"color": color},
            }
        )
    return {"data": traces, "layout": _layout("tokens/s per request", "tokens/s of all requests")}


def confidence_curves(subject: Subject) -> Figure:
    """Figure 3: distribution functions of confidence and margin, by category."""
    trace = subject.of(subject.benchmarks)
    levels = [step / 256 for step in range(257)]
    traces = []
    parts = [part for part in confidence(trace, replay(trace, 16)) if part.category != "all"]
    for part, color in zip(parts, COLORS, strict=False):
        for what, counts, dash in (("passed", part.passed, "solid"), ("first rejected", part.rejected, "dash")):
            for kind, width in (("p1", 2), ("margin", 1)):
                line = {"color": color, "dash": dash, "width": width}
                name = f"{part.category}, {what}, {'confidence' if kind == 'p1' else 'margin'}"
                y = cumulative(counts[kind])
                traces.append({"type": "scatter", "mode": "lines", "name": name, "x": levels, "y": y, "line": line})
    return {"data": traces, "layout": _layout("confidence or margin", "share of positions below")}


def _layout(x: str, y: str) -> dict[str, Any]:
    axes = {"xaxis": {"title": {"text": x}, "automargin": True}, "yaxis": {"title": {"text": y}, "automargin": True}}
    return {"template": "none", "hovermode": "closest", **axes, "margin": {"l": 70, "r": 20, "t": 30, "b": 60}}
