"""Drafts from every position of a batch of chains, many positions a forward, scored against the chains on the device.

The chains are read once, causally: that caches their keys, and gives what the verifier thinks at every position. Then
each forward holds the blocks of many positions of every request. A block sees the cached tokens before its start and
itself; its own keys go to spare slots behind the chains, so nothing has to be restored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.attention import causal_mask
from recguide.engine.candidates import Candidates, candidates, entropies
from recguide.engine.chains import Chain
from recguide.engine.model import Decoder, KVCache
from recguide.traces.dense import VIEWS, Drafts, num_draft_tokens

# fused attention wants rows of a mask at multiples of 16 bytes
_ALIGNMENT = 16
# blocks of one request share a mask in which they do not see each other: beyond this the unseen part costs too much
_MAX_ROW_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found for one chain of P output tokens: its drafts, and how its tokens stand with two other passes."""

    drafts: Mapping[tuple[str, int], Drafts]
    entropy: NDArray[np.float32]
    """[P]"""
    disagreeing: int
    """Output tokens that are not the verifier's choice in the one causal pass over the chain."""
    base_agreeing: int
    """Output tokens that the base model would have chosen too."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadChains:
    """Chains on the device, one a row, with K tokens to be scored against: K = longest output + largest block."""

    ids: Tensor
    """[N, W] Prompt and chain, then zeros."""
    prompt_lens: Tensor
    """[N]"""
    targets: Tensor
    """[N, K] Chain tokens; -1, which equals no candidate, behind the chain's end and where the verifier disagrees."""
    verifier: Candidates
    """[N, K] Of the distributions that pick the chain's tokens."""
    cache: KVCache
    num_positions: int
    """The longest output."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Drafts at ``count`` positions from ``first`` on, of one view and block size."""

    view: str
    block_size: int
    first: int
    count: int


