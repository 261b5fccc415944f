"""What a distribution prefers, how sure it is, and its entropy, in one read of the logits (paper, sections 4.1, 5.2).

A program reads a part of one row in tiles of ``depth`` x ``lanes`` x 8 logits. Each lane keeps the two tiles that have
its largest logits, and two sums from which entropy follows; which columns those logits are in is looked up at the end,
since carrying indices along would cost more than reading does. Rows are split when there are few of them, and whichever
program of a row ends last merges its parts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.logit_tiling import VECTOR, Scratch, Tiling, scratch_for, tiling_for

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NOWHERE = tl.constexpr(2**31 - 1)
_VECTOR = tl.constexpr(VECTOR)


class LogitStatistics(NamedTuple):
    """Of each row, MASK removed first. Ties go to the lowest token id.

    A row without a distribution (NaN or +inf among its logits, or nothing but -inf) has ``first`` -1 and NaN for every
    number; where no second candidate is left its id is -1. Whatever MASK's own logit is does not matter.
    """

    first: Tensor
    """int64 [rows] The best token."""
    second: Tensor
    """int64 [rows] The best other token."""
    second_no_eos: Tensor
    """int64 [rows] The best other token that is no EOS."""
    p1: Tensor
    """fp32 [rows] The probability of ``first``."""
    margin: Tensor
    """fp32 [rows] By how much that is more than the probability of ``second``."""
    entropy: Tensor
    """fp32 [rows] In nats."""


def barred_ids(mask_id: int, eos_ids: Sequence[int], device: torch.device | str) -> Tensor:
    """MASK, then the EOS tokens, int64, as the statistics want them; each once."""
    return torch.tensor([mask_id, *sorted(set(eos_ids) - {mask_id})], device=device)


def logit_statistics_reference(logits: Tensor, barred: Tensor) -> LogitStatistics:
    """Statistics of ``logits`` ``[rows, vocab]``, computed in fp64; ``barred`` is from :func:`barred_ids`."""
    scores = logits.double()
    scores[:, barred[0]] = float("-inf")
    top, first = scores.max(-1)
    good = top.isfinite()
    log_p = scores.log_softmax(-1)
    others = scores.scatter(1, first[:, None], float("-inf"))
    runner_up, second = others.max(-1)
    others[:, barred[1:]] = float("-inf")
    best_no_eos, second_no_eos = others.max(-1)
    p1 = log_p.gather(1, first[:, None])[:, 0].exp()
    p2 = torch.where(runner_up.isfinite(), log_p.gather(1, second[:, None])[:, 0].exp(), 0.0)
    ids = (first, second.where(runner_up > float("-inf"), -1), second_no_eos.where(best_no_eos > float("-inf"), -1))
    # entr(0) is 0, where p log p would be NaN
    numbers = (p1, p1 - p2, torch.special.entr(log_p.exp()).sum(-1))
    return LogitStatistics(
        *(found.where(good, -1) for found in ids), *(x.where(good, float("nan")).float() for x in numbers)
    )


@triton.jit
def _tile(
    row, barred, tile, lead, vocab,
    NUM_BARRED: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The columns of a tile, and its logits with MASK, EOS tokens and what lies outside at -inf."""
    lane = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    cols = (tile * (DEPTH * LANES) + lane[:, :, None]) * _VECTOR + tl.arange(0, _VECTOR)[None, None, :]
    if EVEN:
        x = tl.load(row + cols).to(tl.float32)
    else:
        x = tl.load(row + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32)
    # a compare a logit costs more than reading it
    if tile < lead:
        for i in tl.static_range(NUM_BARRED):
            x = tl.where(cols == tl.load(barred + i).to(tl.int32), float("-inf"), x)
    return cols, x


