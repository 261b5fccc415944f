"""One HTML page about a validation that needs nothing beside itself."""

from collections.abc import Mapping, Sequence
from html import escape

from recguide.sim.pages import html_page
from recguide.validation.charts import Figure
from recguide.validation.tables import Rows

EXPLAINED = {
    "Error budget": "From the simulated run to the measured one, one ingredient after the other is replaced by its "
    "measured value: what was accepted, who shared each step, what the forwards took, how fast the CPU was, what the "
    "host took. The parts add up to the gap; above 0 the simulator is too fast.",
    "Drift": "The same point, measured once in every session.",
}


def page(title: str, warnings: Sequence[str], figures: Mapping[str, tuple[str, Figure]], found: Sequence[Rows]) -> str:
    """The page. The same arguments give the same text."""
    drawn = {name: figure for name, (_, figure) in figures.items()}
    plots = [
        f'<h2>{escape(heading)}</h2><div class="plot" id="{name}"></div>{_explained(heading)}'
        for name, (heading, _) in figures.items()
    ]
    told = [f'<p class="warning">{escape(text)}</p>' for text in warnings]
    return html_page(title, [*told, *map(_table, found[:2]), *plots, *map(_table, found[2:])], drawn)


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
