"""The two masks of one backbone (paper, equation 1), over a key-value cache in which slot and position are the same."""

import torch
from torch import Tensor


def causal_mask(start: Tensor, num_tokens: int, span: int) -> Tensor:
    """Query t of request n sees slots 0..start[n]+t: prefill, autoregressive steps and verification.

    ``start`` is ``[N]``, the slot of each request's first query token; the result is bool ``[N, 1, num_tokens, span]``.
    """
    last_visible = start[:, None] + torch.arange(num_tokens, device=start.device)
    return (torch.arange(span, device=start.device) <= last_visible[..., None])[:, None]


def draft_mask(start: Tensor, num_tokens: int, span: int) -> Tensor:
    """Every query token of request n sees slots 0..start[n]+num_tokens-1: its prefix and its whole block.

    Same shapes as :func:`causal_mask`.
    """
    last_visible = (start + num_tokens - 1)[:, None].expand(-1, num_tokens)
    return (torch.arange(span, device=start.device) <= last_visible[..., None])[:, None]
