"""How rows of logits are cut into tiles and parts, and where the parts meet."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

VECTOR = 8
"""Logits that a thread loads at once, 16 bytes of bf16."""


class Tiling(NamedTuple):
    """How a row is read: tiles of ``depth`` x ``lanes`` x 8 logits, ``tiles`` of them a part, ``parts`` parts a row."""

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


# programs that keep every multiprocessor busy to the end
ENOUGH_PROGRAMS = 2048
FEW_PROGRAMS = 264


def tiling_for(rows: int, vocab: int) -> Tiling:
    """Large tiles read a stream best; few rows are split into as many parts as there are small ones."""
    lanes = 128
    depth = 4 if rows * triton.cdiv(vocab, 4 * lanes * VECTOR) >= FEW_PROGRAMS else 2
    all_tiles = triton.cdiv(vocab, depth * lanes * VECTOR)
    # a power of two: every number of tiles is a kernel of its own
    parts = min(all_tiles, max(1, ENOUGH_PROGRAMS // rows))
    tiles = triton.next_power_of_2(triton.cdiv(all_tiles, parts))
    return Tiling(depth, lanes, tiles, triton.cdiv(all_tiles, tiles))


def scratch_for(rows: int, vocab: int, device: torch.device | str, tiling: Tiling | None = None) -> Scratch:
    """Scratch for a number of rows, to be used again and again."""
    parts = (tiling or tiling_for(rows, vocab)).parts
    return Scratch(
        torch.empty(4, rows, parts, device=device),
        torch.empty(2, rows, parts, dtype=torch.int32, device=device),
        torch.zeros(rows, dtype=torch.int32, device=device),
    )
