"""What a distribution prefers, how sure it is, and its entropy, in one read of the logits (paper, sections 4.1, 5.2).

Rows are read in parts (`logit_parts.py`), one or more of each, and whichever program of a row ends last merges them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.logit_parts import LOG2E, LOWEST, NOWHERE, leading_tiles, one_tile, read_part, rescaled, two_best
from recguide.kernels.logit_tiling import VECTOR, Scratch, Tiling, scratch_for, tiling_for

LN2 = tl.constexpr(0.6931471805599453)
_LOWEST = tl.constexpr(LOWEST)
_VECTOR = tl.constexpr(VECTOR)


class LogitStatistics(NamedTuple):
    """Of each row, MASK removed first. Ties go to the lowest token id.

    A row without a distribution (NaN or +inf among its logits, or nothing but -inf) has ``first`` -1 and NaN for every
    number; where no second candidate is left its id is -1. Logits below -1e38 count as -inf. Whatever MASK's own logit
    is does not matter.
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
    scores[scores <= LOWEST] = float("-inf")
    top, first = scores.max(-1)
    good = top.isfinite()
    log_p = scores.log_softmax(-1)
    others = scores.scatter(1, first[:, None], float("-inf"))
    runner_up, second = others.max(-1)
    others[:, barred[1:]] = float("-inf")
    best_no_eos, second_no_eos = others.max(-1)
    p1 = log_p.gather(1, first[:, None])[:, 0].exp()
    p2 = torch.where(runner_up.isfinite(), log_p.gather(1, second[:, None])[:, 0].exp(), 0.0)
    ids = (first, second.where(runner_up.isfinite(), -1), second_no_eos.where(best_no_eos.isfinite(), -1))
    # entr(0) is 0, where p log p would be NaN
    numbers = (p1, p1 - p2, torch.special.entr(log_p.exp()).sum(-1))
    return LogitStatistics(
        *(found.where(good, -1) for found in ids), *(x.where(good, float("nan")).float() for x in numbers)
    )


@triton.jit
def _insert(x, token, top, at, runner_up, runner_up_at, z, s):
    """One more logit of a row."""
    wins = (x > top) | ((x == top) & (token < at))
    comes_second = (x > runner_up) | ((x == runner_up) & (token < runner_up_at))
    new_runner_up = tl.where(wins, top, tl.where(comes_second, x, runner_up))
    new_runner_up_at = tl.where(wins, at, tl.where(comes_second, token, runner_up_at))
    new_top = tl.maximum(top, x)
    z, s = rescaled(z, s, top, new_top)
    y = (x - new_top) * LOG2E
    e = tl.exp2(y)
    y = tl.maximum(y, -150.0)
    return new_top, tl.where(wins, token, at), new_runner_up, new_runner_up_at, z + e, s + e * y


@triton.jit
def _report(
    row_index, eos, eos_logits, top, at, runner_up, runner_up_at, z, s, ids, numbers, rows,
    NUM_EOS: tl.constexpr, EOS_LANES: tl.constexpr,
):  # fmt: skip
    """Add the EOS tokens, which tiles leave out, and write a row's statistics."""
    plain_top, plain_at, plain_runner_up, plain_runner_up_at = top, at, runner_up, runner_up_at
    for i in tl.static_range(NUM_EOS):
        this = tl.arange(0, EOS_LANES) == i
        token, x = tl.sum(tl.where(this, eos, 0), 0), tl.sum(tl.where(this, eos_logits, 0.0), 0)
        top, at, runner_up, runner_up_at, z, s = _insert(x, token, top, at, runner_up, runner_up_at, z, s)
    # not so for NaN either
    good = z > 0
    no_eos = tl.where(at == plain_at, plain_runner_up, plain_top)
    no_eos_at = tl.where(at == plain_at, plain_runner_up_at, plain_at)
    tl.store(ids + row_index, tl.where(good, at, -1).to(tl.int64))
    second = tl.where(good & (runner_up > _LOWEST), runner_up_at, -1)
    tl.store(ids + rows + row_index, second.to(tl.int64))
    tl.store(ids + 2 * rows + row_index, tl.where(good & (no_eos > _LOWEST), no_eos_at, -1).to(tl.int64))
    safe_z = tl.where(good, z, 1.0)
    p1 = 1.0 / safe_z
    entropy = tl.maximum(LN2 * (tl.log2(safe_z) - s / safe_z), 0.0)
    nan = float("nan")
    tl.store(numbers + row_index, tl.where(good, p1, nan))
    margin = (1.0 - tl.exp2(tl.where(good, runner_up - top, 0.0) * LOG2E)) * p1
    tl.store(numbers + rows + row_index, tl.where(good, margin, nan))
    tl.store(numbers + 2 * rows + row_index, tl.where(good, entropy, nan))


