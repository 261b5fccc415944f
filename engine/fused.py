"""The decoder's forward with the operations between its matrix products fused: 10 launches a layer, not some 35.

Attention is a function of its own, since it alone depends on what the tokens see. `model.py` is the reference.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from recguide.engine.model import Decoder, Draft, Layer, Linear, LowRank
from recguide.engine.rotary import Table
from recguide.kernels.gate import silu_gate
from recguide.kernels.norm import add_rms_norm
from recguide.kernels.rotary import rotary_write

FusedAttention = Callable[[int, Tensor], Tensor]
"""From a layer's index and its rotated queries ``[N, T, heads, dim]`` to ``[N, T, heads * dim]``, once keys are in."""
Turns = tuple[Table, Table]


def fused_hidden(
    decoder: Decoder,
    ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: tuple[Tensor, Tensor],
    attention: FusedAttention,
    draft: Draft = False,
    turns: Turns | None = None,
) -> Tensor:
    """:meth:`Decoder.hidden` of tokens ``ids`` ``[N, T]``, on a GPU; ``turns`` of these positions, if they are known.

    ``cache`` holds keys and values ``[layers, pages, page_size, kv_heads, dim]``, and ``slots`` int64 ``[N * T]`` says
    where those of each token go: page * page_size + place in the page.
    """
    q_table, k_table = turns or turns_at(decoder, positions)
    eps, delta = decoder.config.rms_norm_eps, None
    stream = decoder.embed(ids)
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, Layer)
        stream, normed = add_rms_norm(stream, delta, layer.input_norm, eps)
        qkv = projected(layer.qkv, normed, draft).flatten(0, 1)
        q = qkv.new_empty(*ids.shape, decoder.config.num_heads, decoder.config.head_dim)
        rotary_write(qkv, (q_table, k_table), slots, q, cache[0][index], cache[1][index])
        attended = projected(layer.out, attention(index, q), draft)
        stream, normed = add_rms_norm(stream, attended, layer.post_attention_norm, eps)
        delta = projected(layer.down, silu_gate(projected(layer.gate_up, normed, draft)), draft)
    return add_rms_norm(stream, delta, decoder.final_norm, eps)[1]


def projected(linear: Linear, x: Tensor, draft: Draft) -> Tensor:
    """:meth:`Linear.forward` in two products an update, of which the second one adds to what is there.

    Tokens that are no drafts get a sum with zeros.
    """
    if draft is True and linear.draft_weight is not None:
        return F.linear(x, linear.draft_weight)
    updates = [update for update in linear.updates if isinstance(update, LowRank)]
    if draft is False:
        updates = [update for update in updates if not update.draft_only]
    if not isinstance(draft, (bool, Tensor)) or any(update.a.dtype != linear.weight.dtype for update in updates):
        plain: Tensor = linear(x, draft)
        return plain
    y = F.linear(x, linear.weight)
    for update in updates:
        inner = F.linear(x, update.a)
        if update.draft_only and isinstance(draft, Tensor):
            inner = inner * draft
        y.flatten(0, -2).addmm_(inner.flatten(0, -2), update.b.T)
    return y


def turns_at(decoder: Decoder, positions: Tensor) -> Turns:
    """What rotates queries, and keys, at ``positions`` ``[N, T]``: cosines and sines, ``[N * T, dim / 2]`` each."""
    q_table, k_table = (_flat(table) for table in decoder.rotary_tables(positions))
    return q_table, k_table


def _flat(table: Table) -> Table:
    cos, sin = table
    return cos.flatten(0, 2), sin.flatten(0, 2)
