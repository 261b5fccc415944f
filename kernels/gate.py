"""The gate of a feed-forward layer: SiLU of one half times the other."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from recguide.kernels.launches import overlapping


def silu_gate_reference(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` for ``gate_up`` ``[..., 2 * inner]``, the gate first."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


@triton.jit
def _silu_gate_kernel(gate_up, out, inner, LANES: tl.constexpr, OVERLAP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * LANES + tl.arange(0, LANES)
    inside = at < inner
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    gate = tl.load(gate_up + row * 2 * inner + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * inner + inner + at, mask=inside, other=0.0)
    # rounded between the two operations, as they would be on their own
    gated = (gate / (1.0 + tl.exp(-gate))).to(up.dtype).to(tl.float32) * up.to(tl.float32)
    tl.store(out + row * inner + at, gated.to(up.dtype), mask=inside)


def silu_gate(gate_up: Tensor) -> Tensor:
    """:func:`silu_gate_reference` in one launch; a contiguous tensor."""
    inner = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], inner), dtype=gate_up.dtype, device=gate_up.device)
    lanes = min(1024, triton.next_power_of_2(inner))
    if out.numel():
        grid = out.numel() // inner, triton.cdiv(inner, lanes)
        _silu_gate_kernel[grid](gate_up, out, inner, LANES=lanes, **overlapping(out))
    return out
