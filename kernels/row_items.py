"""Records of the items of row attention, one of 64 bytes each, so that a program starts after a single read."""

import triton
import triton.language as tl

FIELDS = 16
"""Ints of a record: 1 if there is such an item, its request, cached tokens of that, its first token and how many, tile
and key head as ``tile * kv_heads + head``, first key, the key behind the last that anybody sees, the first that not all
see, and the part that it makes or -1."""


@triton.jit
def _seen(visible, first, tokens, tile, real, MOST: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Of the tail, how much all tokens of a tile see from its start on, and how far any of them sees."""
    by_all = tl.full(tile.shape, 4096, tl.int32)
    by_any = tl.zeros(tile.shape, tl.int32)
    begin = tile * ROWS // GROUP
    end = tl.where(real, tl.minimum(tokens, tl.cdiv((tile + 1) * ROWS, GROUP)), 0)
    for index in range(MOST):
        token = begin + index
        here = token < end
        word = tl.load(visible + first + token, mask=here, other=0)
        trunk = word & 4095
        by_all = tl.where(here, tl.minimum(by_all, trunk), by_all)
        by_any = tl.maximum(by_any, tl.maximum(trunk, ((word >> 12) & 4095) + ((word >> 24) & 255)))
    return by_all, by_any


@triton.jit
def write_items(
    items, index, limit, ends, parts, chunk, total, indptr, prefix_lens, visible,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """The records of these items up to ``limit``; blank ones behind the last of ``total``.

    ``ends`` are the requests' running totals of items, ``parts`` how many of each request's are parts.
    """
    done = ends[None, :] <= index[:, None]
    real = index < total
    request = tl.where(real, tl.sum(done.to(tl.int32), 1), 0)
    local = index - tl.max(tl.where(done, ends[None, :], 0), 1)
    base = tl.sum(tl.where(done, parts[None, :], 0), 1)
    first = tl.load(indptr + request, mask=real, other=0)
    tokens = tl.load(indptr + request + 1, mask=real, other=0) - first
    prefix = tl.load(prefix_lens + request, mask=real, other=0)
    # tiles of the same keys lie side by side, so that they find them in the L2 cache
    tiles = tl.maximum(tl.cdiv(tokens * GROUP, ROWS), 1)
    tile = local % tiles
    first_key = local // (tiles * KV_HEADS) * chunk
    most: tl.constexpr = (ROWS + GROUP - 1) // GROUP + 1
    by_all, by_any = _seen(visible, first, tokens, tile, real, most, GROUP, ROWS)
    end_key = tl.minimum(first_key + chunk, prefix + by_any)
    record, here = items + index * FIELDS, index < limit
    tl.store(record, real.to(tl.int32), mask=here)
    tl.store(record + 1, request, mask=here)
    tl.store(record + 2, prefix, mask=here)
    tl.store(record + 3, first, mask=here)
    tl.store(record + 4, tokens, mask=here)
    tl.store(record + 5, tl.where(real, tile * KV_HEADS + local // tiles % KV_HEADS, 0), mask=here)
    tl.store(record + 6, tl.where(real, first_key, 0), mask=here)
    tl.store(record + 7, tl.where(real, end_key, 0), mask=here)
    tl.store(record + 8, tl.minimum(prefix + by_all, end_key), mask=here)
    tl.store(record + 9, tl.where(real & (prefix + tokens > chunk), base + local, -1), mask=here)
