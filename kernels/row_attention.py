"""Attention of every row of every request in one launch: a paged prefix read once for all rows (paper, section 5.3).

Verifier rows, branches, plain drafts, one-token decoding, TiDAR's quadratic layout and prefill differ only in what each
token sees of its request's tail (`layouts.py`). `row_plan.py` cuts the work, `row_merge.py` puts parts together.
"""

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.layouts import Rows
from recguide.kernels.row_merge import merge_parts
from recguide.kernels.row_plan import HEADER, RowPlan

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = (64, 128)
LOG2_E = 1.4426950408889634


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
def _of(numbers, lanes, lane):
    """One number out of a vector."""
    return tl.sum(tl.where(lanes == lane, numbers, 0), 0)


@triton.jit
def _pages(pages, begin, lanes, limit, KEYS: tl.constexpr, PAGE: tl.constexpr):
    """Pages of a tile's places; no entry of the table behind the request's last key is read."""
    index = begin // PAGE + lanes // PAGE if KEYS % PAGE == 0 else (begin + lanes) // PAGE
    return tl.load(pages + index, mask=begin + lanes < limit, other=0)


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
def _attend(
    q, visible, is_row, keys, values, pages, first_key, limit, prefix, scale,
    key_page, key_slot, value_page, value_slot,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SAME_STRIDES: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of a tile of rows over the keys from ``first_key`` to ``limit``: maximum, sum of weights, output."""
    trunk = visible & 4095
    start = (visible >> 12) & 4095
    row_end = start + ((visible >> 24) & 255)
    # keys from here on need a look at who sees them, and from there on nobody does
    seen_by_all = prefix + tl.min(tl.where(is_row, trunk, 4096), 0)
    end_key = tl.minimum(limit, prefix + tl.max(tl.where(is_row, tl.maximum(trunk, row_end), 0), 0))
    dims = tl.arange(0, HEAD_DIM)
    lanes = tl.arange(0, KEYS)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    # carried from tile to tile: a page looked up where it is used would take a stage of the pipeline for itself
    page = _pages(pages, first_key, lanes, limit, KEYS, PAGE)
    for begin in range(first_key, end_key, KEYS):
        place = begin + lanes
        here = place < end_key
        key_at = _offsets(page, begin, lanes, key_page, key_slot, KEYS, PAGE)
        value_at = key_at
        if not SAME_STRIDES:
            value_at = _offsets(page, begin, lanes, value_page, value_slot, KEYS, PAGE)
        k = tl.load(keys + key_at[:, None] + dims, mask=here[:, None], other=0.0)
        v = tl.load(values + value_at[:, None] + dims, mask=here[:, None], other=0.0)
        page = _pages(pages, begin + KEYS, lanes, limit, KEYS, PAGE)
        if UPCAST:
            scores = tl.dot(q.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee")
        else:
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if begin + KEYS > tl.minimum(seen_by_all, end_key):
            tail = (place - prefix)[None, :]
            seen = (tail < trunk[:, None]) | ((tail >= start[:, None]) & (tail < row_end[:, None]))
            scores = tl.where(seen & here[None, :], scores, float("-inf"))
        top, total, acc = _weigh(scores, v, top, total, acc, scale, UPCAST, PRECISION)
    return top, total, acc


@triton.jit(do_not_specialize=["num_requests", "grid"])
def _row_kernel(
    q, keys, values, out, lse, partial, partial_lse, plan, indptr, prefix_lens, page_table, visible, scale,
    num_requests, grid, q_token, q_head, key_page, key_slot, key_head, value_page, value_slot, value_head,
    out_token, out_head, table_request,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, HEADER: tl.constexpr,
    SAME_STRIDES: tl.constexpr, WITH_LSE: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        # this launch is prepared while the one before ends, and so is the merge while this one runs
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    requests = tl.arange(0, WIDTH)
    here = requests < num_requests
    ends = tl.load(plan + HEADER + requests)
    bases = tl.load(plan + HEADER + WIDTH + requests)
    firsts = tl.load(indptr + requests, mask=here, other=0)
    nexts = tl.load(indptr + requests + 1, mask=here, other=0)
    prefixes = tl.load(prefix_lens + requests, mask=here, other=0)
    num_items = tl.load(plan)
    chunk = tl.load(plan + 1)
    dims = tl.arange(0, HEAD_DIM)
    item = tl.program_id(0)
    while item < num_items:
        request = tl.sum((ends <= item).to(tl.int32), 0)
        local = item - tl.max(tl.where(ends <= item, ends, 0), 0)
        first = _of(firsts, requests, request)
        tokens = _of(nexts, requests, request) - first
        prefix = _of(prefixes, requests, request)
        # tiles of the same keys lie side by side, so that they find them in the L2 cache
        tiles = tl.cdiv(tokens * GROUP, ROWS)
        tile = local % tiles
        head = (local // tiles) % KV_HEADS
        first_key = local // (tiles * KV_HEADS) * chunk
        packed = tile * ROWS + tl.arange(0, ROWS)
        token = first + packed // GROUP
        heads = head * GROUP + packed % GROUP
        is_row = packed < tokens * GROUP
        q_at = token.to(tl.int64) * q_token + heads.to(tl.int64) * q_head
        top, total, acc = _attend(
            tl.load(q + q_at[:, None] + dims, mask=is_row[:, None], other=0.0),
            tl.load(visible + token, mask=is_row, other=0),
            is_row,
            keys + head.to(tl.int64) * key_head,
            values + head.to(tl.int64) * value_head,
            page_table + request.to(tl.int64) * table_request,
            first_key, tl.minimum(first_key + chunk, prefix + tokens), prefix, scale,
            key_page, key_slot, value_page, value_slot, HEAD_DIM, PAGE, ROWS, KEYS,
            SAME_STRIDES, UPCAST, PRECISION,
        )  # fmt: skip
        safe_total = tl.where(total > 0.0, total, 1.0)
        acc = acc / safe_total[:, None]
        log2_sum = tl.where(total > 0.0, top + tl.log2(safe_total), float("-inf"))
        if prefix + tokens > chunk:
            at = (_of(bases, requests, request) + local).to(tl.int64) * ROWS + tl.arange(0, ROWS)
            tl.store(partial + at[:, None] * HEAD_DIM + dims, acc, mask=is_row[:, None])
            tl.store(partial_lse + at, log2_sum, mask=is_row)
        else:
            out_at = token.to(tl.int64) * out_token + heads.to(tl.int64) * out_head
            tl.store(out + out_at[:, None] + dims, acc, mask=is_row[:, None])
            if WITH_LSE:
                at = token.to(tl.int64) * (KV_HEADS * GROUP) + heads
                tl.store(lse + at, log2_sum * 0.6931471805599453, mask=is_row)
        item += grid


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
    # from Hopper on a launch may be prepared before the one in front of it has ended
    overlap = q.is_cuda and torch.cuda.get_device_capability(q.device)[0] >= 9
    tile = plan.tile
    _row_kernel[(plan.grid,)](
        q, keys, values, out, lse, plan.partial, plan.partial_lse, plan.plan,
        rows.indptr, rows.prefix_lens, rows.page_table, rows.visible, (scale or q.shape[2] ** -0.5) * LOG2_E,
        rows.num_requests, plan.grid, *q.stride()[:2], *keys.stride()[:3], *values.stride()[:3], *out.stride()[:2],
        rows.page_table.stride(0),
        KV_HEADS=plan.kv_heads, GROUP=plan.group, HEAD_DIM=plan.head_dim, PAGE=keys.shape[1],
        ROWS=tile.rows, KEYS=tile.keys, WIDTH=plan.width, HEADER=HEADER, WITH_LSE=lse is not None,
        # the interpreter multiplies the bits of bfloat16 as if they were integers
        UPCAST=interpreted and q.dtype == torch.bfloat16,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        SAME_STRIDES=keys.stride()[:2] == values.stride()[:2],
        OVERLAP=overlap, num_warps=tile.warps, num_stages=tile.stages, **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
    merge_parts(plan, rows, out, lse, overlap=overlap)
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
    if plan.chunk and rows.page_table.shape[1] * keys.shape[1] > plan.longest:
        raise ValueError(f"page tables of {rows.page_table.shape[1]} pages: the plan has room for {plan.longest} keys")
    if lse is not None and (lse.shape != q.shape[:2] or lse.dtype != torch.float32 or not lse.is_contiguous()):
        raise ValueError(f"lse: {lse.dtype} {list(lse.shape)}: allowed: contiguous float32 {list(q.shape[:2])}")
