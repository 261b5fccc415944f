"""Rounds of linear self-speculation, replayed from a dense trace at one block size (paper, section 3.1)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.traces.dense import DenseTrace, matched_lens

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Every round of a trace at one block size, request after request, in order: each array is [rounds]."""

    block_size: int
    request: Ints
    """Index into the trace's requests."""
    position: Ints
    """Output tokens committed before the round."""
    row: Ints
    """Of the position, when all requests' positions stand one below the other."""
    matched: Ints
    """Draft tokens accepted, those past the output's end left out."""
    accept_len: Ints
    """Tokens emitted: the matched ones and the verifier's own, unless the output ended before it."""
    rejected: Bools
    """Whether the verifier turned a draft token down, at a position that the output has."""
    cut: Bools
    """Whether the output ended inside the round, so that fewer tokens came out than were accepted."""

    @property
    def full(self) -> Bools:
        """Whether the whole block was accepted and emitted."""
        full: Bools = self.accept_len == self.block_size
        return full

    @property
    def passed(self) -> tuple[Ints, Ints]:
        """Row and offset of every draft token that was accepted."""
        rows = np.repeat(self.row, self.matched)
        starts = np.cumsum(self.matched) - self.matched
        return rows, np.arange(len(rows)) - np.repeat(starts, self.matched)

    @property
    def first_rejected(self) -> tuple[Ints, Ints]:
        """Row and offset of every first rejected draft token."""
        return self.row[self.rejected], self.matched[self.rejected]

    def of(self, chosen: Bools) -> "Replay":
        """The rounds of the chosen requests: ``chosen`` is [requests]."""
        keep = chosen[self.request]
        names = ("request", "position", "row", "matched", "accept_len", "rejected", "cut")
        return Replay(self.block_size, *(getattr(self, name)[keep] for name in names))


def replay(trace: DenseTrace, block_size: int) -> Replay:
    """Linear self-speculation at a fixed block size over every request of the trace."""
    matched = matched_lens(np.concatenate([r.drafts["seeded", block_size].match for r in trace.requests]))
    outputs = output_tokens(trace)
    first = np.cumsum(outputs) - outputs
    request, position = _walk(matched, first, outputs)
    row = first[request] + position
    left = outputs[request] - position
    accepted = matched[row] + 1
    return Replay(
        block_size,
        request,
        position,
        row,
        matched=np.minimum(matched[row], left),
        accept_len=np.minimum(accepted, left),
        rejected=(accepted < block_size) & (accepted <= left),
        cut=accepted > left,
    )


def output_tokens(trace: DenseTrace) -> Ints:
    """[requests] Output tokens of each request, EOS counted."""
    return np.array([request.output_tokens for request in trace.requests], dtype=np.int64)


def positions(trace: DenseTrace) -> Ints:
    """[rows] The position of every row, when all requests' positions stand one below the other."""
    return np.concatenate([np.arange(request.output_tokens) for request in trace.requests])


def _walk(matched: Ints, first: Ints, outputs: Ints) -> tuple[Ints, Ints]:
    """Request and position of every round: all requests take their next round at once, until none has tokens left."""
    request = np.flatnonzero(outputs > 1)
    position = np.ones(len(request), dtype=np.int64)
    visited = []
    while len(request):
        visited.append((request, position))
        position = position + matched[first[request] + position] + 1
        going = position < outputs[request]
        request, position = request[going], position[going]
    if not visited:
        return request, position
    requests, positions = (np.concatenate(part) for part in zip(*visited, strict=True))
    order = np.argsort(requests, kind="stable")
    return requests[order], positions[order]
