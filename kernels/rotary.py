"""Rotary embedding of queries and keys, with keys and values put into a paged cache on the way."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.launches import overlapping

Table = tuple[Tensor, Tensor]
"""Cosines and sines, fp32 ``[tokens, dim / 2]`` each."""


def rotated(x: Tensor, table: Table) -> Tensor:
    """The half-split rotary embedding of ``x`` ``[tokens, heads, dim]``."""
    cos, sin = (part[:, None] for part in table)
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def rotary_write_reference(
    qkv: Tensor, tables: tuple[Table, Table], slots: Tensor, q: Tensor, keys: Tensor, values: Tensor
) -> None:
    """From projections ``[N * T, (heads + 2 * kv_heads) * dim]`` to rotated queries, and keys and values in pages.

    ``q`` is ``[N, T, heads, dim]``, ``keys`` and ``values`` are ``[pages, page_size, kv_heads, dim]``; all are written
    in place and may have any strides but 1 along ``dim``. ``tables`` are those of queries and of keys, ``slots`` int64
    ``[N * T]`` page * page_size + place in the page. Slots are different, or it is chance which wins.
    """
    (heads, dim), kv_heads, page_size = q.shape[2:], keys.shape[2], keys.shape[1]
    parts = qkv.view(len(qkv), heads + 2 * kv_heads, dim)
    q.copy_(rotated(parts[:, :heads], tables[0]).view(q.shape))
    keys[slots // page_size, slots % page_size] = rotated(parts[:, heads : heads + kv_heads], tables[1])
    values[slots // page_size, slots % page_size] = parts[:, heads + kv_heads :]


@triton.jit
def _rotary_write_kernel(
    qkv, q_cos, q_sin, k_cos, k_sin, slots, q, keys, values,
    q_request, q_token, q_head, key_page, key_place, key_head, value_page, value_place, value_head, tokens_each,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0), tl.program_id(1)
    half = tl.arange(0, LANES)
    inside = half < DIM // 2
    row = qkv + token.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * DIM) + head * DIM
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        # attention comes next, which waits for all of this
        tl.extra.cuda.gdc_launch_dependents()
    first, second = tl.load(row + half, mask=inside), tl.load(row + DIM // 2 + half, mask=inside)
    entry = token * (DIM // 2) + half
    of_q = half < tl.where(head < HEADS, DIM // 2, 0)
    of_k = half < tl.where(head < HEADS, 0, DIM // 2)
    c = tl.load(q_cos + entry, mask=of_q, other=0.0) + tl.load(k_cos + entry, mask=of_k, other=0.0)
    s = tl.load(q_sin + entry, mask=of_q, other=0.0) + tl.load(k_sin + entry, mask=of_k, other=0.0)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    turned_first = (wide_first * c - wide_second * s).to(first.dtype)
    turned_second = (wide_second * c + wide_first * s).to(first.dtype)
    if head < HEADS:
        out = q + (token // tokens_each).to(tl.int64) * q_request + (token % tokens_each) * q_token + head * q_head
        tl.store(out + half, turned_first, mask=inside)
        tl.store(out + DIM // 2 + half, turned_second, mask=inside)
    else:
        slot = tl.load(slots + token)
        page, place = slot // PAGE, slot % PAGE
        at = keys + page * key_page + place * key_place + (head - HEADS) * key_head
        tl.store(at + half, turned_first, mask=inside)
        tl.store(at + DIM // 2 + half, turned_second, mask=inside)
        v = row + KV_HEADS * DIM
        at = values + page * value_page + place * value_place + (head - HEADS) * value_head
        tl.store(at + half, tl.load(v + half, mask=inside), mask=inside)
        tl.store(at + DIM // 2 + half, tl.load(v + DIM // 2 + half, mask=inside), mask=inside)


def rotary_write(
    qkv: Tensor, tables: tuple[Table, Table], slots: Tensor, q: Tensor, keys: Tensor, values: Tensor
) -> None:
    """:func:`rotary_write_reference` in one launch, a program a token and head."""
    (heads, dim), kv_heads = q.shape[2:], keys.shape[2]
    if qkv.shape[-1] != (heads + 2 * kv_heads) * dim or dim % 2:
        raise ValueError(f"qkv has {qkv.shape[-1]} columns for {heads} and {kv_heads} heads of an even {dim}")
    if q.stride(3) != 1 or keys.stride(3) != 1 or values.stride(3) != 1:
        raise ValueError("q, keys and values must have stride 1 along the head's dimension")
    if len(qkv):
        _rotary_write_kernel[(len(qkv), heads + kv_heads)](
            qkv, *tables[0], *tables[1], slots, q, keys, values,
            *q.stride()[:3], *keys.stride()[:3], *values.stride()[:3], q.shape[1],
            HEADS=heads, KV_HEADS=kv_heads, DIM=dim, PAGE=keys.shape[1], LANES=triton.next_power_of_2(dim // 2),
            num_warps=1, **overlapping(q),
        )  # fmt: skip
