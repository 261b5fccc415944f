"""What a sweep leaves behind: a folder with the points as Parquet, JSON and a plot."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recguide.sim.plots import plot_frontier
from recguide.sim.sweep import Point
from recguide.traces.documents import as_json, write_text
from recguide.traces.files import replacing

FORMAT = 1
PLOT = "frontier.png"
DOCUMENT = "results.json"
FILES = (DOCUMENT, "results.parquet", PLOT, "report.html", "config.resolved.yaml", "env.json")


def foreign_file(folder: Path) -> Path | None:
    """A file that a sweep would overwrite there although no sweep wrote it, or None."""
    there = [folder / name for name in FILES if (folder / name).exists()]
    return there[0] if there and not _is_sweep(folder / DOCUMENT) else None


def _is_sweep(path: Path) -> bool:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and "recguide_sweep" in document


def write_results(
    folder: Path,
    points: Sequence[Point],
    about: Mapping[str, Any],
    title: str,
    texts: Mapping[str, str | None] = MappingProxyType({}),
) -> Path:
    """Write results.parquet, results.json and the plot; each appears whole or not at all. Gives the plot's path.

    ``about`` says what the points come from. Nothing in the files depends on when or how fast they were made.
    ``texts`` are further files by name; None deletes one that an earlier sweep left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = ("results.parquet", DOCUMENT, PLOT)
    with ExitStack() as stack:
        table, document, plot = (stack.enter_context(replacing(folder / name)) for name in names)
        pq.write_table(_columns(points, about), table, compression="zstd")
        whole = {"recguide_sweep": FORMAT, **about, "points": points}
        document.write_text(as_json(whole), encoding="utf-8")
        plot_frontier(points, title, plot)
    for name, text in texts.items():
        if text is None:
            (folder / name).unlink(missing_ok=True)
            continue
        write_text(folder / name, text)
    return folder / PLOT


def _columns(points: Sequence[Point], about: Mapping[str, Any]) -> pa.Table:
    table = pa.Table.from_pylist(list(points))
    # a figure that no point has is a number all the same
    fields = [pa.field(f.name, pa.float64()) if pa.types.is_null(f.type) else f for f in table.schema]
    metadata = {"recguide": json.dumps(about, allow_nan=False)}
    return table.cast(pa.schema(fields)).replace_schema_metadata(metadata)
