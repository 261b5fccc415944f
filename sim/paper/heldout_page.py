"""The held-out gains on the page, on the screen and as plain data."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from recguide.sim.charts import COLORS, Figure
from recguide.sim.paper.heldout import Gain, beaten_everywhere

Gains = Mapping[str, Sequence[Gain]]
BEATS = (
    "regime with allocation over the paper's rule at its best",
    "joint over the paper's rule at its best",
    "joint over the paper's rule, full buckets",
    "joint over the paper's rule, C in flight in all",
    "joint over the better of overlap and the best fixed block",
)


def html(found: Gains, label: str, name: str) -> str:
    """A section of the page; its plot is called ``name``."""
    loads = [gain.load for gain in next(iter(found.values()))]
    head = "".join(f"<th>{cell}</th>" for cell in ["gain, % (95% interval)", *(f"C = {load}" for load in loads)])
    rows = "".join(
        f"<tr><td>{escape(what)}</td>{''.join(f'<td>{said(gain)}</td>' for gain in gains)}</tr>"
        for what, gains in found.items()
    )
    return (
        f"<h2>Gains on datasets that nothing was fitted to: {escape(label)}</h2>"
        "<p>Each dataset is served by itself under policies that were fitted to all others; tokens per second of "
        "decoding while all places are taken; mean and interval over datasets. The paper's rule: overlap at C = 1, "
        "adaptive blocks in buckets above, of C requests in all or full ones with three times as many in flight. At "
        "its best: the fastest, on the very requests, of overlap and of adaptive blocks in either, padded to the "
        "largest, or mixed without padding. Allocation: unequal blocks for all in one step, by the same tables. "
        "Regime: overlap up to the fitted switch point, allocation above. Joint: rows and block size from one "
        "objective. All three have C in flight (docs/policies.md).</p>"
        f'<div class="plot" id="{name}"></div><table><tr>{head}</tr>{rows}</table>'
        f"<p>{'; '.join(claims(found))}</p>"
    )


def claims(found: Gains) -> list[str]:
    """Whether our policies are ahead at every load."""
    return [
        f"{what}: {'ahead at every load' if beaten_everywhere(found[what]) else 'not surely ahead at every load'}"
        for what in BEATS
    ]


def said(gain: Gain) -> str:
    """In percent."""
    return f"{100 * gain.gain:+.1f} ({100 * gain.low:+.1f}, {100 * gain.high:+.1f})"


def figure(found: Gains) -> Figure:
    """Gains against C with their intervals."""
    traces = []
    for (what, gains), color in zip(found.items(), cycle(COLORS), strict=False):
        up, down = (
            [100 * each for each in side]
            for side in zip(*((g.high - g.gain, g.gain - g.low) for g in gains), strict=True)
        )
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": what,
                "x": [gain.load for gain in gains],
                "y": [100 * gain.gain for gain in gains],
                "error_y": {"type": "data", "array": up, "arrayminus": down},
                "line": {"color": color},
            }
        )
    loads = [gain.load for gain in next(iter(found.values()))]
    axes = {
        "xaxis": {
            "title": {"text": "concurrency C"},
            "type": "log",
            "tickvals": loads,
            "ticktext": [str(c) for c in loads],
        },
        "yaxis": {"title": {"text": "gain, %"}},
    }
    return {"data": traces, "layout": {"template": "none", "hovermode": "closest", **axes}}


def table_of(found: Gains, label: str) -> Table:
    """For the terminal."""
    title = f"Gains on datasets that nothing was fitted to, % (95% interval over datasets): {label}"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("gain")
    for gain in next(iter(found.values())):
        table.add_column(f"C = {gain.load}", justify="right", no_wrap=True)
    for what, gains in found.items():
        table.add_row(what, *(said(gain).replace(" ", "\n", 1) for gain in gains))
    return table


def plain(found: Gains) -> dict[str, Any]:
    """As plain data."""
    return {
        what: [
            {"load": g.load, "gain": g.gain, "low": g.low, "high": g.high, "of_dataset": dict(g.of_dataset)}
            for g in gains
        ]
        for what, gains in found.items()
    }
