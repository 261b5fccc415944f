"""Fused kernels give what the operations they stand for give one after the other, the model's own among them."""

import pytest
import torch
from torch import Tensor

from recguide.engine.rotary import QueryScaling, frequencies, rotary_table, rotate, scaled
from recguide.kernels.gate import silu_gate, silu_gate_reference
from recguide.kernels.norm import add_rms_norm, add_rms_norm_reference
from recguide.kernels.rotary import rotary_write, rotary_write_reference

pytestmark = pytest.mark.usefixtures("poisoned")
# a step of the last place for every rounding, of which there are two; the interpreter cuts bf16 where hardware rounds
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE))


def draw(seed: int, *shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)


def close(found: Tensor, wanted: Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@dtypes
@pytest.mark.parametrize("hidden", [1, 24, 100, 576])
@pytest.mark.parametrize("summed", [False, True])
def test_norm_and_residual(hidden, summed, dtype, device):
    x, delta = (draw(seed, 2, 3, hidden, dtype=dtype, device=device) for seed in (0, 1))
    weight = draw(2, hidden, dtype=dtype, device=device)
    found = add_rms_norm(x, delta if summed else None, weight, 1e-5)
    wanted = add_rms_norm_reference(x, delta if summed else None, weight, 1e-5)
    for ours, theirs in zip(found, wanted, strict=True):
        close(ours, theirs)
    assert found[0].data_ptr() == x.data_ptr() or summed


@dtypes
@pytest.mark.parametrize("inner", [1, 40, 1500])
def test_gate(inner, dtype, device):
    gate_up = draw(0, 5, 2 * inner, dtype=dtype, device=device) * 4
    close(silu_gate(gate_up), silu_gate_reference(gate_up))


def pages(dtype: torch.dtype, device: torch.device, contiguous: bool) -> tuple[Tensor, Tensor]:
    """Keys and values [6, 4, 2, 16] full of NaN: pages as they are, or requests of a cache with heads outside."""
    made = []
    for _ in range(2):
        shape = (6, 4, 2, 16) if contiguous else (6, 2, 4, 16)
        held = torch.full(shape, torch.nan, dtype=dtype, device=device)
        made.append(held if contiguous else held.transpose(1, 2))
    return made[0], made[1]


@dtypes
@pytest.mark.parametrize("contiguous", [False, True])
def test_rotary_and_cache(contiguous, dtype, device):
    requests, tokens, heads, kv_heads, dim = 2, 3, 6, 2, 16
    qkv = draw(0, requests * tokens, (heads + 2 * kv_heads) * dim, dtype=dtype, device=device)
    positions = torch.tensor([[4, 5, 5], [900, 2, 17]], device=device)
    own = rotary_table(positions, frequencies(dim, 1e4, None).to(device))
    tables = (scaled(own, positions, QueryScaling(0.1, 5)), own)
    flat = tuple((cos.flatten(0, 2), sin.flatten(0, 2)) for cos, sin in tables)
    slots = torch.tensor([3, 23, 0, 9, 10, 11], device=device)
    outcomes = []
    for write in (rotary_write, rotary_write_reference):
        keys, values = pages(dtype, device, contiguous)
        q = torch.full((requests, heads, tokens, dim), torch.nan, dtype=dtype, device=device).transpose(1, 2)
        write(qkv, flat, slots, q, keys, values)
        outcomes.append((q, keys, values))
    for ours, theirs in zip(*outcomes, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        close(ours.nan_to_num(), theirs.nan_to_num())
    # and the reference is what the model does
    q, k, v = qkv.view(requests, tokens, -1, dim).split([heads, kv_heads, kv_heads], 2)
    keys, values = outcomes[1][1:]
    close(outcomes[1][0], rotate(q, tables[0]))
    close(keys[slots // 4, slots % 4], rotate(k, own).flatten(0, 1))
    close(values[slots // 4, slots % 4], v.flatten(0, 1))


def test_projections_of_another_shape_are_refused(device):
    keys, values = pages(torch.float32, device, True)
    q = torch.zeros(1, 1, 6, 16, device=device)
    table = (torch.zeros(1, 8, device=device),) * 2
    tables = (table, table)
    slots = torch.zeros(1, dtype=torch.long, device=device)
    with pytest.raises(ValueError, match="qkv has 100 columns for 6 and 2 heads of an even 16"):
        rotary_write(torch.zeros(1, 100, device=device), tables, slots, q, keys, values)
    every_other = torch.zeros(6, 4, 2, 32, device=device)[..., ::2]
    with pytest.raises(ValueError, match="stride 1 along"):
        rotary_write(torch.zeros(1, 160, device=device), tables, slots, q, every_other, values)
