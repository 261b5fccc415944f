"""How far drafts agree with the verifier on held-out text: the quick measurement behind `recguide adapt`.

The recorder (engine/record.py) measures the same in full; this takes one view and one block size, in the model's dtype.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.attention import causal_mask
from recguide.engine.blocks import build
from recguide.engine.decode import pick
from recguide.engine.distill import Corpus
from recguide.engine.model import Decoder


@dataclass(frozen=True, slots=True)
class Agreement:
    """``accept`` int ``[N, R]``: acceptance length of a seeded draft with p response tokens out; ``offsets`` ``[B-1]``:
    share of draft tokens that match, by place in the block."""

    accept: NDArray[np.int64]
    offsets: NDArray[np.float64]


def matches(decoder: Decoder, clean: Tensor, ends: Tensor, anchors: Tensor, block_size: int) -> Tensor:
    """Which draft tokens of seeded blocks at ``anchors`` ``[N, G]`` equal the text, bool ``[N, G, B-1]``."""
    shift = decoder.config.draft_shift
    batch = build(
        clean, ends, anchors, torch.ones_like(anchors, dtype=torch.bool), block_size, decoder.config.mask_id, shift
    )
    hidden = decoder.hidden(batch.ids, batch.positions, batch.mask, draft=batch.draft)[:, clean.shape[1] :]
    drafted = pick(decoder, hidden).view_as(batch.targets)
    right = (drafted == clean.gather(1, batch.targets.flatten(1)).view_as(batch.targets)) & batch.scored
    return right[..., :-1] if shift else right[..., 1:]


@torch.no_grad()
def measure(decoder: Decoder, corpus: Corpus, block_size: int, rows: int = 32, slots: int = 512) -> Agreement:
    """Agreement at every response position of every row of ``corpus``, ``rows`` rows and ``slots`` slots at a time."""
    found = [
        _rows(decoder, corpus, slice(first, first + rows), block_size, slots)
        for first in range(0, len(corpus.tokens), rows)
    ]
    right = np.concatenate(found)
    accept = right.cumprod(2).sum(2) + 1
    inside = np.arange(right.shape[1])[None] + block_size <= corpus.response_lens[:, None]
    return Agreement(accept, right[inside].mean(0))


def _rows(decoder: Decoder, corpus: Corpus, rows: slice, block_size: int, slots: int) -> NDArray[np.bool_]:
    clean, prompts, responses = (
        torch.from_numpy(array[rows]).long().to(decoder.device)
        for array in (corpus.tokens, corpus.prompt_lens, corpus.response_lens)
    )
    ends, width, group = prompts + responses, int(corpus.response_lens.max()), slots // block_size
    parts = []
    for first in range(0, width, group):
        anchors = prompts[:, None] - 1 + torch.arange(first, min(first + group, width), device=decoder.device)
        anchors = anchors.clamp(max=clean.shape[1] - 1)
        parts.append(matches(decoder, clean, ends, anchors, block_size).cpu().numpy())
    return np.concatenate(parts, 1)


def mean_accept(agreement: Agreement, corpus: Corpus, groups: NDArray[np.str_]) -> dict[str, float]:
    """Mean acceptance length over the rounds of each group of rows, served one after the other."""
    lengths: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        at, total = 1, int(corpus.response_lens[row])
        while at < total:
            step = min(int(agreement.accept[row, at]), total - at)
            lengths.setdefault(str(group), []).append(step)
            at += step
    return {group: float(np.mean(values)) for group, values in sorted(lengths.items())}


@torch.no_grad()
def base_agreement(base: Decoder, corpus: Corpus, rows: int = 32) -> float:
    """Share of response tokens that the untouched base would have picked too, given the text before them."""
    same, total = 0, 0
    for first in range(0, len(corpus.tokens), rows):
        clean = torch.from_numpy(corpus.tokens[first : first + rows]).long().to(base.device)
        places = torch.arange(clean.shape[1], device=base.device).expand(len(clean), -1)
        mask = causal_mask(
            torch.zeros(len(clean), dtype=torch.long, device=base.device), clean.shape[1], clean.shape[1]
        )
        hidden = base.hidden(clean, places, mask)
        prompts = torch.from_numpy(corpus.prompt_lens[first : first + rows]).long().to(base.device)[:, None]
        ends = prompts + torch.from_numpy(corpus.response_lens[first : first + rows]).long().to(base.device)[:, None]
        predicts = (places >= prompts - 1) & (places < ends - 1)
        same += int((pick(base, hidden[predicts]) == clean[:, 1:][predicts[:, :-1]]).sum())
        total += int(predicts.sum())
    return same / total
