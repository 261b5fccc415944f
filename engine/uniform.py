"""Forwards of requests that all have the same context: what a profile measures, and CUDA graphs replay."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recguide.engine.attention import attend, causal_mask, draft_mask, mask_bias
from recguide.engine.decode import pick
from recguide.engine.graphs import captured
from recguide.engine.model import Attention, Decoder, Draft, KVCache

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


def uniform_attention(cache: KVCache, context: int, num_tokens: int, causal: bool) -> Attention:
    """Attention of ``num_tokens`` new tokens behind ``context`` cached ones, in every request alike.

    ``causal`` is verification and plain decoding; otherwise each new token sees all of them, as drafts do. On a GPU it
    is torch's flash kernel without a mask (its causal mode is aligned to the last key), which splits long contexts.
    """
    end = context + num_tokens

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.read(layer, q.shape[0], end)
        keys[:, :, context:], values[:, :, context:] = k.transpose(1, 2), v.transpose(1, 2)
        if q.is_cuda:
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            attended: Tensor = flash(q.transpose(1, 2), keys, values, 0.0, causal and num_tokens > 1)[0]
            return attended
        start = torch.full(q.shape[:1], context, device=q.device)
        mask = (causal_mask if causal else draft_mask)(start, num_tokens, end)
        return attend(q.transpose(1, 2), keys, values, mask_bias(mask, q.dtype))

    return attention


class UniformForward:
    """One forward of fixed shape on static tensors: ``ids`` in, ``picked`` tokens out; a CUDA graph on a GPU."""

    def __init__(
        self, decoder: Decoder, cache: KVCache, num_requests: int, num_tokens: int, context: int, kind: str
    ) -> None:
        self.decoder, self.kind = decoder, kind
        # random tokens: repeated ones make a forward's numbers unlike any served one's
        generator = torch.Generator(decoder.device).manual_seed(0)
        shape = (num_requests, num_tokens)
        self.ids = torch.randint(decoder.config.vocab_size, shape, device=decoder.device, generator=generator)
        self.positions = (context + torch.arange(num_tokens, device=decoder.device)).expand(num_requests, -1)
        self.attention = uniform_attention(cache, context, num_tokens, causal=kind not in ("draft", "rows"))
        self.draft = self._draft_tokens()
        self.picked = torch.empty(0)
        self.graph: torch.cuda.CUDAGraph | None = None

    def _draft_tokens(self) -> Draft:
        if self.kind in ("verify", "decode", "prefill"):
            return False
        if self.kind == "draft":
            return True
        # the verifier's tokens come first in a mixed forward; any share of drafts costs the same
        gate = torch.ones((*self.ids.shape, 1), dtype=torch.bool, device=self.ids.device)
        gate[:, :16] = False
        return gate

    @torch.no_grad()
    def step(self) -> None:
        """Run the forward as it stands; a prefill scores its last token only."""
        hidden = self.decoder.run(self.ids, self.positions, self.attention, self.draft)
        self.picked = pick(self.decoder, hidden[:, -1:] if self.kind == "prefill" else hidden)

    def capture(self, memory: "_POOL_HANDLE") -> None:
        """Record the forward as a CUDA graph in memory that other graphs share."""
        self.graph = captured(self.step, memory)

    @property
    def replay(self) -> Callable[[], None]:
        """What runs the forward once: the graph where there is one."""
        return self.graph.replay if self.graph is not None else self.step
