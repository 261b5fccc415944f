"""Pages of the KV cache: who holds which, and the memory behind them."""

import math
import os
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.model import ModelConfig
from recguide.sim.rounds import Ints
from recguide.traces.errors import InputError

Int32s = NDArray[np.int32]
FEW = 8
"""Requests whose pages are changed faster one by one."""


class HeldPages:
    """The pages of one request, in order; while it has some, they are a row of its pool's matrix."""

    __slots__ = ("_ids", "count", "pool", "row")

    def __init__(self) -> None:
        self._ids: Int32s = np.zeros(16, np.int32)
        self.count = 0
        self.pool: PagePool | None = None
        self.row = -1

    def __len__(self) -> int:
        return self.count

    @property
    def ids(self) -> Int32s:
        """Their numbers."""
        return self._ids[: self.count]

    def lie_at(self, ids: Int32s, pool: "PagePool | None", row: int) -> None:
        """Keep the numbers there from now on."""
        ids[: self.count] = self._ids[: self.count]
        self._ids, self.pool, self.row = ids, pool, row

    def push(self, pages: Sequence[int]) -> None:
        """Hold more of them."""
        wanted = self.count + len(pages)
        if wanted > len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(wanted, np.int32)])
        self._ids[self.count : wanted] = pages
        self.count = wanted

    def pop(self, count: int) -> list[int]:
        """Give the last ones back."""
        self.count -= count
        given: list[int] = self._ids[self.count : self.count + count].tolist()
        return given


class PagePool:
    """Pages that nobody holds; a request's pages grow and shrink at their end."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self.matrix: Int32s = np.zeros((16, 16), np.int32)
        """[rows, most pages] The pages of each request that has some."""
        self.counts: Ints = np.zeros(16, np.int64)
        """[rows] How many these are."""
        self._holders: list[HeldPages | None] = [None] * 16

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def resize(self, pages: HeldPages, count: int) -> None:
        """Let a request hold ``count`` pages; RuntimeError where there are not so many."""
        more = count - pages.count
        self._have(more)
        if more > 0:
            self._make_room(pages, count)
            pages.push(self._free[: -more - 1 : -1])
            del self._free[-more:]
        elif more < 0:
            self._free += reversed(pages.pop(-more))
        if pages.row >= 0:
            self.counts[pages.row] = count
        if not count and pages.row >= 0:
            self._holders[pages.row] = None
            pages.lie_at(np.zeros(16, np.int32), None, -1)

    def resize_all(self, held: Sequence[HeldPages], counts: Ints) -> None:
        """:meth:`resize` of many, none of which ends without pages or began so; those that shrink do so first."""
        rows = np.array([pages.row for pages in held])
        if not self.resize_rows(rows, counts):
            self._have(int((counts - self.counts[rows]).sum()))

    def resize_rows(self, rows: Ints, counts: Ints) -> bool:
        """The same for those whose pages are these rows; False, and nothing changes, where there are not so many."""
        more = counts - self.counts[rows]
        changed = np.flatnonzero(more)
        if not len(changed):
            return True
        if int(more.sum()) > len(self._free):
            return False
        rows, more, ends = rows[changed], more[changed], counts[changed]
        if len(changed) < FEW:
            for place in np.argsort(more, kind="stable").tolist():
                self.resize(self._holder(rows[place]), int(ends[place]))
        else:
            self._resize(rows, more, ends)
        return True

    def _holder(self, row: int) -> HeldPages:
        holder = self._holders[row]
        assert holder is not None
        return holder

    def _resize(self, rows: Ints, more: Ints, ends: Ints) -> None:
        """So many pages more, or fewer, for each row, which end at these counts."""
        if int(ends.max()) > self.matrix.shape[1]:
            self._widen(int(ends.max()))
        grows = more > 0
        if not grows.all():
            self._free += self.matrix[_cells(rows[~grows], ends[~grows], -more[~grows])].tolist()
        if grows.any():
            rooms = _cells(rows[grows], (ends - more)[grows], more[grows])
            taken = len(rooms[0])
            self.matrix[rooms] = self._free[-taken:]
            del self._free[-taken:]
        self.counts[rows] = ends
        holders = self._holders
        for place, end in zip(rows.tolist(), ends.tolist(), strict=True):
            if (holder := holders[place]) is not None:
                holder.count = end

    def _have(self, more: int) -> None:
        if more > len(self._free):
            raise RuntimeError(f"{more} KV pages wanted, {len(self._free)} of {self.num_pages} are free")

    def _make_room(self, pages: HeldPages, count: int) -> None:
        """A row of the matrix for a request with so many pages."""
        if count > self.matrix.shape[1]:
            self._widen(count)
        if pages.row < 0:
            if None not in self._holders:
                self._enlarge(2 * len(self._holders), self.matrix.shape[1])
            row = self._holders.index(None)
            self._holders[row] = pages
            pages.lie_at(self.matrix[row], self, row)

    def _widen(self, count: int) -> None:
        self._enlarge(len(self._holders), max(count, 2 * self.matrix.shape[1]))

    def _enlarge(self, rows: int, width: int) -> None:
        self.matrix = np.zeros((rows, width), np.int32)
        self.counts = np.concatenate([self.counts, np.zeros(rows - len(self.counts), np.int64)])
        self._holders += [None] * (rows - len(self._holders))
        for row, pages in enumerate(self._holders):
            if pages is not None:
                pages.lie_at(self.matrix[row], self, row)

    def check(self, held: Iterable[HeldPages]) -> None:
        """RuntimeError unless every page is free or held by one request, and none is both or neither."""
        found = [*self._free, *(page for pages in held for page in pages.ids.tolist())]
        if sorted(found) != list(range(self.num_pages)):
            count = np.bincount(found, minlength=self.num_pages)
            wrong = {page: int(times) for page, times in enumerate(count) if times != 1}
            raise RuntimeError(f"KV pages and how often each is accounted for, where that is not once: {wrong}")


def _cells(rows: Ints, begins: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Where so many entries of each row lie, from these columns on: rows and columns."""
    before = np.cumsum(counts) - counts
    return np.repeat(rows, counts), np.repeat(begins - before, counts) + np.arange(counts.sum())


