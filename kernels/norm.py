"""RMS norm, with the residual sum before it in the same pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from recguide.kernels.launches import overlapping


def add_rms_norm_reference(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream ``x`` ``[..., hidden]`` with ``delta`` added, and its RMS norm times ``weight``.

    Without a ``delta`` the stream comes back as it is.
    """
    stream = x if delta is None else x + delta
    return stream, F.rms_norm(stream, (stream.shape[-1],), weight, eps)


@triton.jit
def _add_rms_norm_kernel(
    x, delta, weight, stream, normed, hidden, eps,
    ADD: tl.constexpr, LANES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * hidden
    at = tl.arange(0, LANES)
    inside = at < hidden
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    row = tl.load(x + start + at, mask=inside, other=0.0)
    if ADD:
        # rounded to the stream's dtype, as two operations would
        row = (row.to(tl.float32) + tl.load(delta + start + at, mask=inside, other=0.0).to(tl.float32)).to(row.dtype)
        tl.store(stream + start + at, row, mask=inside)
    wide = row.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / hidden + eps)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + start + at, (wide * scale * gain).to(row.dtype), mask=inside)


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """:func:`add_rms_norm_reference` in one launch; contiguous tensors."""
    hidden = x.shape[-1]
    lanes = triton.next_power_of_2(hidden)
    normed, stream = torch.empty_like(x), x if delta is None else torch.empty_like(x)
    rows = x.numel() // hidden
    if rows:
        _add_rms_norm_kernel[(rows,)](
            x, x if delta is None else delta, weight, stream, normed, hidden, eps,
            ADD=delta is not None, LANES=lanes, num_warps=min(8, max(1, lanes // 512)), **overlapping(x),
        )  # fmt: skip
    return stream, normed
