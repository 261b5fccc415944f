"""Sampling by noise that a seed, a position and a token determine, so that an output depends on nothing else.

The largest of the scores logits / T + Gumbel noise is a sample of softmax(logits / T). With its noise fixed in advance,
the sampled text is a function of prompt and seed, as the greedy one is of the prompt: verification by exact match gives
the same text whatever was drafted, and the distribution is that of one-token decoding. Drafts take the noise of their
positions too, which makes them match more often; by itself that changes no output.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def _mixed(x: Tensor) -> Tensor:
    """A well mixed 32-bit hash of the lower 32 bits of int64 numbers (the lowbias32 finalizer).

    See https://nullprogram.com/blog/2018/07/31/.
    """
    x = x & _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def gumbel(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Gumbel noise ``[N, vocab]`` in fp32 for these seeds and positions, int64 ``[N]``, the same on every device."""
    keys = _mixed(_mixed(seeds) + _mixed(positions + 0x9E3779B9))
    tokens = torch.arange(vocab, device=seeds.device)
    hashed = _mixed(_mixed(tokens + 0x85EBCA6B) + keys[:, None])
    # all that fp64 holds of 32 bits, and never 0 or 1: fp32 would round the largest ones to 1
    uniform = (hashed.double() + 0.5) * 2.0**-32
    return (-(-uniform.log()).log()).float()


def perturbed(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Scores ``[N, vocab]`` whose largest is the sample, where the temperature ``[N]`` is 0 the logits themselves."""
    sampled = temperatures > 0
    scaled = logits / torch.where(sampled, temperatures, 1.0)[:, None]
    return torch.where(sampled[:, None], scaled + gumbel(seeds, positions, logits.shape[1]), logits)
