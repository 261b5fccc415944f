"""How rows of logits are cut into tiles and parts, and where the parts meet."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

VECTOR = 8
"""Logits that a thread loads at once, 16 bytes of bf16."""


class Tiling(NamedTuple):
    """How a row is read: tiles of ``depth`` x ``lanes`` x 8 logits, ``tiles`` of them a part, ``parts`` parts a row.

    ``depth`` is 1, 2 or 4. A loop over tiles keeps ``stages`` of them on their way.
    """

    depth: int
    lanes: int
    tiles: int
    parts: int
    warps: int = 4
    stages: int = 3


class Scratch(NamedTuple):
    """Where parts of rows meet. Reusable, by one stream at a time; kernels leave the tickets at 0."""

    numbers: Tensor  # fp32 [4, rows, parts]
    places: Tensor  # int32 [2, rows, parts]
    tickets: Tensor  # int32 [rows], 0


MAX_PARTS = 128


def tiling_for(rows: int, vocab: int) -> Tiling:
    """What was fastest on an H200 for about so many rows (docs/rounds.md).

    Few rows come in parts of one tile, which need no second look at it; more of them as streams that are read ahead, by
    programs of one or two warps, of which many are at work at once.
    """
    for most, depth, lanes in ((8, 4, 64), (32, 4, 128)):
        parts = triton.cdiv(vocab, depth * lanes * VECTOR)
        if rows <= most and parts <= MAX_PARTS:
            return Tiling(depth, lanes, 1, parts, lanes // 32, 1)
    depth, lanes, wanted = (4, 32, 16) if rows <= 128 else (2, 64, 4 if rows <= 3000 else 2)
    all_tiles = triton.cdiv(vocab, depth * lanes * VECTOR)
    tiles = triton.cdiv(all_tiles, min(all_tiles, wanted))
    return Tiling(depth, lanes, tiles, triton.cdiv(all_tiles, tiles), lanes // 32, 3)


def scratch_for(rows: int, vocab: int, device: torch.device | str, tiling: Tiling | None = None) -> Scratch:
    """Scratch for a number of rows, to be used again and again."""
    parts = (tiling or tiling_for(rows, vocab)).parts
    return Scratch(
        torch.empty(4, rows, parts, device=device),
        torch.empty(2, rows, parts, dtype=torch.int32, device=device),
        torch.zeros(rows, dtype=torch.int32, device=device),
    )
