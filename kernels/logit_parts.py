"""A part of a row of logits: its two largest, where they are, and the sums that entropy follows from.

In tiles of ``depth`` x ``lanes`` vectors of 8 logits, each lane keeps its sums and the two tiles that have its largest
logits. Which columns those are in is looked up at the end: to carry indices along would cost more than reading does.
"""

import triton
import triton.language as tl

from recguide.kernels.logit_tiling import VECTOR

LOWEST = -1e38
"""Logits down to here count as -inf, so that differences stay finite."""
NOWHERE = tl.constexpr(2**31 - 1)
LOG2E = tl.constexpr(1.4426950408889634)
_LOWEST = tl.constexpr(LOWEST)
_VECTOR = tl.constexpr(VECTOR)


@triton.jit
def _vectors(row, barred, first, checked, vocab, NUM_BARRED: tl.constexpr, VECTORS: tl.constexpr, EVEN: tl.constexpr):
    """The columns of some vectors of 8, and their logits with MASK, EOS tokens and what lies outside at -inf."""
    cols = (first + tl.arange(0, VECTORS))[:, None] * _VECTOR + tl.arange(0, _VECTOR)[None, :]
    if EVEN:
        x = tl.load(row + cols).to(tl.float32)
    else:
        x = tl.load(row + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32)
    # a compare a logit costs more than reading it
    if checked:
        for i in tl.static_range(NUM_BARRED):
            x = tl.where(cols == tl.load(barred + i).to(tl.int32), float("-inf"), x)
    return cols, x


