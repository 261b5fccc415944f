"""A Llama-family decoder whose attention mask and draft adapter are arguments: one backbone drafts and verifies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from recguide.engine.attention import attend, mask_bias
from recguide.engine.rotary import QueryScaling, RopeScaling, Table, Yarn, frequencies, rotary_table, rotate, scaled
from recguide.traces.errors import InputError


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
    rope_scaling: RopeScaling | None = None
    query_scaling: QueryScaling | None = None


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
        """The update's own output for ``x`` ``[..., in]``, in the dtype of the update."""
        return F.linear(F.linear(x.to(self.a.dtype), self.a), self.b)


class Linear(nn.Module):
    """A bias-free projection with low-rank updates, of which some act on draft tokens only."""

    def __init__(self, in_features: int, out_features: int, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.updates = nn.ModuleList()
        self.draft_weight: Tensor | None
        self.register_buffer("draft_weight", None, persistent=False)
        """With all updates merged, for forwards whose tokens are all drafts; None: those add the updates' outputs."""

    def forward(self, x: Tensor, draft: Draft) -> Tensor:
        """Project ``x`` ``[N, T, in]``. An update more precise than the weights is added before the sum is rounded."""
        if draft is True and self.draft_weight is not None:
            return F.linear(x, self.draft_weight)
        y = F.linear(x, self.weight)
        for update in self.updates:
            assert isinstance(update, LowRank)
            if not update.draft_only or draft is True:
                y = (y + update(x)).to(y.dtype)
            elif isinstance(draft, Tensor):
                y = (y + update(x) * draft).to(y.dtype)
            elif draft is not False:
                y = torch.cat([y[:, :draft], (y[:, draft:] + update(x[:, draft:])).to(y.dtype)], 1)
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

    def projections(self, x: Tensor, tables: tuple[Table, Table], draft: Draft) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, rotated keys and values, each ``[N, T, heads, head_dim]``; ``tables`` as in `Decoder`."""
        n, t, _ = x.shape
        qkv = self.qkv(self.norm(x, self.input_norm), draft)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], -1)
        heads, kv_heads, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        return (
            rotate(q.view(n, t, heads, dim), tables[0]),
            rotate(k.view(n, t, kv_heads, dim), tables[1]),
            v.view(n, t, kv_heads, dim),
        )

    def finish(self, x: Tensor, attended: Tensor, draft: Draft) -> Tensor:
        """Everything after attention; ``attended`` is ``[N, heads, T, head_dim]``."""
        x = x + self.out(attended.transpose(1, 2).flatten(2), draft)
        gate, up = self.gate_up(self.norm(x, self.post_attention_norm), draft).chunk(2, -1)
        fed: Tensor = x + self.down(F.silu(gate) * up, draft)
        return fed

    def places(self) -> dict[str, Tensor]:
        """Its weights by their Hugging Face names."""
        q, k, v = self.qkv.weight.split([self.q_size, self.kv_size, self.kv_size])
        gate, up = self.gate_up.weight.chunk(2)
        attention = {"q_proj": q, "k_proj": k, "v_proj": v, "o_proj": self.out.weight}
        return {
            "input_layernorm": self.input_norm,
            **{f"self_attn.{name}": weight for name, weight in attention.items()},
            "post_attention_layernorm": self.post_attention_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": self.down.weight,
        }


class Decoder(nn.Module):
    """The backbone. Weights are uninitialised until :meth:`load` (or a random fill) gives them values."""

    def __init__(self, config: ModelConfig, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size, device=device, dtype=dtype))
        self.layers = nn.ModuleList([Layer(config, device, dtype) for _ in range(config.num_layers)])
        self.final_norm = nn.Parameter(torch.empty(config.hidden_size, device=device, dtype=dtype))
        self.frequencies: Tensor
        turning = frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self.register_buffer("frequencies", turning.to(self.embed_tokens.device), persistent=False)
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
        tables = self.rotary_tables(positions)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            x = layer.finish(x, attention(index, *layer.projections(x, tables, draft)), draft)
        return F.rms_norm(x, (x.shape[-1],), self.final_norm, self.config.rms_norm_eps)

    def rotary_tables(self, positions: Tensor) -> tuple[Table, Table]:
        """What rotates queries, and what rotates keys, at ``positions`` ``[N, T]``."""
        scaling = self.config.rope_scaling
        factor = scaling.attention_factor if isinstance(scaling, Yarn) else 1.0
        table = rotary_table(positions, self.frequencies, factor)
        return scaled(table, positions, self.config.query_scaling), table

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token in fp32, ``[..., vocab]``, from hidden states ``[..., hidden]``."""
        return F.linear(hidden, self.head).float()

    def check(self, weights: Mapping[str, Tensor], origin: Callable[[str], str] = str) -> None:
        """InputError naming the keys that are missing or left over, or the one whose shape does not fit.

        Weights have their Hugging Face Llama names without the leading ``model.``, and ``origin`` says what one is
        called in such a message. It takes no memory on the device "meta".
        """
        places = self.places()
        missing, left = (sorted(map(origin, keys)) for keys in (places.keys() - weights, weights.keys() - places))
        if missing or left:
            raise InputError(f"weights: missing {_listed(missing)}, left over {_listed(left)}")
        for name, place in places.items():
            found, expected = list(weights[name].shape), list(place.shape)
            if found != expected:
                raise InputError(f"{origin(name)}: shape {found}, expected {expected}")

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], origin: Callable[[str], str] = str) -> None:
        """Take weights named as in :meth:`check`; fuse q, k, v and gate, up.

        Raises what that raises, and InputError for a weight that holds NaN or infinity in the decoder's dtype.
        """
        self.check(weights, origin)
        for name, place in self.places().items():
            place.copy_(weights[name])
            # the extremes carry NaN and infinity, and need no memory of their own
            if not torch.stack(place.aminmax()).isfinite().all():
                raise InputError(f"{origin(name)}: holds NaN or infinity, as stored or once it is {place.dtype}")

    def places(self) -> dict[str, Tensor]:
        """Where each weight is, by its name as in :meth:`check`: parts of a fused projection are views of it."""
        places: dict[str, Tensor] = {"embed_tokens.weight": self.embed_tokens, "norm.weight": self.final_norm}
        if not self.config.tie_word_embeddings:
            places["lm_head.weight"] = self.head
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            places |= {f"layers.{index}.{name}.weight": place for name, place in layer.places().items()}
        return places


def _listed(keys: list[str], most: int = 8) -> str:
    return str(keys) if len(keys) <= most else f"{keys[:most]} and {len(keys) - most} more"
