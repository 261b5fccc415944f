"""Chains read once, causally: their keys cached for the drafts behind them, and what the verifier makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.attention import causal_mask
from recguide.engine.candidates import Candidates, candidates, entropies
from recguide.engine.chains import Chain
from recguide.engine.model import Decoder, KVCache

# fused attention wants rows of a mask at multiples of 16 bytes
ALIGNMENT = 16


@dataclass(frozen=True, slots=True, eq=False)
class ReadChains:
    """Chains on the device, one a row, with K tokens to be scored against: K = longest output + largest block."""

    prompts: NDArray[np.int64]
    """[N] Prompt tokens of each."""
    outputs: NDArray[np.int64]
    """[N] Output tokens of each."""
    ids: Tensor
    """[N, W] Prompt and chain, then zeros."""
    prompt_lens: Tensor
    """[N] As ``prompts``, on the device."""
    targets: Tensor
    """[N, K] Chain tokens; -1, which equals no candidate, behind the chain's end and where the verifier disagrees."""
    verifier: Candidates
    """[N, K] Of the distributions that pick the chain's tokens."""
    cache: KVCache
    """``spare`` slots for drafts, then those of the chains, W and a few more."""
    spare: int
    entropy: NDArray[np.float32]
    """[N, K] Nats, of those distributions."""
    disagreeing: NDArray[np.int64]
    """[N] Output tokens that are not the verifier's choice."""


@torch.no_grad()
def read_chains(decoder: Decoder, chains: Sequence[Chain], ahead: int, spare: int) -> ReadChains:
    """Read chains in one pass; their last drafts reach ``ahead`` tokens behind the output."""
    ids, tokens = (torch.from_numpy(array).to(decoder.device) for array in _arrays(chains, ahead))
    prompts = np.array([len(chain.prompt_ids) for chain in chains])
    prompt_lens = torch.from_numpy(prompts).to(decoder.device)
    cache = KVCache(decoder.config, len(chains), spare + ids.shape[1] + ALIGNMENT, decoder.device, decoder.dtype)
    behind = KVCache.over(cache.keys[:, :, :, spare:], cache.values[:, :, :, spare:])
    hidden = _causal_hidden(decoder, ids, prompt_lens, tokens.shape[1], behind)
    verifier = candidates(decoder, hidden)
    agrees = verifier.first == tokens
    return ReadChains(
        prompts=prompts,
        outputs=np.array([chain.output_tokens for chain in chains]),
        ids=ids,
        prompt_lens=prompt_lens,
        targets=torch.where(agrees, tokens, -1),
        verifier=verifier,
        cache=cache,
        spare=spare,
        entropy=entropies(decoder, hidden).cpu().numpy(),
        disagreeing=(_is_output(chains, tokens) & ~agrees).sum(1).cpu().numpy(),
    )


@torch.no_grad()
def base_agreeing(base: Decoder, read: ReadChains, chains: Sequence[Chain]) -> NDArray[np.int64]:
    """[N] Output tokens that the base model would have chosen too."""
    longest = int(read.outputs.max())
    picks = read.prompt_lens[:, None] + torch.arange(longest, device=read.ids.device)
    tokens = read.ids.gather(1, picks.clamp(max=read.ids.shape[1] - 1))
    hidden = _causal_hidden(base, read.ids, read.prompt_lens, longest, None)
    agrees = candidates(base, hidden).first == tokens
    return (agrees & _is_output(chains, tokens)).sum(1).cpu().numpy()


def _arrays(chains: Sequence[Chain], ahead: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids ``[N, W]`` and chain tokens ``[N, K]`` (-1 behind the end)."""
    texts = [[*chain.prompt_ids, *chain.tokens] for chain in chains]
    width = -(-max(map(len, texts)) // ALIGNMENT) * ALIGNMENT
    ids = np.zeros((len(chains), width), np.int64)
    tokens = np.full((len(chains), max(chain.output_tokens for chain in chains) + ahead), -1, np.int64)
    for row, (text, chain) in enumerate(zip(texts, chains, strict=True)):
        ids[row, : len(text)] = text
        tokens[row, : len(chain.tokens)] = chain.tokens
    return ids, tokens


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
