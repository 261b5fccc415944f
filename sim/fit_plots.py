"""What a fitted policy expects and decides, as a picture: V_B over certainty, and block sizes over load."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from recguide.sim.adaptive import ALL, Adaptive, adaptive, stratum
from recguide.traces.files import replacing

GREYS = ("#deebf7", "#9ecae1", "#4292c6", "#08519c", "#08306b")


def plot_policy(fitted: Adaptive, title: str, path: Path) -> None:
    """Write a PNG: the upper row has V_B by stratum z, the lower one the block size for each bin of s and load C."""
    names = [ALL, *(stratum(size, full) for size in fitted.candidates for full in (False, True))]
    shown = [name for name in names if name in fitted.values]
    figure = Figure(figsize=(2.6 * len(shown) + 1, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(shown), squeeze=False)
    tables = adaptive(fitted).tables
    for column, name in enumerate(shown):
        _values(axes[0, column], fitted, name)
        _decisions(axes[1, column], fitted, tables[:, names.index(name)])
        axes[0, column].set_title("all rounds" if name == ALL else f"after {name.replace('_', ', ')}", fontsize=9)
    axes[0, 0].set_ylabel("V_B, tokens")
    axes[1, 0].set_ylabel("concurrency C")
    axes[0, 0].legend(fontsize=7)
    figure.suptitle(f"{title}: expected tokens, and the block size chosen", fontsize=10)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _values(axes: Axes, fitted: Adaptive, name: str) -> None:
    for size, values in fitted.values[name].items():
        axes.step(range(len(values)), values, where="mid", label=f"B = {size}")
    axes.set(ylim=(0, fitted.candidates[-1] + 1))
    axes.tick_params(labelsize=7)


def _decisions(axes: Axes, fitted: Adaptive, table: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> None:
    places = np.searchsorted(np.array(fitted.candidates), table)
    count = len(fitted.candidates)
    colors = ListedColormap(GREYS[:count] if count <= len(GREYS) else [str(1 - i / count) for i in range(count)])
    norm = BoundaryNorm(np.arange(count + 1) - 0.5, colors.N)
    axes.imshow(places, aspect="auto", origin="lower", cmap=colors, norm=norm, interpolation="nearest")
    axes.set_yticks(range(len(fitted.loads)), [str(load.concurrency) for load in fitted.loads])
    axes.set_xlabel("bin of s, surer to the right", fontsize=8)
    axes.tick_params(labelsize=7)
    for size, color in zip(fitted.candidates, _hex(colors, count), strict=True):
        axes.plot([], [], "s", color=color, label=f"B = {size}")
    axes.legend(fontsize=6, loc="upper left")


def _hex(colors: ListedColormap, count: int) -> Sequence[tuple[float, float, float, float]]:
    return [colors(i) for i in range(count)]
