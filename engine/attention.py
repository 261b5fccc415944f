"""The two masks of one backbone (paper, equation 1), over a key-value cache in which slot and position are the same."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

# up to this many query tokens it is cheaper to fold the query heads of a group into the query axis than to repeat keys
FOLD_TOKENS = 32


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


def mask_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive form of a bool mask: 0 where a key is seen, minus infinity elsewhere; made once a forward."""
    return torch.zeros(mask.shape, device=mask.device, dtype=dtype).masked_fill_(~mask, float("-inf"))


def attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Grouped-query attention ``[N, heads, T, dim]`` of ``q`` over ``keys``/``values`` ``[N, kv_heads, S, dim]``.

    ``bias`` is ``[N, 1, T, S]``. torch's fused kernels take a mask only when query and key head counts are equal.
    """
    group = q.shape[1] // keys.shape[1]
    if q.shape[2] <= FOLD_TOKENS:
        return attend_folded(q, keys, values, bias.repeat(1, 1, group, 1))
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=bias)


def attend_folded(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """:func:`attend` without copies of keys: the heads of a group are rows of one head.

    ``bias`` is ``[N, 1, group * T, S]``, the rows of T tokens repeated for every head of a group.
    """
    n, heads, num_tokens, dim = q.shape
    folded = q.reshape(n, keys.shape[1], -1, dim)
    return F.scaled_dot_product_attention(folded, keys, values, attn_mask=bias).reshape(n, heads, num_tokens, dim)
