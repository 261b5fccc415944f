"""Training and measuring sequences: a clean text followed by draft blocks that each start somewhere inside it.

Layout of a row: ``L`` clean tokens, then ``G`` blocks of ``B`` tokens. Clean tokens see each other causally. A block
sees the clean tokens before its start, and itself in both directions: what a draft sees when it is served.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """Model inputs for ``[clean | blocks]`` rows, and what each block slot should predict.

    ``ids``, ``positions`` ``[N, L+G*B]``, ``mask`` bool ``[N, 1, L+G*B, L+G*B]``; drafts begin at token ``draft`` = L.
    ``targets`` ``[N, G, B]`` is the index in the clean row that a slot predicts, ``offsets`` ``[B]`` counts draft
    tokens from 0, ``scored`` ``[N, G, B]`` is False for slots that draft nothing or whose target is past the text.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    draft: int
    targets: Tensor
    scored: Tensor
    offsets: Tensor


def build(
    clean: Tensor, ends: Tensor, starts: Tensor, seeded: Tensor, block_size: int, mask_id: int, draft_shift: int
) -> BlockBatch:
    """Rows of clean tokens ``[N, L]`` with text up to ``ends`` ``[N]``, and blocks from ``starts`` ``[N, G]``.

    A ``seeded`` ``[N, G]`` block opens with the clean token at its start; the others are masks throughout.
    """
    n, length = clean.shape
    slots = torch.arange(block_size, device=clean.device)
    places = starts[..., None] + slots
    blocks = torch.full_like(places, mask_id)
    blocks[..., 0] = torch.where(seeded, clean.gather(1, starts), mask_id)
    clean_positions = torch.arange(length, device=clean.device).expand(n, -1)
    return BlockBatch(
        ids=torch.cat([clean, blocks.flatten(1)], 1),
        positions=torch.cat([clean_positions, places.flatten(1)], 1),
        mask=_mask(clean_positions, starts, block_size)[:, None],
        draft=length,
        targets=(places + draft_shift).clamp(max=length - 1),
        scored=_scored(places, ends, seeded, draft_shift),
        offsets=slots if draft_shift else slots - 1,
    )


def _scored(places: Tensor, ends: Tensor, seeded: Tensor, draft_shift: int) -> Tensor:
    inside = places + draft_shift < ends[:, None, None]
    if draft_shift:
        # the last slot would score a token behind the block
        inside[..., -1] = False
    else:
        inside[..., 0] &= ~seeded
    return inside


def _mask(clean_positions: Tensor, starts: Tensor, block_size: int) -> Tensor:
    n, length = clean_positions.shape
    num_blocks = starts.shape[1]
    keys = torch.arange(length, device=starts.device)
    causal = (keys <= clean_positions[..., None]).expand(n, -1, -1)
    block_of = torch.arange(num_blocks, device=starts.device).repeat_interleave(block_size)
    before = keys < starts.repeat_interleave(block_size, 1)[..., None]
    own = (block_of[:, None] == block_of).expand(n, -1, -1)
    none = causal.new_zeros(n, length, num_blocks * block_size)
    return torch.cat([torch.cat([causal, none], 2), torch.cat([before, own], 2)], 1)
