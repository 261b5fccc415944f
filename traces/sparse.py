"""Sparse traces: the acceptance lengths of rounds that somebody served, and nothing about those that nobody did.

They replay with reduced fidelity. At the position where a round was served, at the block size that it had, the outcome
is the recorded one. In between, a draft is taken to reach as far as the one that was served; at a smaller block size
it is cut. There are no margins, entropies or branches, so policies that look at them cannot be replayed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from recguide.traces.checks import require
from recguide.traces.dense import BLOCK_SIZE_RANGE, SCHEMA_VERSION, VIEWS, DenseRequest, DenseTrace, Drafts, Provenance
from recguide.traces.dense import num_draft_tokens as num_drafts

KIND = "sparse"
REDUCED = "reduced fidelity"
"""How the note of an expanded trace starts."""
_COLUMNS = {
    "id": pa.string(),
    "dataset": pa.string(),
    "category": pa.string(),
    "prompt_tokens": pa.int64(),
    "output_tokens": pa.int64(),
    "accept_lens": pa.list_(pa.int64()),
}


@dataclass(frozen=True, slots=True)
class SparseRequest:
    """One served request."""

    request_id: str
    dataset: str
    category: str
    prompt_tokens: int
    output_tokens: int
    """The prefill's token included, so 1 without any round."""
    accept_lens: tuple[int, ...]
    """Of its rounds in order: matched drafts and the verifier's own token, so 1 to the block size."""


@dataclass(frozen=True, slots=True)
class SparseTrace:
    """Requests that one system served with drafts of at most B - 1 tokens."""

    model: str
    block_size: int
    source: str
    """Format and file that it was imported from."""
    dropped: Mapping[str, int]
    """Reason to count of requests that were left out."""
    requests: tuple[SparseRequest, ...]


def is_reduced(trace: DenseTrace) -> bool:
    """Whether a trace was expanded from served rounds."""
    return trace.provenance.note.startswith(REDUCED)


def check_sparse(trace: SparseTrace) -> None:
    """ValueError with request and field unless rounds of 1 to B tokens add up to every output."""
    low, high = BLOCK_SIZE_RANGE
    require(low <= trace.block_size <= high, "block_size", trace.block_size, f"{low} to {high}")
    require(len(trace.requests) > 0, "requests", "none", "at least one")
    seen: set[str] = set()
    for request in trace.requests:
        where = f"request {request.request_id!r}: "
        require(request.request_id not in seen, f"{where}id", "there twice", "once")
        seen.add(request.request_id)
        for name in ("prompt_tokens", "output_tokens"):
            require(getattr(request, name) >= 1, where + name, getattr(request, name), "1 or more")
        for index, length in enumerate(request.accept_lens):
            require(1 <= length <= trace.block_size, f"{where}accept_lens[{index}]", length, f"1 to {trace.block_size}")
        before, whole = sum(request.accept_lens[:-1]) + 1, sum(request.accept_lens) + 1
        fits = before < request.output_tokens <= whole if request.accept_lens else request.output_tokens == 1
        require(fits, f"{where}output_tokens", request.output_tokens, f"{before + 1} to {whole}, as its rounds give")


def write_sparse(trace: SparseTrace, path: Path) -> None:
    """Check a trace and write it as one Parquet file, which appears whole or not at all."""
    from recguide.traces.files import METADATA_KEY, replacing

    check_sparse(trace)
    rows = [asdict(request) for request in trace.requests]
    cells = {name: [row["request_id" if name == "id" else name] for row in rows] for name in _COLUMNS}
    table = pa.table([pa.array(cells[name], type=kind) for name, kind in _COLUMNS.items()], names=list(_COLUMNS))
    about = {name: getattr(trace, name) for name in ("model", "block_size", "source", "dropped")}
    document = json.dumps({"schema": SCHEMA_VERSION, "kind": KIND, **about})
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata({METADATA_KEY: document}), temporary, compression="zstd")


def sparse_of(table: pa.Table, document: Mapping[str, Any]) -> SparseTrace:
    """The trace in a table whose metadata is this document; ValueError for what is none."""
    require(document.get("schema") == SCHEMA_VERSION, "schema", document.get("schema"), SCHEMA_VERSION)
    for name, kind in _COLUMNS.items():
        found = table.schema.field(name).type if name in table.column_names else "none"
        require(found == kind, f"column {name}", str(found), kind)
        require(table[name].null_count == 0, f"column {name}", None, "values")
    kinds: dict[str, type] = {"model": str, "block_size": int, "source": str, "dropped": dict}
    for name, wanted in kinds.items():
        require(isinstance(document.get(name), wanted), name, document.get(name), wanted.__name__)
    lens = [tuple(each) for each in table["accept_lens"].to_pylist()]
    rows = zip(*(table[name].to_pylist() for name in list(_COLUMNS)[:-1]), lens, strict=True)
    requests = tuple(SparseRequest(*row) for row in rows)
    trace = SparseTrace(**{name: document[name] for name in kinds}, requests=requests)
    check_sparse(trace)
    return trace


def expanded(trace: SparseTrace) -> DenseTrace:
    """A dense trace that plays the same rounds, its note saying that all else is a guess."""
    sizes = tuple(sorted({size for size in (2, 4, 8, 16, 32) if size < trace.block_size} | {trace.block_size}))
    longest = max(request.output_tokens for request in trace.requests)
    context = max(request.prompt_tokens + request.output_tokens for request in trace.requests)
    provenance = Provenance(
        model=trace.model,
        **dict.fromkeys(("weights_sha256", "dtype", "engine_commit", "gpu", "driver", "torch"), "unknown"),
        adapter_sha256=None,
        prompt_set_sha256="unknown",
        block_sizes=sizes,
        draft_shift=0,
        max_output_tokens=longest,
        max_context=context + trace.block_size,
        command=f"imported from {trace.source}",
        created="1970-01-01T00:00:00+00:00",
        dropped={"imported": dict(trace.dropped)},
        base_agreement=None,
        note=f"{REDUCED}: served rounds of {trace.source} at block size {trace.block_size}; all others are guessed",
    )
    return DenseTrace(provenance, tuple(_expanded(request, sizes) for request in trace.requests))


def reach(request: SparseRequest) -> NDArray[np.int64]:
    """[P] The acceptance length at every position: the served one, and in between what was left of it."""
    lens = np.ones(request.output_tokens, np.int64)
    position = 1
    for length in request.accept_lens:
        end = min(position + length, request.output_tokens)
        lens[position:end] = length - np.arange(end - position)
        position += length
    return lens


def _expanded(request: SparseRequest, sizes: Sequence[int]) -> DenseRequest:
    lens = reach(request)
    quiet = np.zeros(request.output_tokens, np.uint32)
    drafts = {}
    for view in VIEWS:
        for size in sizes:
            matched = np.minimum(lens, size) - 1 if view == "seeded" else 0 * lens
            level = np.zeros((request.output_tokens, num_drafts(view, size)), np.uint8)
            match = ((np.int64(1) << matched) - 1).astype(np.uint32)
            drafts[view, size] = Drafts(match, quiet, quiet, level, level if view == "seeded" else None)
    header = (request.request_id, request.dataset, request.category, "0" * 64, request.prompt_tokens)
    return DenseRequest(*header, request.output_tokens, "length", quiet.astype(np.float32), drafts)