def dense_outcomes(
    decoder: Decoder, chains: Sequence[Chain], block_sizes: Sequence[int], max_query_tokens: int, base: Decoder | None
) -> list[Outcome]:
    """The outcome of every chain, in order; a forward holds about ``max_query_tokens`` draft tokens.

    ``base`` is the model without its adapter where that changes the verifier, else None.
    """
    spare = max(min(max_query_tokens // len(chains), _MAX_ROW_TOKENS), max(block_sizes))
    read, entropy, disagreeing = read_chains(decoder, chains, max(block_sizes), spare)
    outputs = np.array([chain.output_tokens for chain in chains])
    agreeing = outputs - disagreeing if base is None else _agreeing(base, read, chains)
    drafts = {(view, size): _drafts(decoder, read, view, size, spare, chains) for view in VIEWS for size in block_sizes}
    return [
        Outcome(
            {key: rows[row] for key, rows in drafts.items()},
            entropy[row, : chain.output_tokens],
            int(disagreeing[row]),
            int(agreeing[row]),
        )
        for row, chain in enumerate(chains)
    ]


@torch.no_grad()
def read_chains(
    decoder: Decoder, chains: Sequence[Chain], ahead: int, spare: int
) -> tuple[ReadChains, NDArray[np.float32], NDArray[np.int64]]:
    """Chains with their keys cached and ``spare`` slots behind them; entropies ``[N, K]``; disagreements ``[N]``."""
    ids, prompt_lens, tokens = _on_device(chains, ahead, decoder.device)
    cache = KVCache(decoder.config, len(chains), ids.shape[1] + spare, decoder.device, decoder.dtype)
    hidden = _causal_hidden(decoder, ids, prompt_lens, tokens.shape[1], cache)
    verifier = candidates(decoder, hidden)
    agrees = verifier.first == tokens
    longest = max(chain.output_tokens for chain in chains)
    read = ReadChains(ids, prompt_lens, torch.where(agrees, tokens, -1), verifier, cache, longest)
    disagreeing = (_is_output(chains, tokens) & ~agrees).sum(1)
    return read, entropies(decoder, hidden).cpu().numpy(), disagreeing.cpu().numpy()


def _on_device(chains: Sequence[Chain], ahead: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Ids ``[N, W]``, prompt lengths ``[N]`` and chain tokens ``[N, K]`` (-1 behind the end)."""
    texts = [[*chain.prompt_ids, *chain.tokens] for chain in chains]
    width = -(-max(map(len, texts)) // _ALIGNMENT) * _ALIGNMENT
    ids = np.zeros((len(chains), width), np.int64)
    tokens = np.full((len(chains), max(chain.output_tokens for chain in chains) + ahead), -1, np.int64)
    for row, (text, chain) in enumerate(zip(texts, chains, strict=True)):
        ids[row, : len(text)] = text
        tokens[row, : len(chain.tokens)] = chain.tokens
    prompt_lens = torch.tensor([len(chain.prompt_ids) for chain in chains], device=device)
    return torch.from_numpy(ids).to(device), prompt_lens, torch.from_numpy(tokens).to(device)


def _causal_hidden(
    decoder: Decoder, ids: Tensor, prompt_lens: Tensor, num_tokens: int, cache: KVCache | None
) -> Tensor:
    """Hidden states ``[N, num_tokens, hidden]`` of the positions that pick output tokens 0, 1, ..."""
    n, width = ids.shape
    slots = torch.arange(width, device=ids.device).expand(n, -1)
    mask = causal_mask(torch.zeros_like(prompt_lens), width, width)
    hidden = decoder.hidden(ids, slots, mask, cache, None if cache is None else slots)
    picks = prompt_lens[:, None] - 1 + torch.arange(num_tokens, device=ids.device)
    return hidden.gather(1, picks.clamp(max=width - 1)[..., None].expand(-1, -1, hidden.shape[-1]))


def _is_output(chains: Sequence[Chain], tokens: Tensor) -> Tensor:
    lens = torch.tensor([chain.output_tokens for chain in chains], device=tokens.device)
    return torch.arange(tokens.shape[1], device=tokens.device) < lens[:, None]


@torch.no_grad()
def _agreeing(base: Decoder, read: ReadChains, chains: Sequence[Chain]) -> NDArray[np.int64]:
    """[N] Output tokens that are the base model's choice."""
    picks = read.prompt_lens[:, None] + torch.arange(read.num_positions, device=read.ids.device)
    tokens = read.ids.gather(1, picks.clamp(max=read.ids.shape[1] - 1))
    hidden = _causal_hidden(base, read.ids, read.prompt_lens, read.num_positions, None)
    agrees = candidates(base, hidden).first == tokens
    return (agrees & _is_output(chains, tokens)).sum(1).cpu().numpy()


@torch.no_grad()
def _drafts(
    decoder: Decoder, read: ReadChains, view: str, block_size: int, spare: int, chains: Sequence[Chain]
) -> list[Drafts]:
    """The drafts of every chain in one view and at one block size; they cross to the host once, at the end."""
    step = spare // block_size
    parts = [
        _scored(read, block, _block_candidates(decoder, read, block))
        for first in range(0, read.num_positions, step)
        for block in [_Block(view, block_size, first, min(step, read.num_positions - first))]
    ]
    columns = [torch.cat(column, 1).cpu().numpy() for column in zip(*parts, strict=True)]
    return [_of_row(columns, row, chain.output_tokens, view) for row, chain in enumerate(chains)]


def _of_row(columns: Sequence[NDArray[Any]], row: int, size: int, view: str) -> Drafts:
    match, second, second_no_eos, margin, p1 = (column[row, :size] for column in columns)
    return Drafts(
        match.astype(np.uint32),
        second.astype(np.uint32),
        second_no_eos.astype(np.uint32),
        margin.copy(),
        p1.copy() if view == "seeded" else None,
    )


def _block_candidates(decoder: Decoder, read: ReadChains, block: _Block) -> Candidates:
    """Candidates ``[N, count, n]`` of the draft tokens of each block."""
    shift = decoder.config.draft_shift
    ids, positions, mask = _block_inputs(read, block, decoder.config.mask_id)
    slots = read.ids.shape[1] + torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
    hidden = decoder.hidden(ids, positions, mask, read.cache, slots, draft=True)
    hidden = hidden.view(len(ids), block.count, block.block_size, -1)
    # an unshifted logit scores its own position, of which the seed's is known; a shifted one scores the next
    drafted = hidden[:, :, :-1] if shift else hidden[:, :, int(block.view == "seeded") :]
    found = candidates(decoder, drafted)
    return _behind_verifier(read, block, found) if shift and block.view == "continuation" else found


def _behind_verifier(read: ReadChains, block: _Block, found: Candidates) -> Candidates:
    """Shifted continuations: token 0 is the verifier's own, from the last position of the block before."""
    positions = slice(block.first, block.first + block.count)
    own = (column[:, positions, None] for column in read.verifier)
    return Candidates(*(torch.cat(pair, 2) for pair in zip(own, found, strict=True)))


def _block_inputs(read: ReadChains, block: _Block, mask_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and positions ``[N, count*B]`` and mask ``[N, 1, count*B, W+count*B]`` of the blocks of all rows."""
    n, width = read.ids.shape
    anchors = torch.arange(block.first, block.first + block.count, device=read.ids.device)
    seeded = block.view == "seeded"
    # rows whose output is shorter draft on behind their end; nobody reads that
    starts = (read.prompt_lens[:, None] + anchors - int(seeded)).clamp(max=width - 1)
    positions = starts[..., None] + torch.arange(block.block_size, device=starts.device)
    ids = torch.full_like(positions, mask_id)
    if seeded:
        ids[..., 0] = read.ids.gather(1, starts)
    before = torch.arange(width, device=starts.device) < starts.repeat_interleave(block.block_size, 1)[..., None]
    block_of = torch.arange(block.count, device=starts.device).repeat_interleave(block.block_size)
    own = (block_of[:, None] == block_of).expand(n, -1, -1)
    return ids.flatten(1), positions.flatten(1), torch.cat([before, own], 2)[:, None]


def _scored(read: ReadChains, block: _Block, found: Candidates) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Bitmasks ``[N, count]`` of the three candidates, and margins and p1 ``[N, count, n]`` in steps of 1/256."""
    num_tokens = num_draft_tokens(block.view, block.block_size)
    anchors = torch.arange(block.first, block.first + block.count, device=read.ids.device)
    wanted = anchors[:, None] + torch.arange(num_tokens, device=anchors.device)
    targets = read.targets[:, wanted]
    weights = torch.ones(1, dtype=torch.long, device=anchors.device) << torch.arange(num_tokens, device=anchors.device)
    match, second, second_no_eos = (((column == targets) * weights).sum(-1) for column in found[:3])
    return match, second, second_no_eos, _level(found.p1 - found.p2), _level(found.p1)


def _level(share: Tensor) -> Tensor:
    return (share * 256).floor().clamp(0, 255).to(torch.uint8)
