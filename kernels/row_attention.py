"""Attention of every row of every request in one launch: a paged prefix read once for all rows (paper, section 5.3).

Verifier rows, branches, plain drafts, one-token decoding, TiDAR's quadratic layout and prefill differ only in what each
token sees of its request's tail (`layouts.py`). `row_plan.py` cuts the work, `row_merge.py` puts parts together.
"""

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.launches import overlapping
from recguide.kernels.layouts import Rows
from recguide.kernels.row_items import FIELDS
from recguide.kernels.row_merge import merge_parts
from recguide.kernels.row_plan import RowPlan

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = (64, 128)
LOG2_E = 1.4426950408889634
MAX_STRIDE = 2**23
"""Of the tokens and heads of queries and outputs: within a tile their offsets have 32 bits."""


def row_attention_reference(
    q: Tensor, keys: Tensor, values: Tensor, rows: Rows, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention ``[tokens, heads, dim]`` and its natural log-sum-exp ``[tokens, heads]``, both float64.

    ``q`` is ``[tokens, heads, dim]``, ``keys`` and ``values`` are ``[pages, page_size, kv_heads, dim]``. A token that
    sees nothing gets 0 and minus infinity; tokens of no request get NaN. ``scale`` defaults to ``dim ** -0.5``.
    """
    out = torch.full(q.shape, torch.nan, dtype=torch.float64, device=q.device)
    lse = out.new_full(q.shape[:2], torch.nan)
    ends = rows.indptr.tolist()
    for request, (first, end) in enumerate(pairwise(ends)):
        prefix, visible = int(rows.prefix_lens[request]), rows.visible[first:end, None]
        place = torch.arange(prefix + end - first, device=q.device)
        page = rows.page_table[request, place // keys.shape[1]].long()
        k, v = (
            x[page, place % x.shape[1]].double().repeat_interleave(q.shape[1] // x.shape[2], 1) for x in (keys, values)
        )
        trunk, start, length = visible & 4095, visible >> 12 & 4095, visible >> 24 & 255
        tail = place - prefix
        seen = (tail < trunk) | ((tail >= start) & (tail < start + length))
        scores = torch.einsum("thd,nhd->htn", q[first:end].double(), k) * (scale or q.shape[2] ** -0.5)
        scores.masked_fill_(~seen, -torch.inf)
        out[first:end] = torch.einsum("htn,nhd->thd", scores.softmax(-1).nan_to_num(0.0), v)
        lse[first:end] = scores.logsumexp(-1).T
    return out, lse


@triton.jit
def _pages(pages, begin, lanes, here, KEYS: tl.constexpr, PAGE: tl.constexpr):
    """Pages of a tile's places; no entry of the table for others than those which are ``here`` is read."""
    index = begin // PAGE + lanes // PAGE if KEYS % PAGE == 0 else (begin + lanes) // PAGE
    return tl.load(pages + index, mask=here, other=0)


@triton.jit
def _offsets(page, begin, lanes, page_stride, slot_stride, KEYS: tl.constexpr, PAGE: tl.constexpr):
    """Where a tile's keys or values lie; tiles of whole pages have the same slots every time."""
    slot = lanes % PAGE if KEYS % PAGE == 0 else (begin + lanes) % PAGE
    return page.to(tl.int64) * page_stride + slot * slot_stride


@triton.jit
def _weigh(scores, v, top, total, acc, scale, UPCAST: tl.constexpr, PRECISION: tl.constexpr):
    """One step of an online softmax in base 2, for a tile of scores and its values."""
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    # rows that have seen nothing so far: subtracting -inf would make NaN
    safe = tl.where(new_top == float("-inf"), 0.0, new_top)
    decay = tl.exp2(top - safe)
    weights = tl.exp2(scores * scale - safe[:, None])
    total = total * decay + tl.sum(weights, 1)
    if UPCAST:
        acc = acc * decay[:, None] + tl.dot(weights, v.to(tl.float32), input_precision="ieee")
    else:
        acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
    return new_top, total, acc


@triton.jit
def _checked(scores, visible, begin, lanes, end_key, checked_key, prefix, KEYS: tl.constexpr):
    """Scores of a tile of keys, -inf for what is not seen."""
    if begin + KEYS > checked_key:
        trunk, start = visible & 4095, (visible >> 12) & 4095
        row_end = start + ((visible >> 24) & 255)
        place = begin + lanes
        tail = (place - prefix)[None, :]
        seen = (tail < trunk[:, None]) | ((tail >= start[:, None]) & (tail < row_end[:, None]))
        scores = tl.where(seen & (place < end_key)[None, :], scores, float("-inf"))
    return scores


@triton.jit
def _attend(
    q, visible, keys, values, pages, page, first_key, end_key, checked_key, prefix, scale,
    key_page, key_slot, value_page, value_slot,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SAME_STRIDES: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of a tile of rows over the keys from ``first_key`` to ``end_key``: maximum, sum of weights, output.

    From ``checked_key`` on it takes a look at who sees what. ``page`` is of the first tile.
    """
    dims = tl.arange(0, HEAD_DIM)
    lanes = tl.arange(0, KEYS)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for begin in range(first_key, end_key, KEYS):
        place = begin + lanes
        here = place < end_key
        key_at = _offsets(page, begin, lanes, key_page, key_slot, KEYS, PAGE)
        value_at = key_at
        if not SAME_STRIDES:
            value_at = _offsets(page, begin, lanes, value_page, value_slot, KEYS, PAGE)
        k = tl.load(keys + key_at[:, None] + dims, mask=here[:, None], other=0.0)
        v = tl.load(values + value_at[:, None] + dims, mask=here[:, None], other=0.0)
        # carried from tile to tile: a page looked up where it is used would take a stage of the pipeline for itself
        page = _pages(pages, begin + KEYS, lanes, place + KEYS < end_key, KEYS, PAGE)
        if UPCAST:
            scores = tl.dot(q.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee")
        else:
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        scores = _checked(scores, visible, begin, lanes, end_key, checked_key, prefix, KEYS)
        top, total, acc = _weigh(scores, v, top, total, acc, scale, UPCAST, PRECISION)
    return top, total, acc


@triton.jit(do_not_specialize=["grid", "table_request"])
def _row_kernel(
    q, keys, values, out, lse, partial, partial_lse, items, page_table, visible, scale,
    grid, q_token, q_head, key_page, key_slot, key_head, value_page, value_slot, value_head,
    out_token, out_head, table_request,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, FIELDS: tl.constexpr,
    SAME_STRIDES: tl.constexpr, WITH_LSE: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        # this launch is prepared while the one before ends, and so is the merge while this one runs
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    dims = tl.arange(0, HEAD_DIM)
    item = items + tl.program_id(0) * FIELDS
    # a program without an item has one of no rows: to look first whether there is one would be one more wait
    more = 1
    while more > 0:
        more = tl.load(item + grid * FIELDS)
        request = tl.load(item + 1)
        prefix = tl.load(item + 2)
        first = tl.load(item + 3)
        tokens = tl.load(item + 4)
        place = tl.load(item + 5)
        first_key = tl.load(item + 6)
        end_key = tl.load(item + 7)
        checked_key = tl.load(item + 8)
        part = tl.load(item + 9)
        # asked for before all else: nothing is read of the keys until it is known where they are
        pages = page_table + request.to(tl.int64) * table_request
        lanes = tl.arange(0, KEYS)
        page = _pages(pages, first_key, lanes, first_key + lanes < end_key, KEYS, PAGE)
        tl.debug_barrier()
        head = place % KV_HEADS
        begin = place // KV_HEADS * ROWS
        packed = begin + tl.arange(0, ROWS)
        is_row = packed < tokens * GROUP
        # from the tile's first token on 32 bits are enough
        token, heads = packed // GROUP - begin // GROUP, packed % GROUP
        first += begin // GROUP
        q_first = q + first.to(tl.int64) * q_token + head.to(tl.int64) * (GROUP * q_head)
        rows_q = tl.load(q_first + (token * q_token + heads * q_head)[:, None] + dims, mask=is_row[:, None], other=0.0)
        sees = tl.load(visible + first + token, mask=is_row, other=0)
        head_keys, head_values = keys + head.to(tl.int64) * key_head, values + head.to(tl.int64) * value_head
        top, total, acc = _attend(
            rows_q, sees, head_keys, head_values, pages, page,
            first_key, end_key, checked_key, prefix, scale, key_page, key_slot, value_page, value_slot,
            HEAD_DIM, PAGE, ROWS, KEYS, SAME_STRIDES, UPCAST, PRECISION,
        )  # fmt: skip
        safe_total = tl.where(total > 0.0, total, 1.0)
        acc = acc * (1.0 / safe_total)[:, None]
        log2_sum = tl.where(total > 0.0, top + tl.log2(safe_total), float("-inf"))
        if part >= 0:
            row, at = tl.arange(0, ROWS), part.to(tl.int64) * ROWS
            tl.store(partial + at * HEAD_DIM + row[:, None] * HEAD_DIM + dims, acc, mask=is_row[:, None])
            tl.store(partial_lse + at + row, log2_sum, mask=is_row)
        else:
            out_first = out + first.to(tl.int64) * out_token + head.to(tl.int64) * (GROUP * out_head)
            tl.store(out_first + (token * out_token + heads * out_head)[:, None] + dims, acc, mask=is_row[:, None])
            if WITH_LSE:
                lse_first = lse + (first.to(tl.int64) * KV_HEADS + head) * GROUP
                tl.store(lse_first + token * (KV_HEADS * GROUP) + heads, log2_sum * 0.6931471805599453, mask=is_row)
        item += grid * FIELDS


def row_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Rows,
    plan: RowPlan,
    *,
    scale: float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """:func:`row_attention_reference` in the dtype of ``q``, of rows that ``plan`` was last updated with.

    Strides are free except within ``dim``. Tokens of no request keep what ``out`` held. ``lse``, when given, is float32
    and contiguous. Nothing here waits for the device. ValueError for shapes and types that there is no kernel for.
    """
    out = torch.empty_like(q) if out is None else out
    _check(q, keys, values, rows, plan, out, lse)
    interpreted = not q.is_cuda
    tile = plan.tile
    _row_kernel[(plan.grid,)](
        q, keys, values, out, lse, plan.partial_of(q.dtype), plan.partial_lse, plan.items,
        rows.page_table, rows.visible, (scale or q.shape[2] ** -0.5) * LOG2_E, plan.grid,
        *q.stride()[:2], *keys.stride()[:3], *values.stride()[:3], *out.stride()[:2], rows.page_table.stride(0),
        KV_HEADS=plan.kv_heads, GROUP=plan.group, HEAD_DIM=plan.head_dim, PAGE=keys.shape[1],
        ROWS=tile.rows, KEYS=tile.keys, FIELDS=FIELDS, WITH_LSE=lse is not None,
        # the interpreter multiplies the bits of bfloat16 as if they were integers
        UPCAST=interpreted and q.dtype == torch.bfloat16,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        SAME_STRIDES=keys.stride()[:2] == values.stride()[:2],
        num_warps=tile.warps, num_stages=tile.stages, **overlapping(q),
    )  # fmt: skip
    merge_parts(plan, rows, out, lse)
    return out


def _check(q: Tensor, keys: Tensor, values: Tensor, rows: Rows, plan: RowPlan, out: Tensor, lse: Tensor | None) -> None:
    heads = (plan.num_heads, plan.head_dim)
    if q.shape != (rows.visible.shape[0], *heads) or q.dtype not in DTYPES or plan.head_dim not in HEAD_DIMS:
        raise ValueError(
            f"q: {q.dtype} {list(q.shape)}, allowed: {', '.join(map(str, DTYPES))}, "
            f"[{rows.visible.shape[0]} tokens, {plan.num_heads} heads, {plan.head_dim}], dim one of {HEAD_DIMS}"
        )
    if keys.shape != values.shape or keys.shape[2:] != (plan.kv_heads, plan.head_dim):
        raise ValueError(
            f"keys {list(keys.shape)} and values {list(values.shape)}: "
            f"allowed: [pages, page_size, {plan.kv_heads}, {plan.head_dim}] both"
        )
    if not keys.dtype == values.dtype == q.dtype == out.dtype or out.shape != q.shape:
        raise ValueError(f"keys {keys.dtype}, values {values.dtype}, out {out.dtype} {list(out.shape)}: must be as q")
    if any(x.stride(-1) != 1 for x in (q, keys, values, out, rows.page_table)):
        raise ValueError("q, keys, values, out, page table: the last dimension must be contiguous")
    if max(*q.stride()[:2], *out.stride()[:2]) > MAX_STRIDE:
        raise ValueError(f"q {q.stride()}, out {out.stride()}: strides up to {MAX_STRIDE} are allowed")
    if plan.chunk and rows.page_table.shape[1] * keys.shape[1] > plan.longest:
        raise ValueError(f"page tables of {rows.page_table.shape[1]} pages: the plan has room for {plan.longest} keys")
    if lse is not None and (lse.shape != q.shape[:2] or lse.dtype != torch.float32 or not lse.is_contiguous()):
        raise ValueError(f"lse: {lse.dtype} {list(lse.shape)}: allowed: contiguous float32 {list(q.shape[:2])}")