@triton.jit(do_not_specialize=["rows"])
def _statistics_kernel(
    logits, barred, part_numbers, part_places, tickets, ids, numbers, row_stride, vocab, rows,
    NUM_BARRED: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr,
    PARTS: tl.constexpr, ALL_PARTS: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr, EOS_LANES: tl.constexpr,
):  # fmt: skip
    row_index = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    row = logits + row_index.to(tl.int64) * row_stride
    lead = leading_tiles(barred, NUM_BARRED, DEPTH * LANES * _VECTOR)
    # asked for now, since whoever reports would wait for them
    lane = tl.arange(0, EOS_LANES)
    eos = tl.load(barred + 1 + lane, mask=lane < NUM_BARRED - 1, other=0).to(tl.int32)
    eos_logits = tl.load(row + eos, mask=lane < NUM_BARRED - 1, other=0.0).to(tl.float32)
    if TILES == 1:
        top, at, runner_up, runner_up_at, z, s = one_tile(
            row, barred, part, lead, vocab, NUM_BARRED, DEPTH * LANES, EVEN
        )
    else:
        tops, tiles, runners_up, runner_up_tiles, zs, ss = read_part(
            row, barred, part * TILES, lead, vocab, NUM_BARRED, DEPTH, LANES, TILES, EVEN, STAGES
        )
        top, at, runner_up, runner_up_at = two_best(
            tops, tiles, runners_up, runner_up_tiles, row, barred, lead, vocab, NUM_BARRED, DEPTH, LANES, EVEN
        )
        zs, ss = rescaled(zs, ss, tops, top)
        z, s = tl.sum(zs, 0), tl.sum(ss, 0)
    if PARTS == 1:
        _report(
            row_index, eos, eos_logits, top, at, runner_up, runner_up_at, z, s, ids, numbers, rows,
            NUM_BARRED - 1, EOS_LANES,
        )  # fmt: skip
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
            _report(
            row_index, eos, eos_logits, top, at, runner_up, runner_up_at, z, s, ids, numbers, rows,
            NUM_BARRED - 1, EOS_LANES,
        )  # fmt: skip


@triton.jit
def _merged(part_numbers, part_places, row_index, plane, PARTS: tl.constexpr, ALL_PARTS: tl.constexpr):
    """The parts of a row as one, read past the first-level cache, which other multiprocessors do not update."""
    part = tl.arange(0, ALL_PARTS)
    inside = part < PARTS
    place = row_index * PARTS + part
    tops = tl.load(part_numbers + place, mask=inside, other=_LOWEST, cache_modifier=".cg")
    runners_up = tl.load(part_numbers + plane + place, mask=inside, other=_LOWEST, cache_modifier=".cg")
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
    zs, ss = rescaled(zs, ss, tops, top)
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
            STAGES=tiling.stages, EOS_LANES=triton.next_power_of_2(max(1, len(barred) - 1)), num_warps=tiling.warps,
        )  # fmt: skip
    return LogitStatistics(*ids, *numbers)
