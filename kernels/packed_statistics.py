"""Statistics of logits as rows of 32-bit words, which the host reads in one piece, with the best tokens kept aside."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.logit_statistics import LogitStatistics

WORDS = len(LogitStatistics._fields)
LANES = 128


def packed_statistics_reference(found: LogitStatistics, best: Tensor | None = None) -> Tensor:
    """Int32 ``[6, rows]``: the three ids, margin and p1 in steps of 1/256 as traces have them, the entropy's bits.

    A share of NaN is 0. ``best``, int32 ``[rows or more]``, gets the first ids too.
    """
    shares = torch.stack([found.margin.float(), found.p1.float()])
    levels = (shares * 256).nan_to_num(0.0).clamp(0, 255).int()
    ids = torch.stack([found.first, found.second, found.second_no_eos]).int()
    if best is not None:
        best[: len(found.first)] = ids[0]
    return torch.cat([ids, levels, found.entropy.float().view(torch.int32)[None]])


@triton.jit
def _level(share):
    """NaN is 0."""
    steps = share * 256.0
    return tl.where(steps > 0.0, tl.minimum(steps, 255.0), 0.0).to(tl.int32)


@triton.jit(do_not_specialize=["rows"])
def _pack_kernel(
    first, second, second_no_eos, margin, p1, entropy, best, out, rows, KEEP: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = row < rows
    ids = tl.load(first + row, mask=inside, other=0).to(tl.int32)
    tl.store(out + row, ids, mask=inside)
    if KEEP:
        tl.store(best + row, ids, mask=inside)
    tl.store(out + rows + row, tl.load(second + row, mask=inside, other=0).to(tl.int32), mask=inside)
    tl.store(out + 2 * rows + row, tl.load(second_no_eos + row, mask=inside, other=0).to(tl.int32), mask=inside)
    tl.store(out + 3 * rows + row, _level(tl.load(margin + row, mask=inside, other=0.0)), mask=inside)
    tl.store(out + 4 * rows + row, _level(tl.load(p1 + row, mask=inside, other=0.0)), mask=inside)
    bits = tl.load(entropy + row, mask=inside, other=0.0).to(tl.int32, bitcast=True)
    tl.store(out + 5 * rows + row, bits, mask=inside)


def packed_statistics(found: LogitStatistics, best: Tensor | None = None) -> Tensor:
    """:func:`packed_statistics_reference` in one launch, from contiguous int64 and fp32."""
    rows = len(found.first)
    out = torch.empty(WORDS, rows, dtype=torch.int32, device=found.first.device)
    if rows:
        columns = found.first, found.second, found.second_no_eos, found.margin, found.p1, found.entropy
        _pack_kernel[(triton.cdiv(rows, LANES),)](
            *columns, out if best is None else best, out, rows, KEEP=best is not None, LANES=LANES, num_warps=4
        )  # fmt: skip
    return out
