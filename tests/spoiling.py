"""Changing a trace file behind the back of its writer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recguide.traces.files import METADATA_KEY

Change = Callable[[Any], Any]


def rewrite(path: Path, table: pa.Table, document: Any = None) -> Path:
    """Write a table to bad.parquet beside ``path``, with the same metadata or with ``document`` in its place."""
    metadata = pq.read_schema(path).metadata if document is None else {METADATA_KEY: json.dumps(document)}
    bad = path.with_name("bad.parquet")
    pq.write_table(table.replace_schema_metadata(metadata), bad)
    return bad


def with_document(path: Path, change: Change) -> Path:
    """Change the JSON of the metadata."""
    document = json.loads(pq.read_schema(path).metadata[METADATA_KEY])
    return rewrite(path, pq.read_table(path), change(document))


def with_provenance(path: Path, **fields: object) -> Path:
    """Change fields of the provenance."""
    return with_document(path, lambda document: document | {"provenance": document["provenance"] | fields})


def with_cell(path: Path, column: str, row: int, change: Change) -> Path:
    """Change one cell of the table, its column's type kept."""
    table = pq.read_table(path)
    cells = table.column(column).to_pylist()
    cells[row] = change(cells[row])
    index = table.column_names.index(column)
    kind = table.schema.field(column).type
    return rewrite(path, table.set_column(index, column, pa.array(cells, type=kind)))


def at(position: int, value: object) -> Change:
    """A change of one entry of a list."""
    return lambda cells: [value if i == position else cell for i, cell in enumerate(cells)]