def pages_that_fit(
    config: ModelConfig, page_size: int, device: torch.device, dtype: torch.dtype, share: float = 0.85
) -> int:
    """Pages for a share of the memory that is free now."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_bytes()
    token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
    return int(free * share) // (token * page_size)


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _set_aside(shape: tuple[int, ...], device: torch.device | str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values; InputError where there is no memory for them."""
    try:
        return torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype)
    except RuntimeError as error:
        # a GPU's is a class of its own, a CPU's has only its text
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
    size, tokens = 2 * math.prod(shape) * dtype.itemsize / 2**30, shape[1] * shape[2]
    found = f"found {tokens} tokens, {size:.1f} GiB of keys and values"
    raise InputError(f"KV cache: {found}, allowed: what the memory of {device} has room for")


class PagedCache:
    """Keys and values in pages, and scratch pages for what a forward writes and nobody reads after it.

    ``keys`` and ``values`` are ``[layers, pages, page_size, kv_heads, head_dim]``. Row i of ``scratch``, ``[places,
    pages]``, is for the request at place i of a forward: branches and padding lie there, behind its own pages.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        page_size: int,
        places: int,
        scratch_tokens: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        self.page_size = page_size
        each = -(-scratch_tokens // page_size) + 1
        self.scratch: Int32s = num_pages + np.arange(places * each, dtype=np.int32).reshape(places, each)
        self.waste_page = num_pages + places * each
        """For keys of tokens that nobody needs."""
        shape = (config.num_layers, self.waste_page + 1, page_size, config.num_kv_heads, config.head_dim)
        self.keys, self.values = _set_aside(shape, device, dtype)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put keys and values ``[tokens, kv_heads, head_dim]`` at ``slots`` ``[tokens]`` of a layer."""
        self.keys[layer].flatten(0, 1)[slots] = keys
        self.values[layer].flatten(0, 1)[slots] = values

    def fill_table(self, table: Int32s, pool: PagePool | None, rows: Ints, counts: Ints) -> None:
        """Write a page table ``[requests, pages]``: so many pages of each request, its own ones, then scratch.

        Its own ones are a row of the pool's matrix; without a pool nobody has any. What lies behind them stays, and is
        some page.
        """
        if len(rows) < FEW:
            for place, (row, count) in enumerate(zip(rows.tolist(), counts.tolist(), strict=True)):
                self._fill_row(table[place], pool, row, count, self.scratch[place])
            return
        spare = counts
        if pool is not None:
            own = pool.counts[rows]
            width = min(int(own.max()), table.shape[1])
            table[: len(rows), :width] = pool.matrix[rows, :width]
            spare = np.maximum(counts - own, 0)
        if spare.any():
            own = counts - spare
            row, column = np.repeat(np.arange(len(rows)), spare), np.arange(spare.sum())
            column -= np.repeat(np.cumsum(spare) - spare, spare)
            table[row, column + np.repeat(own, spare)] = self.scratch[row, column]

    @staticmethod
    def _fill_row(table: Int32s, pool: PagePool | None, row: int, count: int, scratch: Int32s) -> None:
        own = 0
        if pool is not None:
            own = min(int(pool.counts[row]), count)
            table[:own] = pool.matrix[row, :own]
        table[own:count] = scratch[: count - own]
