"""Several dense traces as one: only where the same model recorded them over the same block sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recguide.traces.checks import require
from recguide.traces.dense import DenseTrace, Provenance

SAME = ("model", "weights_sha256", "adapter_sha256", "dtype", "block_sizes", "draft_shift", "max_context")
_JOINED = ("engine_commit", "gpu", "driver", "torch", "prompt_set_sha256", "command", "note")


def merge_traces(parts: Sequence[tuple[Path, DenseTrace]]) -> DenseTrace:
    """One trace with the requests of all parts; ValueError names both files where they differ or share a request."""
    first, head = parts[0]
    origin: dict[str, Path] = {}
    for path, trace in parts:
        for field in SAME:
            ours, theirs = getattr(head.provenance, field), getattr(trace.provenance, field)
            require(ours == theirs, f"{path}: {field}", theirs, f"{ours!r}, as in {first}")
        for request in trace.requests:
            twin = origin.setdefault(request.request_id, path)
            require(twin is path, f"{path}: request {request.request_id!r}: id", f"also in {twin}", "once")
    requests = tuple(request for _, trace in parts for request in trace.requests)
    return DenseTrace(_merged_provenance([trace for _, trace in parts]), requests)


def _merged_provenance(traces: Sequence[DenseTrace]) -> Provenance:
    all_of = [trace.provenance for trace in traces]
    if len(all_of) == 1:
        return all_of[0]
    joined: dict[str, Any] = {
        field: "; ".join(dict.fromkeys(getattr(each, field) for each in all_of)) for field in _JOINED
    }
    return replace(
        all_of[0],
        **joined,
        max_output_tokens=max(each.max_output_tokens for each in all_of),
        created=max(each.created for each in all_of),
        dropped=_summed([each.dropped for each in all_of]),
        base_agreement=_weighted_agreement(traces),
    )


def _summed(counts: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for dropped in counts:
        for dataset, reasons in dropped.items():
            there = total.setdefault(dataset, {})
            for reason, count in reasons.items():
                there[reason] = there.get(reason, 0) + count
    return total


def _weighted_agreement(traces: Sequence[DenseTrace]) -> float | None:
    """Share over all chain tokens, or None when one of the traces has none."""
    matched, tokens = 0.0, 0
    for trace in traces:
        if trace.provenance.base_agreement is None:
            return None
        size = sum(request.output_tokens for request in trace.requests)
        matched, tokens = matched + size * trace.provenance.base_agreement, tokens + size
    return matched / tokens
