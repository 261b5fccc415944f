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


RESIDENT = 900
"""Programs that an H200 holds at once, about: 132 multiprocessors, 7 of 4 warps each with the registers they need."""
MAX_PARTS = 128


def tiling_for(rows: int, vocab: int) -> Tiling:
    """Few rows in parts of one tile, which need no second look at it; more of them as streams that are read ahead.

    One wave of programs while a wave holds all rows, about four beyond: then the last does not leave many idle.
    """
    for lanes, depth in ((128, 1), (256, 2)):
        parts = triton.cdiv(vocab, lanes * depth * VECTOR)
        if rows * parts <= RESIDENT + 200 and parts <= MAX_PARTS:
            return Tiling(depth, lanes, 1, parts, lanes // 32, 1)
    all_tiles = triton.cdiv(vocab, 2 * 128 * VECTOR)
    wanted = RESIDENT // rows if rows <= RESIDENT else triton.cdiv(4 * RESIDENT, rows)
    parts = min(all_tiles, MAX_PARTS, 1 << max(0, wanted.bit_length() - 1))
    tiles = triton.cdiv(all_tiles, parts)
    return Tiling(2, 128, tiles, triton.cdiv(all_tiles, tiles), 4, 4 if rows <= RESIDENT else 3)


def scratch_for(rows: int, vocab: int, device: torch.device | str, tiling: Tiling | None = None) -> Scratch:
    """Scratch for a number of rows, to be used again and again."""
    parts = (tiling or tiling_for(rows, vocab)).parts
    return Scratch(
        torch.empty(4, rows, parts, device=device),
        torch.empty(2, rows, parts, dtype=torch.int32, device=device),
        torch.zeros(rows, dtype=torch.int32, device=device),
    )
