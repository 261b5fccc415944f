"""The next draft of each request and its branches: as many rows as `sim/overlap.py` prepares (paper, section 5.1).

Each function stands here twice: for all requests in torch, and for one of them in Triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.next_forward import store_row
from recguide.kernels.round_state import (
    BLOCK,
    CACHED,
    DONE,
    DRAFT,
    FINISH,
    GOES_ON,
    LEFT,
    OUTCOME,
    PHASE,
    PLACES,
    RUNNING,
    VERIFY,
    Requests,
    RoundRules,
)
from recguide.kernels.verification import DRAFTED, PREPARED


def take_draft(
    requests: Requests, first: Tensor, seed: Tensor, source: Tensor, sizes: Tensor, rules: RoundRules
) -> None:
    """The next block, its size and the phase; ``source`` is the row it was drafted in, -1 for none."""
    state, size = requests.state, rules.block_size
    room = rules.max_context - state[:, CACHED]
    fitting = torch.where(sizes <= room[:, None], sizes, 1).amax(1)
    index = source.clamp(min=0)[:, None] * size + torch.arange(size, device=first.device) - rules.draft_shift
    requests.draft.copy_(first.gather(1, index.clamp(min=0)))
    requests.draft[:, 0] = seed
    held = (source >= 0) | ((fitting == 1) & (not rules.lockstep))
    state[:, PHASE] = torch.where(state[:, FINISH] != RUNNING, DONE, torch.where(held, VERIFY, DRAFT))
    state[:, BLOCK] = fitting
    state[:, OUTCOME] = ((source == 0) & (fitting > 1)) * DRAFTED


def choose_branches(
    requests: Requests, margin: Tensor, second: Tensor, source: Tensor, rules: RoundRules
) -> list[Tensor]:
    """Note which branches the next forward has; gives the first token of each correction."""
    state, size = requests.state, rules.block_size
    at = torch.arange(size, device=source.device)
    index = (source.clamp(min=0)[:, None] * size + at - rules.draft_shift).clamp(min=0)
    # 256 * margin < steps is floor(256 * margin) < steps, as traces have it
    risky = (margin.gather(1, index) * 256 < rules.delta_steps) & (at > 0)
    rank = risky.long().cumsum(1)
    allowed = (source >= 0) & (state[:, BLOCK] == size) & (state[:, PHASE] == VERIFY)
    allowed &= (source == 0) | rules.recursive
    room, before, alternatives = rules.max_context - state[:, CACHED], allowed, []
    for n in range(rules.corrections):
        place = torch.where(risky & (rank == n + 1), at, 0).sum(1)
        alternative = second.gather(1, index.gather(1, place[:, None]))[:, 0]
        fits = (place > 0) & (place < state[:, LEFT]) & (place + size <= room) & (alternative >= 0)
        before = before & fits
        state[:, PLACES + n] = torch.where(before, place, 0)
        alternatives.append(alternative)
    wanted = {"never": rank[:, -1] < 0, "always": rank[:, -1] >= 0, "two-risky": rank[:, -1] <= 2}[rules.continuation]
    state[:, GOES_ON] = allowed & wanted & (size < state[:, LEFT]) & (2 * size <= room)
    prepared = (state[:, PLACES:] > 0).any(1) | (state[:, GOES_ON] > 0)
    state[:, OUTCOME] |= prepared * PREPARED
    return alternatives


_PLACES = tl.constexpr(PLACES)


@triton.jit
def fitting_block(room, sizes, LARGEST_OF: tl.constexpr):
    """The largest of the ascending block sizes with room in the context, else one token."""
    block = room * 0 + 1
    for i in tl.static_range(LARGEST_OF):
        size = tl.load(sizes + i)
        block = tl.where(size <= room, size, block)
    return block


@triton.jit
def risky_tokens(margin, index, at, SIZE: tl.constexpr, STEPS: tl.constexpr):
    """Which tokens of a draft are risky, how many of them there are up to each, and how many there are."""
    drafted = (at > 0) & (at < SIZE)
    # margins of NaN are not risky
    risky = (tl.load(margin + index, mask=drafted, other=1.0) * 256 < STEPS) & drafted
    return risky, tl.cumsum(risky.to(tl.int32), 0), tl.sum(risky.to(tl.int32), 0)


@triton.jit
def store_branches(
    row, ids, positions, slots, visible, gate, second, tail, base, at, risky, rank, allowed, goes_on, left, room,
    cached, mask_id, SIZE: tl.constexpr, CORRECTIONS: tl.constexpr, CONTINUATION: tl.constexpr,
):  # fmt: skip
    """Note where the corrections of a request are and write its branches; gives how many are corrections.

    ``base`` is where the statistics of its draft begin. The continuation takes the first row behind the corrections.
    """
    corrections = left * 0
    before = allowed
    for n in tl.static_range(CORRECTIONS):
        place = tl.sum(tl.where(risky & (rank == n + 1), at, 0), 0)
        alternative = tl.load(second + tl.maximum(base + place, tail))
        before = before & (place > 0) & (place < left) & (place + SIZE <= room) & (alternative >= 0)
        tl.store(row + _PLACES + n, tl.where(before, place, 0))
        used = before | (goes_on & (corrections == n))
        tokens = tl.where((at == 0) & before, alternative, mask_id)
        store_row(
            ids, positions, slots, visible, gate, tail, n + 1, at, tokens, used, True,
            tl.where(before, place, SIZE) | ((n + 1) * SIZE) << 12 | SIZE << 24, tl.where(before, place, SIZE),
            cached, mask_id, SIZE,
        )  # fmt: skip
        corrections += before.to(tl.int32)
    if CONTINUATION != 0:
        used = goes_on & (corrections == CORRECTIONS)
        store_row(
            ids, positions, slots, visible, gate, tail, CORRECTIONS + 1, at, tl.zeros_like(at) + mask_id, used, True,
            SIZE | ((CORRECTIONS + 1) * SIZE) << 12 | SIZE << 24, SIZE, cached, mask_id, SIZE,
        )  # fmt: skip
    return corrections
