"""What every request's next forward reads: the rows of a round as tokens, positions, slots and what each token sees."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.round_state import (
    BLOCK,
    CACHED,
    DONE,
    DRAFT,
    GOES_ON,
    PHASE,
    PLACES,
    VERIFY,
    Forward,
    Requests,
    RoundRules,
)


def lay_out(requests: Requests, forward: Forward, alternatives: list[Tensor], rules: RoundRules) -> None:
    """Write what the next forward reads, from where the requests stand."""
    state, size, draft = requests.state, rules.block_size, requests.draft
    at = torch.arange(size, device=draft.device)
    cached, block, drafting = state[:, CACHED, None], state[:, BLOCK, None], state[:, PHASE, None] == DRAFT
    corrections = (state[:, PLACES:] > 0).sum(1)
    forward.slots.copy_(cached + torch.arange(rules.num_tokens, device=draft.device))
    for row in range(rules.rows):
        here = slice(row * size, (row + 1) * size)
        if row == 0:
            used = (state[:, PHASE, None] != DONE) & (at < block)
            ids = torch.where(drafting & (at > 0), rules.mask_id, draft)
            visible = torch.where(drafting, block << 24, at + 1)
            leaves, is_draft = torch.zeros_like(cached), drafting & used
        else:
            correction = (row <= corrections)[:, None]
            used = correction | ((state[:, GOES_ON] > 0) & (row == corrections + 1))[:, None]
            begins = alternatives[row - 1][:, None] if row <= rules.corrections else draft[:, :1]
            ids = torch.where(correction & (at == 0), begins, rules.mask_id)
            own = state[:, PLACES + row - 1, None] if row <= rules.corrections else cached
            leaves, is_draft = torch.where(correction, own, size), used.expand(-1, size)
            visible = leaves | (row * size) << 12 | size << 24
        forward.ids[:, here] = torch.where(used & (ids >= 0), ids, rules.mask_id)
        forward.positions[:, here] = cached + torch.where(used, leaves + at, 0)
        forward.visible[:, here] = torch.where(used, visible, 0).int()
        forward.gate[:, here, 0] = is_draft
    whole = size * (1 + corrections + state[:, GOES_ON])
    branching = (state[:, PHASE] == VERIFY) & (state[:, BLOCK] == size)
    forward.num_tokens.copy_(torch.where(branching, whole, torch.where(state[:, PHASE] == DONE, 0, state[:, BLOCK])))
    forward.prefix_lens.copy_(state[:, CACHED])


@triton.jit
def store_row(
    ids, positions, slots, visible, gate, tail, row, at, tokens, used, is_draft, seen, leaves, cached, mask_id,
    SIZE: tl.constexpr,
):  # fmt: skip
    """One row of :func:`lay_out`, of the request whose tokens begin at ``tail``."""
    inside = at < SIZE
    place = tail + row * SIZE + at
    tl.store(ids + place, tl.where(used & (tokens >= 0), tokens, mask_id), mask=inside)
    tl.store(positions + place, (cached + tl.where(used, leaves + at, 0)).to(tl.int64), mask=inside)
    tl.store(slots + place, (cached + row * SIZE + at).to(tl.int64), mask=inside)
    tl.store(visible + place, tl.where(used, seen, 0), mask=inside)
    tl.store(gate + place, used & is_draft, mask=inside)
