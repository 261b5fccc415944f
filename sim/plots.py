"""The frontier: aggregate against per-request throughput, one line a policy (paper, Figure 5)."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from recguide.sim.levels import level_of
from recguide.sim.sweep import BASELINE, NOTICED, Point, frontier


def plot_frontier(points: Sequence[Point], title: str, path: Path) -> None:
    """Write the frontier as a PNG, the concurrency printed at every point."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for i, name in enumerate(dict.fromkeys(str(point["policy"]) for point in points)):
        _draw_policy(axes, [point for point in points if point["policy"] == name], i)
    axes.set(title=title, xlabel="tokens/s per request", ylabel="tokens/s of all requests", xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(which="both", alpha=0.2)
    axes.legend(title="policy (at the points: concurrency, or load)", fontsize="small", title_fontsize="small")
    figure.savefig(path, format="png", dpi=120)


def _draw_policy(axes: Axes, points: Sequence[Point], index: int) -> None:
    name = str(points[0]["policy"])
    color, style = ("0.35", "--") if name == BASELINE else (f"C{index % 10}", "-")
    spots = [frontier(point) for point in points]
    axes.plot([x for x, _ in spots], [y for _, y in spots], style, color=color, label=name, linewidth=1.5)
    for point, (x, y) in zip(points, spots, strict=True):
        measured = float(point["extrapolated_share"] or 0) <= NOTICED
        axes.plot(x, y, "o", color=color, markersize=5, markerfacecolor=color if measured else "white")
        level = level_of(point)
        said = str(level.concurrency) if level.concurrency and not level.rate else str(level)
        axes.annotate(said, (x, y), (4, 4), textcoords="offset points", color=color, fontsize=7)
