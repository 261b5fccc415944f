"""Row attention over a cache of slots, as SGLang keeps one: any page size, and forwards filled up to a shape."""

import numpy as np
import pytest
import torch

from recguide.engine.row_plans import RowPlans, paged
from recguide.kernels.layouts import batch, causal, draft, rows
from recguide.kernels.row_attention import row_attention_reference
from recguide.traces.errors import InputError

HEADS, DIM, SLOTS = (4, 2), 64, 512
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_slots_in_pages_of_any_size_are_read(page_size: int) -> None:
    torch.manual_seed(page_size)
    keys, values = (
        paged(torch.randn(SLOTS + page_size - 1, HEADS[1], DIM, device=DEVICE), page_size) for _ in range(2)
    )
    tails, prefixes = [causal(1), draft(8), rows(4, (2, 4))], [37, 100, 5]
    order = np.random.default_rng(0).permutation(SLOTS // page_size)[: 3 * (128 // page_size)]
    table = torch.from_numpy(order.reshape(3, -1)).to(DEVICE)
    asked = batch(tails, prefixes, table)
    plans = RowPlans(HEADS, DIM, torch.float32, DEVICE)
    q = torch.randn(len(asked.visible), HEADS[0], DIM, device=DEVICE)
    plans.plan(asked).update(asked)
    found = plans.attend(q, keys, values, asked, 0.1)
    wanted, _ = row_attention_reference(q, keys, values, asked, 0.1)
    torch.testing.assert_close(found, wanted.flatten(1).float(), atol=1e-5, rtol=1e-5)


def test_tokens_of_nobody_are_finite_and_another_layout_is_read_anew() -> None:
    """As a CUDA graph does: the same buffers, other rows in them."""
    keys, values = (paged(torch.randn(SLOTS, HEADS[1], DIM, device=DEVICE), 16) for _ in range(2))
    table = torch.arange(16, device=DEVICE).reshape(2, 8)
    held = batch([rows(4, (2,)), causal(3)], [20, 60], table)
    plans = RowPlans(HEADS, DIM, torch.float32, DEVICE)
    q = torch.randn(len(held.visible), HEADS[0], DIM, device=DEVICE)
    for layout in ([draft(4), causal(2)], [rows(4, (4,)), causal(1)], [causal(1), causal(1)]):
        now = batch(layout, [30, 9], table)
        held.indptr.copy_(now.indptr)
        held.prefix_lens.copy_(now.prefix_lens)
        held.visible[: len(now.visible)] = now.visible
        plans.plan(held).update(held)
        found = plans.attend(q, keys, values, held, 0.125)
        assert found.isfinite().all()
        wanted, _ = row_attention_reference(q[: len(now.visible)], keys, values, now, 0.125)
        torch.testing.assert_close(found[: len(wanted)], wanted.flatten(1).float(), atol=1e-5, rtol=1e-5)


def test_heads_that_there_is_no_kernel_for_are_named() -> None:
    with pytest.raises(InputError, match="heads of 80"):
        RowPlans(HEADS, 80, torch.bfloat16, DEVICE)