@triton.jit
def leading_tiles(barred, NUM_BARRED: tl.constexpr, TILE: tl.constexpr):
    """How many tiles from the first on may hold a barred token: they are few where such tokens come first."""
    lead = tl.load(barred).to(tl.int32) // TILE + 1
    for i in tl.static_range(1, NUM_BARRED):
        lead = tl.maximum(lead, tl.load(barred + i).to(tl.int32) // TILE + 1)
    return lead


@triton.jit
def rescaled(z, s, top, new_top):
    """Sums over 2**y and y * 2**y, for y counted from ``new_top`` and no longer from ``top``."""
    shift = (top - new_top) * LOG2E
    factor = tl.exp2(shift)
    return factor * z, factor * (s + z * shift)


@triton.jit
def _sums(x, top):
    """Over the last axis, 2**y and y * 2**y for the bits y between each logit and ``top``."""
    y = (x - top) * LOG2E
    e = tl.exp2(y)
    # -inf * 0 would be NaN; at -150 bits nothing is left of e either
    return tl.sum(e, len(x.shape) - 1), tl.sum(e * tl.maximum(y, -150.0), len(x.shape) - 1)


@triton.jit
def read_part(
    row, barred, first_tile, lead, vocab,
    NUM_BARRED: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Of each lane: the two tiles in which it has its largest logits, those logits, and its sums."""
    top = tl.full([LANES], _LOWEST, tl.float32)
    runner_up = tl.full([LANES], _LOWEST, tl.float32)
    top_tile = tl.full([LANES], 0, tl.int32)
    runner_up_tile = tl.full([LANES], 0, tl.int32)
    z = tl.zeros([LANES], tl.float32)
    s = tl.zeros([LANES], tl.float32)
    for i in tl.range(TILES, num_stages=STAGES):
        tile = first_tile + i
        first, checked = tile * (DEPTH * LANES), tile < lead
        _, x0 = _vectors(row, barred, first, checked, vocab, NUM_BARRED, LANES, EVEN)
        largest = tl.max(x0, 1)
        if DEPTH > 1:
            _, x1 = _vectors(row, barred, first + LANES, checked, vocab, NUM_BARRED, LANES, EVEN)
            largest = tl.maximum(largest, tl.max(x1, 1))
        if DEPTH > 2:
            _, x2 = _vectors(row, barred, first + 2 * LANES, checked, vocab, NUM_BARRED, LANES, EVEN)
            _, x3 = _vectors(row, barred, first + 3 * LANES, checked, vocab, NUM_BARRED, LANES, EVEN)
            largest = tl.maximum(largest, tl.maximum(tl.max(x2, 1), tl.max(x3, 1)))
        # of equals, the older stays first
        better = largest > top
        runner_up_tile = tl.where(better, top_tile, tl.where(largest > runner_up, tile, runner_up_tile))
        runner_up = tl.where(better, top, tl.maximum(runner_up, largest))
        top_tile = tl.where(better, tile, top_tile)
        new_top = tl.maximum(top, largest)
        z, s = rescaled(z, s, top, new_top)
        top = new_top
        more_z, more_s = _sums(x0, top[:, None])
        z, s = z + more_z, s + more_s
        if DEPTH > 1:
            more_z, more_s = _sums(x1, top[:, None])
            z, s = z + more_z, s + more_s
        if DEPTH > 2:
            more_z, more_s = _sums(x2, top[:, None])
            z, s = z + more_z, s + more_s
            more_z, more_s = _sums(x3, top[:, None])
            z, s = z + more_z, s + more_s
    return top, top_tile, runner_up, runner_up_tile, z, s


@triton.jit
def _first_of(cols, x, value, skip):
    """The first column but ``skip`` that holds a value; nowhere for what is as good as -inf."""
    found = tl.min(tl.where((x == value) & (cols != skip), cols, NOWHERE))
    return tl.where(value > _LOWEST, found, NOWHERE)


@triton.jit
def two_best(
    tops, tiles, runners_up, runner_up_tiles, row, barred, lead, vocab,
    NUM_BARRED: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The two largest logits of a part and their columns, looked up in the tiles that the lanes name."""
    top = tl.max(tops, 0)
    tile = tl.min(tl.where(tops == top, tiles, NOWHERE), 0)
    size: tl.constexpr = DEPTH * LANES
    cols, x = _vectors(row, barred, tile * size, tile < lead, vocab, NUM_BARRED, size, EVEN)
    at = _first_of(cols, x, top, -1)
    # the second is in the same tile, or the best that another tile has; in the lane of the first that is its second
    near = tl.max(tl.where(cols == at, float("-inf"), x))
    mine = tl.arange(0, LANES) == at // _VECTOR % LANES
    others = tl.where(mine, runners_up, tops)
    far = tl.max(others, 0)
    tile = tl.min(tl.where(others == far, tl.where(mine, runner_up_tiles, tiles), NOWHERE), 0)
    far_cols, far_x = _vectors(row, barred, tile * size, tile < lead, vocab, NUM_BARRED, size, EVEN)
    runner_up = tl.maximum(near, far)
    near_at, far_at = _first_of(cols, x, runner_up, at), _first_of(far_cols, far_x, runner_up, at)
    return top, at, runner_up, tl.minimum(near_at, far_at)


@triton.jit
def one_tile(row, barred, tile, lead, vocab, NUM_BARRED: tl.constexpr, SIZE: tl.constexpr, EVEN: tl.constexpr):
    """The two largest logits of a part that is a single tile, their columns and its sums."""
    cols, x = _vectors(row, barred, tile * SIZE, tile < lead, vocab, NUM_BARRED, SIZE, EVEN)
    cols, x = tl.reshape(cols, [SIZE * _VECTOR]), tl.reshape(x, [SIZE * _VECTOR])
    top, where = tl.max(x, 0, return_indices=True)
    top = tl.maximum(top, _LOWEST)
    at = tl.where(top > _LOWEST, tile * (SIZE * _VECTOR) + where, NOWHERE)
    z, s = _sums(x, top)
    runner_up, where = tl.max(tl.where(cols == at, float("-inf"), x), 0, return_indices=True)
    runner_up_at = tl.where(runner_up > _LOWEST, tile * (SIZE * _VECTOR) + where, NOWHERE)
    return top, at, tl.maximum(runner_up, _LOWEST), runner_up_at, z, s
