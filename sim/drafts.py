"""Recorded drafts of all requests as flat arrays, one row a position, beside ``Rounds``."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from recguide.traces.dense import DenseTrace, Drafts

Number = TypeVar("Number", bound=np.generic)
Key = tuple[str, int]
"""View and block size."""


@dataclass(frozen=True, slots=True, eq=False)
class FlatDrafts:
    """Drafts of one view and block size; row ``first[r] + p`` of ``Rounds``, zeros behind each last position."""

    match: NDArray[np.uint32]
    second: NDArray[np.uint32]
    second_no_eos: NDArray[np.uint32]
    margin: NDArray[np.uint8]
    """[rows, draft tokens]"""
    p1: NDArray[np.uint8] | None
    """[rows, draft tokens]; the seeded view alone has it."""

    def in_memory(self) -> "FlatDrafts":
        """The same as plain arrays, whatever kind of array it was made of."""
        masks = (np.asarray(self.match), np.asarray(self.second), np.asarray(self.second_no_eos))
        return FlatDrafts(*masks, np.asarray(self.margin), None if self.p1 is None else np.asarray(self.p1))


def flat_drafts(trace: DenseTrace, keys: Iterable[Key]) -> dict[Key, FlatDrafts]:
    """The drafts of a trace in these views and block sizes."""
    return {key: _flat([request.drafts[key] for request in trace.requests]) for key in sorted(set(keys))}


def _flat(parts: list[Drafts]) -> FlatDrafts:
    p1 = [part.p1 for part in parts if part.p1 is not None]
    return FlatDrafts(
        with_ends([part.match for part in parts]),
        with_ends([part.second for part in parts]),
        with_ends([part.second_no_eos for part in parts]),
        with_ends([part.margin for part in parts]),
        with_ends(p1) if p1 else None,
    )


def with_ends(parts: Sequence[NDArray[Number]]) -> NDArray[Number]:
    """The parts one below the other, and a row of zeros behind each."""
    end = np.zeros((1, *parts[0].shape[1:]), parts[0].dtype)
    return np.concatenate([array for part in parts for array in (part, end)])
