"""The page that puts the paper's figures beside ours, self-contained, and the same in the terminal and as JSON."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rich.table import Table

from recguide.sim.pages import html_page
from recguide.sim.paper.entries import Claim, Entry, Section

HEADS = ("figure", "paper", "ours", "difference", "%", "band", "is to us", "", "recorded")
MISS = (
    "td.miss,li.miss{background:#fdd}"
    ".reason{background:#fff3cd;border-left:4px solid #d39e00;padding:6px 12px;margin:6px 0}"
)


def page(
    sections: Sequence[Section], about: Mapping[str, str], extra: str = "", more: Mapping[str, Any] | None = None
) -> str:
    """The page; the same arguments give the same text. ``extra`` is HTML behind the sections, ``more`` its plots."""
    figures = dict(more or {}) | {
        f"{one.name}-{one.model}-{name}": figure for one in sections for name, figure in one.figures.items()
    }
    told = "".join(f"<tr><td>{escape(key)}</td><td>{escape(value)}</td></tr>" for key, value in about.items())
    parts = [f'<table class="origin">{told}</table>', *(_section(one) for one in sections), extra]
    return html_page("The paper beside ours", parts, figures, heading="The paper's results beside ours", style=MISS)


def _section(one: Section) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in HEADS)
    rows = "".join(_row(entry, one) for entry in one.entries)
    claims = "".join(_claim(claim, one) for claim in one.claims)
    plots = "".join(f'<div class="plot" id="{one.name}-{one.model}-{name}"></div>' for name in one.figures)
    reasons = "".join(f'<p class="reason">{i}. {escape(why.text)}</p>' for i, why in enumerate(one.reasons, 1))
    return (
        f"<h2>{one.title}, NLD-{one.model.upper()}: {escape(one.about)}</h2><p>{summary(one)}</p>{plots}"
        f"<ul>{claims}</ul>{reasons}<table><tr>{head}</tr>{rows}</table>"
    )


def _claim(claim: Claim, one: Section) -> str:
    said = f"{claim.kind}): {escape(claim.text)}: {escape(claim.detail)}"
    if claim.holds:
        return f"<li>holds ({said}</li>"
    return f'<li class="miss"><b>does not hold</b>{because(one, claim.text)} ({said}</li>'


def _row(entry: Entry, one: Section) -> str:
    mark = ' class="miss"' if entry.missed else ""
    return f"<tr>{''.join(f'<td{mark}>{escape(cell)}</td>' for cell in cells(entry, because(one, entry.name)))}</tr>"


def because(one: Section, name: str) -> str:
    """Which of the section's reasons are those of a figure or a claim, by number."""
    numbers = one.why(name)
    return f", why: {', '.join(map(str, numbers))}" if numbers else ", unexplained"


def cells(entry: Entry, why: str = "") -> list[str]:
    """An entry in words and numbers, by ``HEADS``; ``why`` follows a miss."""
    share = entry.share
    return [
        entry.name,
        number(entry.paper),
        number(entry.ours),
        number(entry.difference, sign=True),
        "" if share is None else f"{100 * share:+.1f}",
        f"{number(entry.band[0])} to {number(entry.band[1])}" if entry.band else "",
        entry.kind,
        f"miss{why}" if entry.missed else "",
        number(entry.recorded),
    ]


def number(value: float | None, sign: bool = False) -> str:
    """Two digits behind the point, none from 1000 on."""
    if value is None:
        return ""
    plus = "+" if sign else ""
    return f"{value:{plus},.0f}" if abs(value) >= 1000 else f"{value:{plus}.2f}"


def summary(one: Section) -> str:
    """How many figures are within their bounds."""
    checked = [entry for entry in one.entries if entry.target and entry.target.within is not None]
    kinds = [kind for kind in ("fitted", "predicted") if any(e.target and e.target.kind == kind for e in checked)]
    parts = []
    for kind in kinds:
        mine = [entry for entry in checked if entry.target and entry.target.kind == kind]
        parts.append(f"{kind}: {sum(not entry.missed for entry in mine)} of {len(mine)} within bounds")
    if one.claims:
        parts.append(f"claims: {sum(claim.holds for claim in one.claims)} of {len(one.claims)} hold")
    return "; ".join(parts)


def table_of(one: Section) -> Table:
    """The section for the terminal: what the paper has figures for."""
    table = Table(title=f"{one.title}, NLD-{one.model.upper()}: {one.about}\n{summary(one)}")
    for i, heading in enumerate(HEADS):
        table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    for entry in one.entries:
        if entry.paper is not None and entry.kind != "input":
            table.add_row(*cells(entry), style="red" if entry.missed else "")
    for claim in one.claims:
        verdict = "holds" if claim.holds else "does not hold"
        table.add_row(f"{claim.text}: {verdict}", style="" if claim.holds else "red")
    return table


def document(
    sections: Sequence[Section], about: Mapping[str, str], held_out: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The same as plain data."""
    told = {"recguide_reproduce": 1, "about": dict(about), "sections": [_plain(one) for one in sections]}
    return told | ({"held_out": held_out} if held_out else {})


def _plain(one: Section) -> dict[str, Any]:
    return {
        "name": one.name,
        "model": one.model,
        "summary": summary(one),
        "entries": [
            {
                "name": entry.name,
                "paper": entry.paper,
                "kind": entry.kind,
                "within": entry.target and entry.target.within,
                "ours": entry.ours,
                "band": entry.band,
                "missed": entry.missed,
                "why": one.why(entry.name) if entry.missed else [],
                "recorded": entry.recorded,
            }
            for entry in one.entries
        ],
        "claims": [
            {
                "text": claim.text,
                "holds": claim.holds,
                "kind": claim.kind,
                "detail": claim.detail,
                "why": [] if claim.holds else one.why(claim.text),
            }
            for claim in one.claims
        ],
        "reasons": [reason.text for reason in one.reasons],
    }
