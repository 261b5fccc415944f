"""What a dense trace promises, checked where one enters or leaves: ValueError with request, field, found, allowed."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from recguide.traces.dense import (
    BLOCK_SIZE_RANGE,
    FINISH_REASONS,
    MASKS,
    VIEWS,
    DenseRequest,
    DenseTrace,
    Drafts,
    Provenance,
    num_draft_tokens,
)
from recguide.traces.errors import InputError

_HEX = frozenset("0123456789abcdef")


def check_trace(trace: DenseTrace) -> None:
    """Check the provenance, each request against it, and that there are requests, each once."""
    check_provenance(trace.provenance)
    require(len(trace.requests) > 0, "requests", "none", "at least one")
    seen: set[str] = set()
    for request in trace.requests:
        require(request.request_id not in seen, f"request {request.request_id!r}: id", "there twice", "once")
        seen.add(request.request_id)
        check_request(request, trace.provenance)


def check_provenance(provenance: Provenance) -> None:
    """Check every field: texts, block sizes, limits, shares, dates and counts."""
    for field in fields(provenance):
        value = getattr(provenance, field.name)
        if field.type is str or (field.name == "adapter_sha256" and value is not None):
            require(isinstance(value, str), field.name, value, "text")
    _check_block_sizes(provenance.block_sizes)
    require(provenance.draft_shift in (0, 1), "draft_shift", provenance.draft_shift, "0 or 1")
    for name in ("max_output_tokens", "max_context"):
        require(_is_count(getattr(provenance, name), 1), name, getattr(provenance, name), "a whole number, 1 or more")
    share = provenance.base_agreement
    is_share = isinstance(share, int | float) and 0 <= share <= 1
    require(share is None or is_share, "base_agreement", share, "0 to 1, or null")
    require(_is_iso(provenance.created), "created", provenance.created, "an ISO 8601 time")
    _check_dropped(provenance.dropped)


def check_request(request: DenseRequest, provenance: Provenance) -> None:
    """Check one request: its header, that every array has the length it must have, and what the arrays hold."""
    where = f"request {request.request_id!r}: "
    _check_header(request, provenance, where)
    _check_tokens(request, where)
    entropy = request.entropy
    _check_array(entropy, np.float32, (request.output_tokens,), f"{where}entropy")
    _require_all(np.isfinite(entropy) & (entropy >= 0), entropy, f"{where}entropy", "finite and 0 or more")
    wanted = {(view, block_size) for view in VIEWS for block_size in provenance.block_sizes}
    require(set(request.drafts) == wanted, f"{where}drafts", sorted(request.drafts), sorted(wanted))
    for (view, block_size), drafts in request.drafts.items():
        num_tokens = num_draft_tokens(view, block_size)
        _check_masks(drafts, request, num_tokens, f"{where}{view}_b{block_size}_")
        _check_confidence(drafts, (request.output_tokens, num_tokens), view, f"{where}{view}_b{block_size}_")


def require(holds: bool, field: str, found: object, allowed: object) -> None:
    """Raise ValueError with the field, what was found there and what is allowed, unless it holds."""
    if not holds:
        raise InputError(f"{field}: found {found!r}, allowed: {allowed}")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def require_place(path: Path | None, field: str) -> None:
    """Raise ValueError where no file can get that name: it is a folder, or lies in one that is not there.

    For commands that work for long before they write.
    """
    if path is not None:
        require(not path.is_dir() and path.parent.is_dir(), field, str(path), "a file in a folder that is there")


def require_folder(path: Path, field: str) -> None:
    """Raise InputError where no folder can get that name: it, or what it should lie in, is a file."""
    nearest = next(each for each in (path, *path.parents) if each.exists() or each.is_symlink())
    if not nearest.is_dir():
        raise InputError(f"{field}: found the file {nearest}, allowed: a folder, or a new name")


def _check_block_sizes(block_sizes: tuple[int, ...]) -> None:
    low, high = BLOCK_SIZE_RANGE
    inside = len(block_sizes) > 0 and all(_is_count(size, low) and size <= high for size in block_sizes)
    ascending = inside and list(block_sizes) == sorted(set(block_sizes))
    require(ascending, "block_sizes", list(block_sizes), f"ascending whole numbers, {low} to {high}")


def _check_dropped(dropped: object) -> None:
    if not isinstance(dropped, Mapping):
        raise InputError(f"dropped: found {dropped!r}, allowed: dataset to reason to count")
    for dataset, reasons in dropped.items():
        require(isinstance(reasons, Mapping), f"dropped[{dataset!r}]", reasons, "reason to count")
        for reason, count in reasons.items():
            require(_is_count(count, 0), f"dropped[{dataset!r}][{reason!r}]", count, "a whole number, 0 or more")


def _check_header(request: DenseRequest, provenance: Provenance, where: str) -> None:
    for name in ("request_id", "dataset", "category"):
        value = getattr(request, name)
        require(isinstance(value, str) and value != "", f"{where}{name}", value, "text that is not empty")
    digest = request.prompt_sha256
    require(len(digest) == 64 and _HEX.issuperset(digest), f"{where}prompt_sha256", digest, "64 hex digits")
    require(request.finish_reason in FINISH_REASONS, f"{where}finish_reason", request.finish_reason, FINISH_REASONS)
    limits = {"prompt_tokens": provenance.max_context, "output_tokens": provenance.max_output_tokens}
    for name, limit in limits.items():
        value = getattr(request, name)
        require(_is_count(value, 1) and value <= limit, f"{where}{name}", value, f"1 to {limit}")


def _check_tokens(request: DenseRequest, where: str) -> None:
    lengths = {"prompt_ids": request.prompt_tokens, "output_ids": request.output_tokens}
    for name, length in lengths.items():
        ids = getattr(request, name)
        if ids is not None:
            _check_array(ids, np.int32, (length,), where + name)
            _require_all(ids >= 0, ids, where + name, "0 or more")


def _check_masks(drafts: Drafts, request: DenseRequest, num_tokens: int, where: str) -> None:
    room = _chain_bits(request, num_tokens)
    for name in MASKS:
        bits = getattr(drafts, name)
        _check_array(bits, np.uint32, (request.output_tokens,), where + name)
        _require_all(bits & ~room == 0, bits, where + name, f"bits 0 to {num_tokens - 1}, none past EOS")
    for name in MASKS[1:]:
        bits = getattr(drafts, name)
        _require_all(bits & drafts.match == 0, bits, where + name, "no bit that match has set too")


def _check_confidence(drafts: Drafts, shape: tuple[int, int], view: str, where: str) -> None:
    _check_array(drafts.margin, np.uint8, shape, where + "margin")
    require((drafts.p1 is not None) == (view == "seeded"), where + "p1", drafts.p1, "an array in the seeded view alone")
    if drafts.p1 is not None:
        _check_array(drafts.p1, np.uint8, shape, where + "p1")
        _require_all(
            np.asarray((drafts.p1 >= drafts.margin).all(axis=-1)), drafts.p1, where + "p1", "at least the margin"
        )


def _chain_bits(request: DenseRequest, num_tokens: int) -> NDArray[np.uint32]:
    """[P] The bits that may be set: those of draft tokens, and of positions that the chain has."""
    # a chain that ended at its limit was recorded further, so that every draft has its tokens to be scored against
    ahead = np.arange(request.output_tokens, 0, -1) if request.finish_reason == "eos" else np.int64(num_tokens)
    room = np.minimum(np.broadcast_to(ahead, request.output_tokens), num_tokens)
    return ((np.int64(1) << room) - 1).astype(np.uint32)


def _check_array(values: object, dtype: type[np.generic], shape: tuple[int, ...], field: str) -> None:
    found = (getattr(values, "dtype", type(values)), getattr(values, "shape", None))
    # the words are made only when they are needed: there are dozens of arrays a request
    if found != (dtype, shape):
        raise InputError(f"{field}: found {found[0]} of shape {found[1]}, allowed: {np.dtype(dtype)} of shape {shape}")


def _require_all(holds: NDArray[np.bool_], values: NDArray[Any], field: str, allowed: object) -> None:
    if not holds.all():
        position = int(np.argmin(holds))
        require(False, f"{field}[{position}]", values[position].tolist(), allowed)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_iso(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
