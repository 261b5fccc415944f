"""A Llama-family decoder whose attention mask and draft adapter are arguments: one backbone drafts and verifies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from recguide.engine.attention import attend, mask_bias


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model, in the words of a Hugging Face ``config.json``.

    ``mask_id`` is the token that marks a position to be drafted. ``draft_shift`` is 0 when a draft logit scores its own
    position and 1 when it scores the next one. ``max_context`` counts prompt and output tokens.
    """

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    max_context: int
    mask_id: int
    eos_ids: tuple[int, ...]
    draft_shift: int = 0


class KVCache:
    """Keys and values of ``num_requests`` requests, ``capacity`` slots each; slot s of a request holds position s."""

    def __init__(
        self, config: ModelConfig, num_requests: int, capacity: int, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        shape = (config.num_layers, num_requests, config.num_kv_heads, capacity, config.head_dim)
        # zeros, not empty: a masked slot's value is multiplied by a zero weight, and 0 * NaN is NaN
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    @classmethod
    def over(cls, keys: Tensor, values: Tensor) -> "KVCache":
        """A cache on memory that is already there, ``[layers, N, kv_heads, capacity, head_dim]`` each."""
        cache = object.__new__(cls)
        cache.keys, cache.values = keys, values
        return cache

    def rows(self, rows: slice) -> "KVCache":
        """The cache of some of the requests, on the same memory."""
        return KVCache.over(self.keys[:, rows], self.values[:, rows])

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put ``keys`` and ``values`` ``[N, T, kv_heads, head_dim]`` at ``slots`` ``[N, T]`` of a layer."""
        rows = torch.arange(slots.shape[0], device=slots.device)[:, None]
        self.keys[layer][rows, :, slots] = keys
        self.values[layer][rows, :, slots] = values

    def read(self, layer: int, num_requests: int, span: int) -> tuple[Tensor, Tensor]:
        """Views ``[N, kv_heads, span, head_dim]`` of the first slots of the first requests of a layer."""
        return self.keys[layer, :num_requests, :, :span], self.values[layer, :num_requests, :, :span]


Draft = Tensor | bool | int
"""Which tokens of rows are drafts: all, none, bool ``[N, T, 1]``, or those from a place on that all rows share."""


class LowRank(nn.Module):
    """A low-rank update ``b @ a`` of a projection, for every token or for draft tokens alone."""

    def __init__(self, a: Tensor, b: Tensor, draft_only: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(a)
        self.b = nn.Parameter(b)
        self.draft_only = draft_only

    def forward(self, x: Tensor) -> Tensor:
        """The update's own output for ``x`` ``[..., in]``."""
        return F.linear(F.linear(x, self.a), self.b)


class Linear(nn.Module):
    """A bias-free projection with low-rank updates, of which some act on draft tokens only."""

    def __init__(self, in_features: int, out_features: int, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.updates = nn.ModuleList()

    def forward(self, x: Tensor, draft: Draft) -> Tensor:
        """Project ``x`` ``[N, T, in]``."""
        y = F.linear(x, self.weight)
        for update in self.updates:
            assert isinstance(update, LowRank)
            if not update.draft_only or draft is True:
                y = y + update(x)
            elif isinstance(draft, Tensor):
                y = y + update(x) * draft.to(y.dtype)
            elif draft is not False:
                y = torch.cat([y[:, :draft], y[:, draft:] + update(x[:, draft:])], 1)
        return y


Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From a layer's index, its rotated q, rotated k and v, ``[N, T, heads, dim]`` each, to ``[N, heads, T, dim]``."""


def masked_attention(mask: Tensor, dtype: torch.dtype, cache: KVCache | None, slots: Tensor | None) -> Attention:
    """Attention under a bool mask ``[N, 1, T, S]``, among the tokens alone or over a cache that takes them first."""
    bias = mask_bias(mask, dtype)

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if cache is None:
            return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), bias)
        assert slots is not None
        cache.write(layer, slots, k, v)
        return attend(q.transpose(1, 2), *cache.read(layer, q.shape[0], mask.shape[-1]), bias)

    return attention


