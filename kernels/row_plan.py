"""Cutting row attention into equal pieces of work, on the device (docs/kernels.md).

A piece, or *item*, is one tile of packed query rows of one request and one key head, over one *chunk* of its keys. A
packed row is a token and one of the query heads that share the key head. The plan is made once a forward and read by
all its layers: a CUDA graph replays it with the lengths of the day.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.layouts import Rows
from recguide.kernels.row_items import FIELDS, write_items

HEADER = 4
"""Ints before the two lists of the plan: items, keys of a chunk, items that are parts, and one that is not used."""
CANDIDATES = 128
"""Chunk lengths that are compared: the longest request's keys in 1, 2, ... pieces."""
AT_ONCE, PLANNERS = 64, 16
"""Items that a program of the plan writes at once, and the most such programs."""
ITEM_COST, PART_COST = 32, 220
"""What an item costs beside its keys, and a part on every program: in keys that a program could have read instead.

Fitted to times of 60 shapes, each at up to 9 chunk lengths, on an H200 (docs/kernels.md)."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How a GPU works on an item: packed rows and keys of a tile, warps, pipeline stages, programs on a processor."""

    rows: int
    keys: int
    warps: int
    stages: int
    programs: int


def tile_for(packed_rows: int, head_dim: int, dtype: torch.dtype) -> Tile:
    """The tile for requests of up to that many packed rows, by what was fastest on an H200 (docs/kernels.md)."""
    if dtype == torch.float32:
        return Tile(16 if packed_rows <= 16 else 32, 32, 4, 2, 1)
    if packed_rows <= 16:
        return Tile(16, 64, 4, 3, 2)
    return Tile(64, 32, 4, 4, 2) if packed_rows <= 64 else Tile(128, 64, 8, 3, 1)


FIXED_TILE = Tile(64, 64, 4, 3, 2)
"""The tile of the batch-invariant mode, whatever the request."""


def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; a few elsewhere, where programs run one after the other."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What the device's plan says: running totals of items and the parts before them, one entry a request."""

    chunk: int
    ends: tuple[int, ...]
    bases: tuple[int, ...]

    @property
    def items(self) -> int:
        """Items of all requests."""
        return self.ends[-1]


