"""Drafts as columns of a trace file and back: what is nearly known from another column is stored as the difference.

Per view and block size, before the prefix "{view}_b{B}_" of docs/traces.md: ``match``, ``second``, ``second_eos`` (the
bits of ``second`` that barring EOS changes), ``margin`` or ``margin_diff`` (from the margin of the seeded draft at the
largest block size, same position and token, modulo 256: whichever is smaller), and ``p1_above`` (p1 minus margin).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recguide.traces.checks import require
from recguide.traces.dense import VIEWS, DenseTrace, Drafts, num_draft_tokens

Levels = NDArray[np.uint8]
_MASK = pa.list_(pa.uint32())
_CODEC = "zstd"


def draft_columns(block_sizes: Sequence[int], present: Iterable[str]) -> dict[str, pa.DataType]:
    """Names and types of the columns of a file, given the names that it has: they say how its margins are stored."""
    there = set(present)
    columns: dict[str, pa.DataType] = {}
    for view, block_size, prefix in _grid(block_sizes):
        columns |= {prefix + name: _MASK for name in ("match", "second", "second_eos")}
        as_diff = prefix + "margin_diff" in there and (view, block_size) != ("seeded", block_sizes[-1])
        columns[prefix + ("margin_diff" if as_diff else "margin")] = pa.binary()
        if view == "seeded":
            columns[prefix + "p1_above"] = pa.binary()
    return columns


def encode_drafts(trace: DenseTrace) -> dict[str, list[Any]]:
    """The cells of every column, one a request."""
    block_sizes = trace.provenance.block_sizes
    reference = [request.drafts["seeded", block_sizes[-1]].margin for request in trace.requests]
    cells: dict[str, list[Any]] = {}
    for view, block_size, prefix in _grid(block_sizes):
        drafts = [request.drafts[view, block_size] for request in trace.requests]
        cells[prefix + "match"] = [each.match for each in drafts]
        cells[prefix + "second"] = [each.second for each in drafts]
        cells[prefix + "second_eos"] = [each.second ^ each.second_no_eos for each in drafts]
        name, levels = _smaller_margins([each.margin for each in drafts], reference)
        cells[prefix + name] = levels
        if view == "seeded":
            cells[prefix + "p1_above"] = [(each.p1 - each.margin).tobytes() for each in drafts if each.p1 is not None]
    return cells


def decode_drafts(
    cells: Mapping[str, Any], block_sizes: Sequence[int], output_tokens: int, where: str
) -> dict[tuple[str, int], Drafts]:
    """The drafts of one request, from its cells by column; ValueError opens with ``where``."""
    drafts: dict[tuple[str, int], Drafts] = {}
    shape = output_tokens, num_draft_tokens("seeded", block_sizes[-1])
    reference = _levels(cells, f"seeded_b{block_sizes[-1]}_margin", shape, where)
    for view, block_size, prefix in _grid(block_sizes):
        shape = output_tokens, num_draft_tokens(view, block_size)
        margin = _margin(cells, prefix, shape, reference, where)
        p1 = margin + _levels(cells, prefix + "p1_above", shape, where) if view == "seeded" else None
        match, second = cells[prefix + "match"], cells[prefix + "second"]
        drafts[view, block_size] = Drafts(match, second, _flipped(cells, prefix, where), margin, p1)
    return drafts


def _grid(block_sizes: Sequence[int]) -> Iterable[tuple[str, int, str]]:
    return ((view, size, f"{view}_b{size}_") for view in VIEWS for size in block_sizes)


def _smaller_margins(margins: Sequence[Levels], references: Sequence[Levels]) -> tuple[str, list[bytes]]:
    plain = [margin.tobytes() for margin in margins]
    if all(margin is reference for margin, reference in zip(margins, references, strict=True)):
        return "margin", plain
    pairs = zip(margins, references, strict=True)
    diff = [(margin - _fitted(reference, margin.shape[1])).tobytes() for margin, reference in pairs]
    return ("margin_diff", diff) if _packed(diff) < _packed(plain) else ("margin", plain)


def _margin(cells: Mapping[str, Any], prefix: str, shape: tuple[int, int], reference: Levels, where: str) -> Levels:
    if prefix + "margin_diff" in cells:
        return _levels(cells, prefix + "margin_diff", shape, where) + _fitted(reference, shape[1])
    return _levels(cells, prefix + "margin", shape, where)


def _fitted(reference: Levels, num_tokens: int) -> Levels:
    """The reference cut to a block's draft tokens; a continuation has one more, which is told in full."""
    if num_tokens > reference.shape[1]:
        reference = np.pad(reference, ((0, 0), (0, num_tokens - reference.shape[1])))
    return reference[:, :num_tokens]


def _flipped(cells: Mapping[str, Any], prefix: str, where: str) -> NDArray[np.uint32]:
    second, changes = cells[prefix + "second"], cells[prefix + "second_eos"]
    require(second.shape == changes.shape, f"{where}{prefix}second_eos", changes.shape, f"{second.shape} as second")
    flipped: NDArray[np.uint32] = second ^ changes
    return flipped


def _levels(cells: Mapping[str, Any], name: str, shape: tuple[int, int], where: str) -> Levels:
    data, size = cells[name], shape[0] * shape[1]
    require(len(data) == size, where + name, f"{len(data)} bytes", f"{size}: output_tokens x draft tokens")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _packed(cells: Sequence[bytes]) -> int:
    return len(pa.compress(b"".join(cells), codec=_CODEC, asbytes=True))
