"""Drafts from every position of a batch of chains, many positions a forward, scored against the chains on the device.

engine/reading.py has cached the chains' keys. A forward holds the blocks of some positions of every request that is
still that long. A block sees the cached tokens before its start and itself; its own keys go to spare slots in front of
the chains, so nothing has to be restored, and keys are read no further than the last block starts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.attention import attend_folded, mask_bias
from recguide.engine.candidates import Candidates, candidates
from recguide.engine.chains import Chain
from recguide.engine.model import Attention, Decoder
from recguide.engine.reading import ALIGNMENT, ReadChains, base_agreeing, read_chains
from recguide.traces.dense import VIEWS, Drafts, num_draft_tokens

# blocks of one request share a mask in which they do not see each other: beyond this the unseen part costs too much
_MAX_ROW_TOKENS = 512


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


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Drafts of the first ``rows`` chains at ``count`` positions from ``first`` on, of one view and block size."""

    view: str
    block_size: int
    rows: int
    first: int
    count: int

    @property
    def positions(self) -> slice:
        """Positions drafted from."""
        return slice(self.first, self.first + self.count)

    @property
    def num_tokens(self) -> int:
        """Query tokens of a row."""
        return self.count * self.block_size


def dense_outcomes(
    decoder: Decoder,
    chains: Sequence[Chain],
    block_sizes: Sequence[int],
    max_query_tokens: int,
    base: Decoder | None,
    drafter: Decoder | None = None,
) -> list[Outcome]:
    """The outcome of every chain, in order; a forward holds about ``max_query_tokens`` draft tokens.

    ``base`` is the model without its adapter where that changes the verifier, else None. ``drafter`` drafts in place of
    ``decoder``, as a copy of it with merged draft updates does.
    """
    # the longest first: those still to be drafted from at a position are then the first rows
    order = sorted(range(len(chains)), key=lambda row: chains[row].output_tokens, reverse=True)
    ordered = [chains[row] for row in order]
    spare = max(min(max_query_tokens, _MAX_ROW_TOKENS), *block_sizes)
    read = read_chains(decoder, ordered, max(block_sizes), spare)
    agreeing = read.outputs - read.disagreeing if base is None else base_agreeing(base, read, ordered)
    drafts = {
        (view, size): _drafts(drafter or decoder, read, view, size, max_query_tokens)
        for view in VIEWS
        for size in block_sizes
    }
    outcomes: dict[int, Outcome] = {}
    for at, (row, chain) in enumerate(zip(order, ordered, strict=True)):
        own = {key: rows[at] for key, rows in drafts.items()}
        entropy = read.entropy[at, : chain.output_tokens]
        outcomes[row] = Outcome(own, entropy, int(read.disagreeing[at]), int(agreeing[at]))
    return [outcomes[row] for row in range(len(chains))]


@torch.no_grad()
def _drafts(decoder: Decoder, read: ReadChains, view: str, block_size: int, max_query_tokens: int) -> list[Drafts]:
    """The drafts of every chain in one view and at one block size; they cross to the host once, at the end."""
    columns = _room(read, num_draft_tokens(view, block_size))
    for blocks in _forwards(read, view, block_size, max_query_tokens):
        for column, part in zip(columns, _scored(read, blocks, _candidates(decoder, read, blocks)), strict=True):
            column[: blocks.rows, blocks.positions] = part
    arrays = [column.cpu().numpy() for column in columns]
    return [_of_row(arrays, row, int(size), view) for row, size in enumerate(read.outputs)]


def _room(read: ReadChains, num_tokens: int) -> list[Tensor]:
    """Three bitmasks ``[N, P]`` and two levels ``[N, P, n]``, for the P of the longest output."""
    shape, device = (len(read.outputs), int(read.outputs[0])), read.ids.device
    masks = [torch.zeros(shape, dtype=torch.long, device=device) for _ in range(3)]
    levels = [torch.zeros((*shape, num_tokens), dtype=torch.uint8, device=device) for _ in range(2)]
    return masks + levels


