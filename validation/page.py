"""One HTML page about a validation that needs nothing beside itself."""

import json
from collections.abc import Mapping, Sequence
from html import escape

from plotly.offline import get_plotlyjs

from recguide.sim.report import SCRIPT, STYLE
from recguide.validation.charts import Figure
from recguide.validation.tables import Rows

EXPLAINED = {
    "Error budget": "From the simulated run to the measured one, one ingredient after the other is replaced by its "
    "measured value: what was accepted, who shared each step, what the forwards took, what the host took. The parts "
    "add up to the gap; above 0 the simulator is too fast.",
    "Drift": "The same point, measured once in every session.",
}


def page(title: str, warnings: Sequence[str], figures: Mapping[str, tuple[str, Figure]], found: Sequence[Rows]) -> str:
    """The page. The same arguments give the same text."""
    drawn = {name: figure for name, (_, figure) in figures.items()}
    data = json.dumps(drawn, allow_nan=False, sort_keys=True).replace("</", "<\\/")
    plots = [
        f'<h2>{escape(heading)}</h2><div class="plot" id="{name}"></div>{_explained(heading)}'
        for name, (heading, _) in figures.items()
    ]
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f"<style>{STYLE}</style></head><body>\n<h1>{escape(title)}</h1>",
            *(f'<p class="warning">{escape(text)}</p>' for text in warnings),
            *map(_table, found[:2]),
            *plots,
            *map(_table, found[2:]),
            f'<script type="application/json" id="figures">{data}</script>',
            f"<script>{get_plotlyjs()}</script>\n<script>{SCRIPT}</script>\n</body></html>\n",
        ]
    )


def _explained(heading: str) -> str:
    return f"<p>{escape(EXPLAINED[heading])}</p>" if heading in EXPLAINED else ""


def _table(rows: Rows) -> str:
    if not rows.cells:
        return ""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows.heads)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows.cells)
    return f"<h2>{escape(rows.title)}</h2><table><tr>{head}</tr>{body}</table>"


def _cells(row: Sequence[str]) -> str:
    mark = ' class="differs"' if row[-1] == "NO" else ""
    return "".join(f"<td{mark}>{escape(cell)}</td>" for cell in row)