def rotary_table(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[N, T, 1, head_dim / 2]`` in fp32 for rotary embedding at ``positions`` ``[N, T]``."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.float()[..., None, None] * theta**-exponents
    return angles.cos(), angles.sin()


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Apply the half-split rotary embedding to ``x`` ``[N, T, heads, head_dim]``."""
    cos, sin = table
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class Layer(nn.Module):
    """One decoder layer: attention and gated feed-forward, each behind an RMS norm."""

    def __init__(self, config: ModelConfig, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.q_size = config.num_heads * config.head_dim
        self.kv_size = config.num_kv_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        self.input_norm = nn.Parameter(torch.empty(hidden, device=device, dtype=dtype))
        self.post_attention_norm = nn.Parameter(torch.empty(hidden, device=device, dtype=dtype))
        self.qkv = Linear(hidden, self.q_size + 2 * self.kv_size, device, dtype)
        self.out = Linear(self.q_size, hidden, device, dtype)
        self.gate_up = Linear(hidden, 2 * inner, device, dtype)
        self.down = Linear(inner, hidden, device, dtype)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm over the last axis."""
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.rms_norm_eps)

    def projections(self, x: Tensor, table: tuple[Tensor, Tensor], draft: Draft) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, rotated keys and values, each ``[N, T, heads, head_dim]``."""
        n, t, _ = x.shape
        qkv = self.qkv(self.norm(x, self.input_norm), draft)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], -1)
        heads, kv_heads, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        return (
            rotate(q.view(n, t, heads, dim), table),
            rotate(k.view(n, t, kv_heads, dim), table),
            v.view(n, t, kv_heads, dim),
        )

    def finish(self, x: Tensor, attended: Tensor, draft: Draft) -> Tensor:
        """Everything after attention; ``attended`` is ``[N, heads, T, head_dim]``."""
        x = x + self.out(attended.transpose(1, 2).flatten(2), draft)
        gate, up = self.gate_up(self.norm(x, self.post_attention_norm), draft).chunk(2, -1)
        fed: Tensor = x + self.down(F.silu(gate) * up, draft)
        return fed


class Decoder(nn.Module):
    """The backbone. Weights are uninitialised until :meth:`load` (or a random fill) gives them values."""

    def __init__(self, config: ModelConfig, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size, device=device, dtype=dtype))
        self.layers = nn.ModuleList([Layer(config, device, dtype) for _ in range(config.num_layers)])
        self.final_norm = nn.Parameter(torch.empty(config.hidden_size, device=device, dtype=dtype))
        # an adapter's input embedding of the mask token; the output head keeps the base's row
        self.mask_embedding: nn.Parameter | None = None
        self.head = (
            self.embed_tokens if config.tie_word_embeddings else nn.Parameter(torch.empty_like(self.embed_tokens))
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.embed_tokens.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.embed_tokens.device

    def embed(self, ids: Tensor) -> Tensor:
        """Input embeddings ``[N, T, hidden]``."""
        x = F.embedding(ids, self.embed_tokens)
        if self.mask_embedding is None:
            return x
        return torch.where((ids == self.config.mask_id)[..., None], self.mask_embedding.to(x.dtype), x)

    def hidden(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: KVCache | None = None,
        slots: Tensor | None = None,
        draft: Draft = False,
    ) -> Tensor:
        """Final hidden states ``[N, T, hidden]`` of tokens ``ids`` ``[N, T]`` at ``positions`` ``[N, T]``.

        ``mask`` is bool ``[N, 1, T, S]``, True where a query sees a key; no row may be all False. With a ``cache`` the
        new keys and values go to ``slots`` ``[N, T]`` first and S counts cache slots; without one the tokens see each
        other (S = T). ``draft`` routes the draft adapter.
        """
        return self.run(ids, positions, masked_attention(mask, self.dtype, cache, slots), draft)

    def run(self, ids: Tensor, positions: Tensor, attention: Attention, draft: Draft = False) -> Tensor:
        """:meth:`hidden` with attention, and what becomes of keys and values, left to a function of one's own."""
        x = self.embed(ids)
        table = rotary_table(positions, self.config.head_dim, self.config.rope_theta)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            x = layer.finish(x, attention(index, *layer.projections(x, table, draft)), draft)
        return F.rms_norm(x, (x.shape[-1],), self.final_norm, self.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token in fp32, ``[..., vocab]``, from hidden states ``[..., hidden]``."""
        return F.linear(hidden, self.head).float()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights under their Hugging Face Llama names without the leading ``model.``; fuse q, k, v and gate, up.

        Raises ValueError naming every key that is missing or left over, or whose shape does not fit.
        """
        left = dict(weights)
        missing = [name for parts, _ in self._sources() for name in parts if name not in left]
        known = {name for parts, _ in self._sources() for name in parts}
        if missing or left.keys() - known:
            raise ValueError(f"weights: missing {sorted(missing)}, left over {sorted(left.keys() - known)}")
        with torch.no_grad():
            for parts, parameter in self._sources():
                fused = torch.cat([left[name].to(parameter.device, parameter.dtype) for name in parts])
                if fused.shape != parameter.shape:
                    raise ValueError(
                        f"{' + '.join(parts)}: shape {list(fused.shape)}, expected {list(parameter.shape)}"
                    )
                parameter.copy_(fused)

    def _sources(self) -> list[tuple[tuple[str, ...], nn.Parameter]]:
        sources: list[tuple[tuple[str, ...], nn.Parameter]] = [
            (("embed_tokens.weight",), self.embed_tokens),
            (("norm.weight",), self.final_norm),
        ]
        if not self.config.tie_word_embeddings:
            sources.append((("lm_head.weight",), self.head))
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            prefix = f"layers.{index}."
            attention, feed = prefix + "self_attn.", prefix + "mlp."
            sources += [
                ((prefix + "input_layernorm.weight",), layer.input_norm),
                (tuple(f"{attention}{part}_proj.weight" for part in "qkv"), layer.qkv.weight),
                ((attention + "o_proj.weight",), layer.out.weight),
                ((prefix + "post_attention_layernorm.weight",), layer.post_attention_norm),
                ((feed + "gate_proj.weight", feed + "up_proj.weight"), layer.gate_up.weight),
                ((feed + "down_proj.weight",), layer.down.weight),
            ]
        return sources