def _forwards(read: ReadChains, view: str, block_size: int, max_query_tokens: int) -> Iterator[_Blocks]:
    """What each forward drafts, position by position: more of them at once as fewer chains are that long."""
    first, longest = 0, int(read.outputs[0])
    while first < longest:
        rows = int((read.outputs > first).sum())
        count = min(max_query_tokens // (rows * block_size), read.spare // block_size, longest - first)
        yield _Blocks(view, block_size, rows, first, max(1, count))
        first += max(1, count)


def _of_row(columns: Sequence[NDArray[Any]], row: int, size: int, view: str) -> Drafts:
    match, second, second_no_eos, margin, p1 = (column[row, :size] for column in columns)
    return Drafts(
        match.astype(np.uint32),
        second.astype(np.uint32),
        second_no_eos.astype(np.uint32),
        margin.copy(),
        p1.copy() if view == "seeded" else None,
    )


def _candidates(decoder: Decoder, read: ReadChains, blocks: _Blocks) -> Candidates:
    """Candidates ``[rows, count, n]`` of the draft tokens of each block."""
    shift = decoder.config.draft_shift
    ids, positions, starts = _inputs(read, blocks, decoder.config.mask_id)
    attention = _block_attention(decoder, read, blocks, starts)
    hidden = decoder.run(ids, positions, attention, draft=True)
    hidden = hidden.view(blocks.rows, blocks.count, blocks.block_size, -1)
    # an unshifted logit scores its own position, of which the seed's is known; a shifted one scores the next
    drafted = hidden[:, :, :-1] if shift else hidden[:, :, int(blocks.view == "seeded") :]
    found = candidates(decoder, drafted)
    return _behind_verifier(read, blocks, found) if shift and blocks.view == "continuation" else found


def _behind_verifier(read: ReadChains, blocks: _Blocks, found: Candidates) -> Candidates:
    """Shifted continuations: token 0 is the verifier's own, from the last position of the block before."""
    own = (column[: blocks.rows, blocks.positions, None] for column in read.verifier)
    return Candidates(*(torch.cat(pair, 2) for pair in zip(own, found, strict=True)))


def _inputs(read: ReadChains, blocks: _Blocks, mask_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and positions ``[rows, count*B]`` of the blocks, and their starts ``[rows, count]``."""
    anchors = torch.arange(blocks.first, blocks.first + blocks.count, device=read.ids.device)
    seeded = blocks.view == "seeded"
    # rows whose output is shorter draft on behind their end; nobody reads that
    starts = (read.prompt_lens[: blocks.rows, None] + anchors - int(seeded)).clamp(max=read.ids.shape[1] - 1)
    positions = starts[..., None] + torch.arange(blocks.block_size, device=starts.device)
    ids = torch.full_like(positions, mask_id)
    if seeded:
        ids[..., 0] = read.ids[: blocks.rows].gather(1, starts)
    return ids.flatten(1), positions.flatten(1), starts


def _block_attention(decoder: Decoder, read: ReadChains, blocks: _Blocks, starts: Tensor) -> Attention:
    """Attention of blocks over themselves and the chain before each; their keys go right in front of the chains'."""
    num_tokens, config = blocks.num_tokens, decoder.config
    needed = min(int(read.prompts[: blocks.rows].max()) + blocks.first + blocks.count, read.ids.shape[1])
    span = needed + -(needed + num_tokens) % ALIGNMENT
    window = slice(read.spare - num_tokens, read.spare + span)
    keys, values = (part[:, : blocks.rows, :, window] for part in (read.cache.keys, read.cache.values))
    mask = _block_mask(starts, blocks.block_size, span)
    bias = mask_bias(mask, decoder.dtype).repeat(1, 1, config.num_heads // config.num_kv_heads, 1)

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys[layer, :, :, :num_tokens] = k.transpose(1, 2)
        values[layer, :, :, :num_tokens] = v.transpose(1, 2)
        return attend_folded(q.transpose(1, 2), keys[layer], values[layer], bias)

    return attention


def _block_mask(starts: Tensor, block_size: int, span: int) -> Tensor:
    """``[N, 1, G*B, G*B + span]`` for blocks from ``starts`` ``[N, G]``: each sees itself and what is before it."""
    n, count = starts.shape
    block_of = torch.arange(count, device=starts.device).repeat_interleave(block_size)
    own = (block_of[:, None] == block_of).expand(n, -1, -1)
    before = torch.arange(span, device=starts.device) < starts.repeat_interleave(block_size, 1)[..., None]
    return torch.cat([own, before], 2)[:, None]


def _scored(read: ReadChains, blocks: _Blocks, found: Candidates) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Bitmasks ``[rows, count]`` of the three candidates; margins and p1 ``[rows, count, n]`` in steps of 1/256."""
    offsets = torch.arange(num_draft_tokens(blocks.view, blocks.block_size), device=read.ids.device)
    anchors = torch.arange(blocks.first, blocks.first + blocks.count, device=read.ids.device)
    targets = read.targets[: blocks.rows, anchors[:, None] + offsets]
    weights = torch.ones(1, dtype=torch.long, device=offsets.device) << offsets
    match, second, second_no_eos = (((column == targets) * weights).sum(-1) for column in found[:3])
    return match, second, second_no_eos, _level(found.p1 - found.p2), _level(found.p1)


def _level(share: Tensor) -> Tensor:
    return (share * 256).floor().clamp(0, 255).to(torch.uint8)