@triton.jit
def _leading_tiles(barred, NUM_BARRED: tl.constexpr, TILE: tl.constexpr):
    """How many tiles from the first on may hold a barred token: they are few where such tokens come first."""
    lead = tl.load(barred).to(tl.int32) // TILE + 1
    for i in tl.static_range(1, NUM_BARRED):
        lead = tl.maximum(lead, tl.load(barred + i).to(tl.int32) // TILE + 1)
    return lead


@triton.jit
def _base(top):
    """What exponents are counted from, in bits; finite for an empty part, whose logits are all -inf."""
    return tl.where(top == float("-inf"), 0.0, top) * LOG2E


@triton.jit
def _rescaled(z, s, top, new_base):
    """Sums over 2**y and y * 2**y, for y counted from ``new_base`` and no longer from ``top``."""
    shift = tl.where(top == float("-inf"), 0.0, top * LOG2E - new_base)
    factor = tl.exp2(shift)
    return factor * z, factor * (s + z * shift)


@triton.jit
def _read_part(
    row, barred, first_tile, lead, vocab,
    NUM_BARRED: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Of each lane: the two tiles in which it has its largest logits, those logits, and its sums."""
    top = tl.full([LANES], float("-inf"), tl.float32)
    runner_up = tl.full([LANES], float("-inf"), tl.float32)
    top_tile = tl.full([LANES], 0, tl.int32)
    runner_up_tile = tl.full([LANES], 0, tl.int32)
    z = tl.zeros([LANES], tl.float32)
    s = tl.zeros([LANES], tl.float32)
    for i in tl.range(TILES, num_stages=STAGES):
        tile = first_tile + i
        _, x = _tile(row, barred, tile, lead, vocab, NUM_BARRED, DEPTH, LANES, EVEN)
        largest = tl.max(tl.max(x, 2), 0)
        # of equals, the older stays first
        better = largest > top
        runner_up_tile = tl.where(better, top_tile, tl.where(largest > runner_up, tile, runner_up_tile))
        runner_up = tl.where(better, top, tl.maximum(runner_up, largest))
        top_tile = tl.where(better, tile, top_tile)
        new_top = tl.maximum(top, largest)
        base = _base(new_top)
        z, s = _rescaled(z, s, top, base)
        y = x * LOG2E - base[None, :, None]
        e = tl.exp2(y)
        z += tl.sum(tl.sum(e, 2), 0)
        # -inf * 0 would be NaN; at -150 bits nothing is left of e either
        s += tl.sum(tl.sum(e * tl.maximum(y, -150.0), 2), 0)
        top = new_top
    return top, top_tile, runner_up, runner_up_tile, z, s


@triton.jit
def _first_of(cols, x, value, skip):
    """The first column but ``skip`` that holds a value; nowhere for -inf."""
    found = tl.min(tl.where((x == value) & (cols != skip), cols, NOWHERE))
    return tl.where(value == float("-inf"), NOWHERE, found)


@triton.jit
def _two_best(
    tops, tiles, runners_up, runner_up_tiles, row, barred, lead, vocab,
    NUM_BARRED: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The two largest logits of a part and their columns, looked up in the tiles that the lanes name."""
    top = tl.max(tops, 0)
    tile = tl.min(tl.where(tops == top, tiles, NOWHERE), 0)
    cols, x = _tile(row, barred, tile, lead, vocab, NUM_BARRED, DEPTH, LANES, EVEN)
    at = _first_of(cols, x, top, -1)
    # the second is in the same tile, or the best that another tile has; in the lane of the first that is its second
    near = tl.max(tl.where(cols == at, float("-inf"), x))
    mine = tl.arange(0, LANES) == at // _VECTOR % LANES
    others = tl.where(mine, runners_up, tops)
    far = tl.max(others, 0)
    tile = tl.min(tl.where(others == far, tl.where(mine, runner_up_tiles, tiles), NOWHERE), 0)
    far_cols, far_x = _tile(row, barred, tile, lead, vocab, NUM_BARRED, DEPTH, LANES, EVEN)
    runner_up = tl.maximum(near, far)
    near_at, far_at = _first_of(cols, x, runner_up, at), _first_of(far_cols, far_x, runner_up, at)
    return top, at, runner_up, tl.minimum(near_at, far_at)


@triton.jit
def _one_tile(
    row, barred, tile, lead, vocab,
    NUM_BARRED: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The two largest logits of a part that is a single tile, their columns and its sums."""
    cols, x = _tile(row, barred, tile, lead, vocab, NUM_BARRED, DEPTH, LANES, EVEN)
    cols, x = tl.reshape(cols, [DEPTH * LANES * _VECTOR]), tl.reshape(x, [DEPTH * LANES * _VECTOR])
    top, where = tl.max(x, 0, return_indices=True)
    first = tile * (DEPTH * LANES * _VECTOR)
    at = tl.where(top == float("-inf"), NOWHERE, first + where)
    base = _base(top)
    y = x * LOG2E - base
    e = tl.exp2(y)
    z, s = tl.sum(e, 0), tl.sum(e * tl.maximum(y, -150.0), 0)
    runner_up, where = tl.max(tl.where(cols == at, float("-inf"), x), 0, return_indices=True)
    return top, at, runner_up, tl.where(runner_up == float("-inf"), NOWHERE, first + where), z, s


@triton.jit
def _insert(x, token, top, at, runner_up, runner_up_at, z, s):
    """One more logit of a row."""
    wins = (x > top) | ((x == top) & (token < at))
    comes_second = (x > runner_up) | ((x == runner_up) & (token < runner_up_at))
    new_runner_up = tl.where(wins, top, tl.where(comes_second, x, runner_up))
    new_runner_up_at = tl.where(wins, at, tl.where(comes_second, token, runner_up_at))
    new_top = tl.maximum(top, x)
    base = _base(new_top)
    z, s = _rescaled(z, s, top, base)
    y = tl.where(x == float("-inf"), -150.0, x * LOG2E - base)
    e = tl.where(x == float("-inf"), 0.0, tl.exp2(y))
    return new_top, tl.where(wins, token, at), new_runner_up, new_runner_up_at, z + e, s + e * y


@triton.jit
def _report(
    row_index, row, barred, top, at, runner_up, runner_up_at, z, s, ids, numbers, rows, NUM_BARRED: tl.constexpr
):
    """Add the EOS tokens, which tiles leave out, and write a row's statistics."""
    plain_top, plain_at, plain_runner_up, plain_runner_up_at = top, at, runner_up, runner_up_at
    for i in tl.static_range(1, NUM_BARRED):
        token = tl.load(barred + i).to(tl.int32)
        x = tl.load(row + token).to(tl.float32)
        top, at, runner_up, runner_up_at, z, s = _insert(x, token, top, at, runner_up, runner_up_at, z, s)
    # not so for NaN either
    good = z > 0
    no_eos = tl.where(at == plain_at, plain_runner_up, plain_top)
    no_eos_at = tl.where(at == plain_at, plain_runner_up_at, plain_at)
    tl.store(ids + row_index, tl.where(good, at, -1).to(tl.int64))
    second = tl.where(good & (runner_up > float("-inf")), runner_up_at, -1)
    tl.store(ids + rows + row_index, second.to(tl.int64))
    tl.store(ids + 2 * rows + row_index, tl.where(good & (no_eos > float("-inf")), no_eos_at, -1).to(tl.int64))
    safe_z = tl.where(good, z, 1.0)
    p1 = 1.0 / safe_z
    entropy = tl.maximum(LN2 * (tl.log2(safe_z) - s / safe_z), 0.0)
    nan = float("nan")
    tl.store(numbers + row_index, tl.where(good, p1, nan))
    margin = (1.0 - tl.exp2(tl.where(good, runner_up - top, 0.0) * LOG2E)) * p1
    tl.store(numbers + rows + row_index, tl.where(good, margin, nan))
    tl.store(numbers + 2 * rows + row_index, tl.where(good, entropy, nan))


@triton.jit
def _statistics_kernel(
    logits, barred, part_numbers, part_places, tickets, ids, numbers, row_stride, vocab, rows,
    NUM_BARRED: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr,
    PARTS: tl.constexpr, ALL_PARTS: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row_index = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    row = logits + row_index.to(tl.int64) * row_stride
    lead = _leading_tiles(barred, NUM_BARRED, DEPTH * LANES * _VECTOR)
    if TILES == 1:
        top, at, runner_up, runner_up_at, z, s = _one_tile(
            row, barred, part, lead, vocab, NUM_BARRED, DEPTH, LANES, EVEN
        )
    else:
        tops, tiles, runners_up, runner_up_tiles, zs, ss = _read_part(
            row, barred, part * TILES, lead, vocab, NUM_BARRED, DEPTH, LANES, TILES, EVEN, STAGES
        )
        top, at, runner_up, runner_up_at = _two_best(
            tops, tiles, runners_up, runner_up_tiles, row, barred, lead, vocab, NUM_BARRED, DEPTH, LANES, EVEN
        )
        zs, ss = _rescaled(zs, ss, tops, _base(top))
        z, s = tl.sum(zs, 0), tl.sum(ss, 0)
    if PARTS == 1:
        _report(row_index, row, barred, top, at, runner_up, runner_up_at, z, s, ids, numbers, rows, NUM_BARRED)
    else:
        place, plane = row_index * PARTS + part, rows * PARTS
        tl.store(part_numbers + place, top)
        tl.store(part_numbers + plane + place, runner_up)
        tl.store(part_numbers + 2 * plane + place, z)
        tl.store(part_numbers + 3 * plane + place, s)
        tl.store(part_places + place, at)
        tl.store(part_places + plane + place, runner_up_at)
        # all of the part is there before it is counted
        tl.debug_barrier()
        if tl.atomic_add(tickets + row_index, 1, sem="acq_rel") == PARTS - 1:
            tl.store(tickets + row_index, 0)
            top, at, runner_up, runner_up_at, z, s = _merged(
                part_numbers, part_places, row_index, plane, PARTS, ALL_PARTS
            )
            _report(row_index, row, barred, top, at, runner_up, runner_up_at, z, s, ids, numbers, rows, NUM_BARRED)


@triton.jit
def _merged(part_numbers, part_places, row_index, plane, PARTS: tl.constexpr, ALL_PARTS: tl.constexpr):
    """The parts of a row as one, read past the first-level cache, which other multiprocessors do not update."""
    part = tl.arange(0, ALL_PARTS)
    inside = part < PARTS
    place = row_index * PARTS + part
    low = float("-inf")
    tops = tl.load(part_numbers + place, mask=inside, other=low, cache_modifier=".cg")
    runners_up = tl.load(part_numbers + plane + place, mask=inside, other=low, cache_modifier=".cg")
    zs = tl.load(part_numbers + 2 * plane + place, mask=inside, other=0.0, cache_modifier=".cg")
    ss = tl.load(part_numbers + 3 * plane + place, mask=inside, other=0.0, cache_modifier=".cg")
    places = tl.load(part_places + place, mask=inside, other=NOWHERE, cache_modifier=".cg")
    runner_up_places = tl.load(part_places + plane + place, mask=inside, other=NOWHERE, cache_modifier=".cg")
    # parts lie in the order of their columns: the first of equals is the lowest
    top, first = tl.max(tops, 0, return_indices=True)
    mine = part == first
    others, other_places = tl.where(mine, runners_up, tops), tl.where(mine, runner_up_places, places)
    runner_up, second = tl.max(others, 0, return_indices=True)
    at = tl.min(tl.where(mine, places, NOWHERE), 0)
    runner_up_at = tl.min(tl.where(part == second, other_places, NOWHERE), 0)
    zs, ss = _rescaled(zs, ss, tops, _base(top))
    return top, at, runner_up, runner_up_at, tl.sum(zs, 0), tl.sum(ss, 0)


def logit_statistics(
    logits: Tensor, barred: Tensor, scratch: Scratch | None = None, tiling: Tiling | None = None
) -> LogitStatistics:
    """:func:`logit_statistics_reference` in one read of ``logits``, fp32, bf16 or fp16, and fp32 arithmetic.

    ``scratch`` is from :func:`scratch_for` at the same shape and tiling; without it, it is made anew.
    """
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"logits have stride {logits.stride(1)} along the vocabulary; allowed: 1")
    tiling = tiling or tiling_for(max(rows, 1), vocab)
    scratch = scratch or scratch_for(rows, vocab, logits.device, tiling)
    ids = torch.empty(3, rows, dtype=torch.long, device=logits.device)
    numbers = torch.empty(3, rows, device=logits.device)
    if rows:
        _statistics_kernel[(rows * tiling.parts,)](
            logits, barred, *scratch, ids, numbers, logits.stride(0), vocab, rows,
            NUM_BARRED=len(barred), DEPTH=tiling.depth, LANES=tiling.lanes, TILES=tiling.tiles,
            PARTS=tiling.parts, ALL_PARTS=triton.next_power_of_2(tiling.parts),
            EVEN=vocab == tiling.depth * tiling.lanes * VECTOR * tiling.tiles * tiling.parts,
            STAGES=tiling.stages, num_warps=tiling.warps,
        )  # fmt: skip
    return LogitStatistics(*ids, *numbers)
