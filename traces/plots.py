"""The paper's Figure 3 for a trace: confidence and margin where drafts pass and where they fail, and by offset."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from recguide.traces.errors import InputError
from recguide.traces.files import replacing
from recguide.traces.summaries import Confidence, Offsets, cumulative

_TITLES = {"p1": "Confidence of the draft token", "margin": "Margin between its two candidates"}


def plot_trace(confidence: Sequence[Confidence], offsets: Sequence[Offsets], title: str, path: Path) -> None:
    """Write three panels as a PNG: the distribution functions of confidence and of margin, and agreement by offset."""
    if path.suffix != ".png":
        raise InputError(f"{path}: found suffix {path.suffix!r}, allowed: .png")
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3)
    _draw_distribution(axes[0], confidence, "p1")
    _draw_distribution(axes[1], confidence, "margin")
    _draw_offsets(axes[2], offsets)
    figure.suptitle(title)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def _draw_distribution(axes: Axes, confidence: Sequence[Confidence], level: str) -> None:
    steps = np.arange(257) / 256
    # "all" of a single category would draw its curve twice
    shown = confidence[:-1] if len(confidence) == 2 else confidence
    for i, part in enumerate(shown):
        for counts, style, name in ((part.passed, "-", "passed"), (part.rejected, "--", "first rejected")):
            if sum(counts[level]):
                shares = np.array(cumulative(counts[level]), dtype=float)
                axes.plot(steps, shares, style, color=f"C{i}", label=f"{part.category}, {name}")
    axes.set(title=_TITLES[level], xlabel=level, ylabel="share of positions below", xlim=(0, 1), ylim=(0, 1))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(title=f"B = {shown[0].block_size}", fontsize="small")


def _draw_offsets(axes: Axes, offsets: Sequence[Offsets]) -> None:
    for i, curve in enumerate(offsets):
        places = np.arange(1, curve.block_size)
        # a share of nothing is a gap in the line
        agreement = np.array(curve.agreement, dtype=float)
        conditional = np.array(curve.conditional, dtype=float)
        axes.plot(places, agreement, ".-", color=f"C{i}", label=f"B = {curve.block_size}, agrees")
        axes.plot(places, conditional, ".--", color=f"C{i}", label=f"B = {curve.block_size}, accepted after the last")
    axes.set(title="Draft tokens by offset", xlabel="offset behind the seed", ylabel="share", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
