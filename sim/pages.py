"""HTML pages of figures and text that need nothing beside themselves."""

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:1100px;padding:16px;color:#222}
h1{font-size:22px}h2{font-size:17px;margin-top:32px}.plot{width:100%;height:480px}
table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}
th,td{border-bottom:1px solid #ddd;padding:3px 9px;text-align:right}th:first-child,td:first-child{text-align:left}
td.differs{background:#fdd}.warning{background:#fff3cd;border-left:4px solid #d39e00;padding:6px 12px;margin:6px 0}
.cross{background:#fdd;border-left:4px solid #c00;padding:6px 12px;font-weight:bold}
.origin td,.origin th{text-align:left;max-width:420px;overflow-wrap:anywhere}"""
SCRIPT = """const figures = JSON.parse(document.getElementById("figures").textContent);
const drawn = Object.entries(figures).map(([id, figure]) =>
  Plotly.newPlot(id, figure.data, figure.layout, {responsive: true, displaylogo: false}));
Promise.all(drawn).then(() => { document.body.dataset.drawn = String(drawn.length); });"""


def html_page(
    title: str, parts: Iterable[str], figures: Mapping[str, Any], *, heading: str = "", style: str = ""
) -> str:
    """A page of HTML ``parts``, under its title or another ``heading``. The same arguments give the same text.

    ``figures`` are plotly's, by the id of the element that each is drawn in.
    """
    # commands that write no page do without
    from plotly.offline import get_plotlyjs

    # a figure's text must not end the script that it stands in
    data = json.dumps(figures, allow_nan=False, sort_keys=True).replace("</", "<\\/")
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f"<style>{STYLE}{style}</style></head><body>\n<h1>{escape(heading or title)}</h1>",
            *parts,
            f'<script type="application/json" id="figures">{data}</script>',
            f"<script>{get_plotlyjs()}</script>\n<script>{SCRIPT}</script>\n</body></html>\n",
        ]
    )