def plan_reference(tokens: Sequence[int], prefix_lens: Sequence[int], plan: "RowPlan") -> Plan:
    """What :meth:`RowPlan.update` has to find for requests with so many tokens behind so many cached ones."""
    keys = [p + t if t else 0 for p, t in zip(prefix_lens, tokens, strict=True)]
    tiles = [-(-t * plan.group // plan.tile.rows) * plan.kv_heads for t in tokens]

    def items(chunk: int) -> list[int]:
        return [n * -(-k // chunk) for n, k in zip(tiles, keys, strict=True)]

    def parts(chunk: int) -> list[int]:
        return [n if k > chunk else 0 for n, k in zip(items(chunk), keys, strict=True)]

    def cost(chunk: int) -> int:
        waves = -(-sum(items(chunk)) // plan.grid)
        return waves * (chunk + ITEM_COST) + sum(parts(chunk)) * PART_COST // plan.grid

    step = plan.tile.keys
    candidates = [max(1, -(-max(keys) // (pieces * step))) * step for pieces in range(1, CANDIDATES + 1)]
    chunk = plan.chunk or min((c for c in candidates if sum(parts(c)) <= plan.parts), key=cost)
    bases = [0, *accumulate(parts(chunk))][:-1]
    return Plan(chunk, tuple(accumulate(items(chunk))), tuple(bases))


class RowPlan:
    """Buffers of one shape of forward: what is to be done, and parts of results until they are merged.

    ``requests`` and ``tokens`` are the most that a forward brings. ``chunk`` fixes the keys of a chunk, so that a
    request's result does not depend on the others; it needs ``longest``, the most keys that page tables have room for,
    since parts must find room too. Otherwise the device chooses the chunk by the live lengths.
    """

    def __init__(
        self,
        requests: int,
        tokens: int,
        heads: tuple[int, int],
        head_dim: int,
        device: torch.device,
        tile: Tile,
        *,
        chunk: int = 0,
        longest: int = 0,
    ) -> None:
        self.num_heads, self.kv_heads = heads
        self.group = self.num_heads // self.kv_heads
        self.requests, self.tokens, self.head_dim, self.tile = requests, tokens, head_dim, tile
        self.chunk, self.longest = chunk, longest
        self.grid = processors(device) * tile.programs
        self.parts = self._parts_of(longest) if chunk else 4 * self.grid
        self.width = triton.next_power_of_2(requests)
        # the header, running totals of items, parts before each request
        self.plan = torch.zeros(HEADER + 2 * self.width, dtype=torch.int32, device=device)
        # behind the last item there are two blank ones for every program: one to begin with and one to end at
        self.items = torch.zeros(self._most_items() + 2 * self.grid, FIELDS, dtype=torch.int32, device=device)
        self.partial = torch.empty(self.parts * tile.rows, head_dim, dtype=torch.float32, device=device)
        self.partial_lse = torch.empty(self.parts * tile.rows, dtype=torch.float32, device=device)

    def _parts_of(self, longest: int) -> int:
        """The most parts of requests with up to ``longest`` keys."""
        if longest < 1 or self.chunk % self.tile.keys:
            raise ValueError(f"chunk {self.chunk}: needs the longest request, and a multiple of {self.tile.keys}")
        return self._most_tiles() * -(-longest // self.chunk) if longest > self.chunk else 1

    def _most_tiles(self) -> int:
        """Tiles of all key heads: one of each request may be nearly empty."""
        return (self.tokens * self.group // self.tile.rows + self.requests) * self.kv_heads

    def _most_items(self) -> int:
        return self._most_tiles() + self.parts

    def partial_of(self, dtype: torch.dtype) -> Tensor:
        """Where parts of outputs of that type are kept: two-byte ones are no more exact than that anyway."""
        return self.partial if dtype == torch.float32 else self.partial.view(dtype)

    def update(self, rows: Rows) -> None:
        """Plan these rows, their lengths and what their tokens see, on the device.

        A CUDA graph may replay it after the rows' tensors have changed in place.
        """
        if rows.num_requests > self.requests or rows.visible.shape[0] > self.tokens:
            raise ValueError(
                f"{rows.num_requests} requests with {rows.visible.shape[0]} tokens: "
                f"the plan has room for {self.requests} with {self.tokens}"
            )
        _plan_kernel[(min(PLANNERS, -(-len(self.items) // AT_ONCE)),)](
            self.plan, self.items, rows.indptr, rows.prefix_lens, rows.visible, rows.num_requests,
            self.chunk, self.parts, self.grid,
            KV_HEADS=self.kv_heads, GROUP=self.group, ROWS=self.tile.rows, KEYS=self.tile.keys, WIDTH=self.width,
            HEADER=HEADER, CANDIDATES=CANDIDATES, ITEM_COST=ITEM_COST, PART_COST=PART_COST,
            FIELDS=FIELDS, AT_ONCE=AT_ONCE, num_warps=8,
        )  # fmt: skip


@triton.jit
def _tiles_and_keys(indptr, prefix_lens, requests, num_requests, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Tiles of packed rows and keys of requests; none of both for those that bring no token."""
    here = requests < num_requests
    first = tl.load(indptr + requests, mask=here, other=0)
    tokens = tl.load(indptr + requests + 1, mask=here, other=0) - first
    keys = tl.where(tokens > 0, tl.load(prefix_lens + requests, mask=here, other=0) + tokens, 0)
    return tl.cdiv(tokens * GROUP, ROWS), keys


@triton.jit
def _best_chunk(
    indptr, prefix_lens, num_requests, longest, max_parts, grid,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    CANDIDATES: tl.constexpr, ITEM_COST: tl.constexpr, PART_COST: tl.constexpr,
):  # fmt: skip
    """The chunk length after which the last program is done first, among those whose parts find room."""
    pieces = 1 + tl.arange(0, CANDIDATES)
    chunks = tl.maximum(tl.cdiv(longest, pieces * KEYS), 1) * KEYS
    items = tl.zeros([CANDIDATES], tl.int32)
    parts = tl.zeros([CANDIDATES], tl.int32)
    for first in range(0, num_requests, 16):
        requests = first + tl.arange(0, 16)
        tiles, keys = _tiles_and_keys(indptr, prefix_lens, requests, num_requests, GROUP, ROWS)
        found = tl.cdiv(keys[:, None], chunks[None, :]) * (tiles * KV_HEADS)[:, None]
        items += tl.sum(found, 0)
        parts += tl.sum(tl.where(keys[:, None] > chunks[None, :], found, 0), 0)
    cost = tl.cdiv(items, grid) * (chunks + ITEM_COST) + parts * PART_COST // grid
    best = tl.argmin(tl.where(parts > max_parts, 2147483647, cost), 0)
    return tl.sum(tl.where(pieces == best + 1, chunks, 0), 0)


@triton.jit(do_not_specialize=["num_requests", "fixed", "max_parts", "grid"])
def _plan_kernel(
    plan, items, indptr, prefix_lens, visible, num_requests, fixed, max_parts, grid,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    HEADER: tl.constexpr, CANDIDATES: tl.constexpr, ITEM_COST: tl.constexpr, PART_COST: tl.constexpr,
    FIELDS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    # every program finds the same plan, which is quicker than to wait for one that does, and writes some of its items
    requests = tl.arange(0, WIDTH)
    tiles, keys = _tiles_and_keys(indptr, prefix_lens, requests, num_requests, GROUP, ROWS)
    longest = tl.max(keys, 0)
    chunk = fixed
    if fixed == 0:
        chunk = _best_chunk(
            indptr, prefix_lens, num_requests, longest, max_parts, grid,
            KV_HEADS, GROUP, ROWS, KEYS, CANDIDATES, ITEM_COST, PART_COST,
        )  # fmt: skip
    counts = tiles * KV_HEADS * tl.cdiv(keys, chunk)
    parts = tl.where(keys > chunk, counts, 0)
    ends = tl.cumsum(counts, 0)
    total = tl.sum(counts, 0)
    if tl.program_id(0) == 0:
        tl.store(plan + HEADER + requests, ends)
        tl.store(plan + HEADER + WIDTH + requests, tl.cumsum(parts, 0) - parts)
        tl.store(plan, total)
        tl.store(plan + 1, chunk)
        tl.store(plan + 2, tl.sum(parts, 0))
    limit = total + 2 * grid
    for begin in range(tl.program_id(0) * AT_ONCE, limit, tl.num_programs(0) * AT_ONCE):
        write_items(
            items, begin + tl.arange(0, AT_ONCE), limit, ends, parts, chunk, total, indptr, prefix_lens, visible,
            KV_HEADS, GROUP, ROWS, FIELDS,
        )  # fmt: skip
