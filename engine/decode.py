"""Greedy decoding in batches: one token a forward, or linear self-speculation (paper, section 3.1).

A round of linear self-speculation drafts a block with every position visible to every other, then verifies it causally
with the same backbone. `draft` and `verify` only say what they found; `Request.commit` alone changes a request.
Slots of the cache at or behind a request's ``cached`` tokens hold nothing: rejected drafts, and rows that ride along in
a forward they do not need, leave their keys there and are overwritten.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recguide.engine.attention import causal_mask, draft_mask
from recguide.engine.model import Decoder, KVCache
from recguide.sim.rounds import AR, emitted_lens, largest_fitting
from recguide.traces.errors import InputError

BLOCK_SIZES = (4, 8, 16, 32)


class Round(NamedTuple):
    """One finished round: ``accept_len`` before any cut, ``emitted`` after EOS and the output limit have cut it.

    As in a dense trace, a draft token behind EOS counts as a mismatch.
    """

    block_size: int
    accept_len: int
    emitted: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What one prompt gave: its output with EOS, why it ended ("eos" or "length"), and its rounds after the prefill."""

    tokens: tuple[int, ...]
    finish_reason: str
    rounds: tuple[Round, ...]


@dataclass(slots=True)
class Request:
    """One request being decoded. Its seed, the last token, is emitted but not cached yet."""

    prompt_tokens: int
    tokens_left: int
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    ended: bool = False

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are in the cache: all but the seed."""
        return self.prompt_tokens + len(self.tokens) - 1

    @property
    def finished(self) -> bool:
        """Whether it emits no further token."""
        return self.ended or self.tokens_left == 0

    def commit(self, block_size: int, verified: Sequence[int], eos_ids: Sequence[int]) -> Round:
        """Emit accepted tokens up to EOS and the output limit; gives the round that this was."""
        eos_at = next((at for at, token in enumerate(verified) if token in eos_ids), len(verified))
        accept_len = min(len(verified), eos_at + 2)
        emitted = int(emitted_lens(np.array(accept_len), self.tokens_left, eos_at))
        self.tokens += verified[:emitted]
        self.tokens_left -= emitted
        self.ended = self.tokens[-1] in eos_ids
        return Round(block_size, accept_len, emitted)


def autoregressive(
    decoder: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int, *, max_context: int | None = None
) -> list[Generation]:
    """Greedy output of every prompt, one token a forward, in the order of the prompts.

    Stops at an EOS token, after ``max_new_tokens``, or where prompt and output fill ``max_context`` (default: the
    model's). Raises ValueError for an empty prompt, one that leaves no room, or a limit below 1.
    """
    return _decode(decoder, prompts, (), max_new_tokens, max_context)


def linear_self_speculation(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    block_size: int,
    max_new_tokens: int,
    *,
    max_context: int | None = None,
    block_sizes: Sequence[int] = BLOCK_SIZES,
) -> list[Generation]:
    """The output of :func:`autoregressive`, in rounds of a draft and a verification of ``block_size`` tokens.

    Near the context limit a round takes the largest of the smaller ``block_sizes`` that fits, else one token.
    """
    if block_size < 2:
        raise InputError(f"block size {block_size}: a block has at least 2 tokens, its seed and one draft")
    grid = sorted({block_size, *(size for size in block_sizes if 2 <= size < block_size)})
    return _decode(decoder, prompts, grid, max_new_tokens, max_context)


def draft(decoder: Decoder, cache: KVCache, seeds: Tensor, cached: Tensor, span: int, block_size: int) -> Tensor:
    """The blocks ``[N, B]`` behind ``cached`` ``[N]`` tokens: the seeds ``[N]``, then B-1 tokens drafted at once."""
    block = torch.full((len(seeds), block_size), decoder.config.mask_id, device=seeds.device)
    block[:, 0] = seeds
    slots = cached[:, None] + torch.arange(block_size, device=seeds.device)
    hidden = decoder.hidden(block, slots, draft_mask(cached, block_size, span), cache, slots, draft=True)
    # an unshifted logit scores its own position, a shifted one the next
    scored = hidden[:, :-1] if decoder.config.draft_shift else hidden[:, 1:]
    block[:, 1:] = pick(decoder, scored)
    return block


def verify(decoder: Decoder, cache: KVCache, block: Tensor, cached: Tensor, span: int) -> Tensor:
    """The verifier's token behind each token of the blocks ``[N, B]``, ``[N, B]``; their keys go behind the cached."""
    slots = cached[:, None] + torch.arange(block.shape[1], device=block.device)
    hidden = decoder.hidden(block, slots, causal_mask(cached, block.shape[1], span), cache, slots)
    return pick(decoder, hidden)


def pick(decoder: Decoder, hidden: Tensor) -> Tensor:
    """The greedy token for hidden states ``[..., hidden]``; never the mask token."""
    logits = decoder.logits(hidden)
    logits[..., decoder.config.mask_id] = float("-inf")
    return logits.argmax(-1)


def accept_lens(block: Tensor, verified: Tensor) -> Tensor:
    """Acceptance lengths ``[N]``: the draft tokens before the first the verifier would not have picked, and its own."""
    matched = (block[:, 1:] == verified[:, :-1]).long().cumprod(1).sum(1)
    return matched + 1


def prefill(decoder: Decoder, cache: KVCache, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Cache the prompts and give the first token of each output, ``[N]``."""
    device = decoder.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = max(map(len, prompts))
    ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
    slots = torch.arange(longest, device=device).expand(len(prompts), -1)
    hidden = decoder.hidden(ids, slots, causal_mask(torch.zeros_like(lengths), longest, longest), cache, slots)
    return pick(decoder, hidden[torch.arange(len(prompts), device=device), lengths - 1])


@torch.no_grad()
def _decode(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    grid: Sequence[int],
    max_new_tokens: int,
    max_context: int | None,
) -> list[Generation]:
    limit = decoder.config.max_context if max_context is None else max_context
    _check(prompts, max_new_tokens, limit)
    if not prompts:
        return []
    requests = [Request(len(prompt), min(max_new_tokens, limit - len(prompt))) for prompt in prompts]
    # a round at the very end still feeds its whole block
    capacity = max(request.prompt_tokens + request.tokens_left for request in requests) + max(grid, default=AR)
    cache = KVCache(decoder.config, len(prompts), capacity, decoder.device, decoder.dtype)
    for request, token in zip(requests, prefill(decoder, cache, prompts).tolist(), strict=True):
        request.commit(AR, [token], decoder.config.eos_ids)
    batch = requests
    while unfinished := [row for row, request in enumerate(batch) if not request.finished]:
        if len(unfinished) <= len(batch) // 2:
            batch = [batch[row] for row in unfinished]
            cache.keys, cache.values = cache.keys[:, unfinished], cache.values[:, unfinished]
        _step(decoder, cache, batch, grid, limit)
    return [_generation(request) for request in requests]


def _check(prompts: Sequence[Sequence[int]], max_new_tokens: int, limit: int) -> None:
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens is {max_new_tokens}; allowed: at least 1")
    for index, prompt in enumerate(prompts):
        if not 1 <= len(prompt) < limit:
            raise InputError(f"prompt {index}: {len(prompt)} tokens; allowed: 1 to {limit - 1}, the context less one")


def _step(decoder: Decoder, cache: KVCache, requests: Sequence[Request], grid: Sequence[int], limit: int) -> None:
    """One round of every unfinished request, those of one block size together."""
    sizes = largest_fitting(grid, np.array([request.cached for request in requests]), limit)
    running = [row for row, request in enumerate(requests) if not request.finished]
    for block_size in sorted({int(sizes[row]) for row in running}):
        rows = [row for row in running if sizes[row] == block_size]
        for row, verified in zip(rows, _round(decoder, cache, requests, rows, block_size), strict=True):
            requests[row].rounds.append(requests[row].commit(block_size, verified, decoder.config.eos_ids))


def _round(
    decoder: Decoder, cache: KVCache, requests: Sequence[Request], rows: Sequence[int], block_size: int
) -> list[list[int]]:
    """The accepted tokens of ``rows``. All rows of the batch are computed; the others' outcome is not looked at."""
    cached = torch.tensor([request.cached for request in requests], device=decoder.device)
    seeds = torch.tensor([request.tokens[-1] for request in requests], device=decoder.device)
    span = max(request.cached for request in requests) + block_size
    block = seeds[:, None] if block_size == AR else draft(decoder, cache, seeds, cached, span, block_size)
    verified = verify(decoder, cache, block, cached, span)
    lens = accept_lens(block, verified).tolist()
    tokens = verified.tolist()
    return [tokens[row][: lens[row]] for row in rows]


def _generation(request: Request) -> Generation:
    return Generation(tuple(request.tokens), "eos" if request.ended else "length", tuple(request.rounds))
