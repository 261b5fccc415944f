"""What one forward reads, as one array of integers: written on the host, sent in one copy, read through fixed views.

A shape's array can be used again and again, which is what CUDA graphs need: lengths are among what is read. Tokens,
requests and scores that fill a shape up belong to nobody; their keys go to a page that nobody holds.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.pages import PagedCache
from recguide.engine.planning import Layout, Piece
from recguide.kernels.layouts import Rows
from recguide.sim.rounds import Ints

Fill = tuple[Ints, Ints]
"""Which tokens of a forward take which scores' best tokens of the forward before."""
MAX_TABLE = 2**18
"""Entries of a page table that is sent whole with every forward."""
ALIGNMENT = 4
"""Integers to which parts of the array are aligned: 16 bytes, as kernels like pointers to be."""


class Shape(NamedTuple):
    """The sizes of a forward, and what it does."""

    requests: int
    tokens: int
    scores: int
    pages: int
    """Of the longest request, the tokens of this forward included."""
    draft: str
    """Which tokens are drafts: "all", "some" or "none"."""
    filled: bool
    """Whether tokens come from the forward before."""
    sampled: bool
    """Whether a request has a temperature."""

    def rounded(self, most_pages: int) -> "Shape":
        """A shape with room for this one, of which there are few: 8 token counts to a power of 2.

        Tables are as wide as the longest request there may be, unless that makes them too large to be sent each time.
        """
        requests = power_of_2(self.requests)
        pages = most_pages if requests * most_pages <= MAX_TABLE else min(most_pages, power_of_2(self.pages))
        return Shape(requests, rounded(self.tokens), rounded(self.scores), pages, *self[4:])


def shape_of(pieces: Sequence[Piece], page_size: int, filled: bool) -> Shape:
    """The shape of pieces, nothing rounded."""
    layouts = [piece.layout for piece in pieces]
    tokens, drafts, scores = (sum(layout.sizes[kind] for layout in layouts) for kind in range(3))
    longest = max(piece.cached + piece.layout.sizes[0] for piece in pieces)
    draft = "none" if not drafts else "all" if drafts == tokens else "some"
    sampled = any(piece.live.wish.temperature > 0 for piece in pieces)
    return Shape(len(pieces), tokens, scores, -(-longest // page_size), draft, filled, sampled)


class Inputs:
    """The array of one shape, on the host and on the device, and the views that a forward reads."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape
        sizes = self.sizes(shape)
        starts = [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values())]
        self._staged = torch.zeros(starts[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
        self._sent = self._staged.to(device, copy=True)
        self.places = {name: slice(at, at + size) for (name, size), at in zip(sizes.items(), starts, strict=False)}
        self._whole: NDArray[np.int32] = self._staged.numpy()
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def sizes(self, shape: Shape) -> dict[str, int]:
        """The parts of the array and how many integers each has."""
        return {
            **dict.fromkeys(("ids", "positions", "visible", "slots", "gate", "source"), shape.tokens),
            **dict.fromkeys(("scored", "seeds", "about", "heat"), shape.scores),
            "indptr": shape.requests + 1,
            "prefix": shape.requests,
            "table": shape.requests * shape.pages,
        }

    def __getitem__(self, name: str) -> Tensor:
        """One part of what was sent, int32."""
        return self._sent[self.places[name]]

    @property
    def rows(self) -> Rows:
        """What row attention reads."""
        table = self["table"].view(self.shape.requests, self.shape.pages)
        return Rows(self["indptr"], self["prefix"], table, self["visible"])

    def put(self, pieces: Sequence[Piece], cache: PagedCache, fill: Fill | None) -> None:
        """Write what these pieces say, and send it."""
        if self._copied is not None:
            # what was staged last may still be on its way
            self._copied.synchronize()
        layouts = [piece.layout for piece in pieces]
        lens, scores = [layout.sizes[0] for layout in layouts], [layout.sizes[2] for layout in layouts]
        cached, ends = [piece.cached for piece in pieces], [0, *accumulate(lens)]
        total = ends[-1]
        behind = np.repeat(cached, lens)
        self._set("ids", np.concatenate([np.asarray(piece.ids) for piece in pieces]), 0)
        self._set("positions", _joined(layouts, "positions") + behind, 0)
        self._set("visible", _joined(layouts, "visible"), 0)
        self._set("gate", _joined(layouts, "gate"), 0)
        self._set("scored", _joined(layouts, "scored") + np.repeat(ends[:-1], scores), 0)
        self._set("indptr", np.array(ends), total)
        self._set("prefix", np.array(cached), 0)
        place = np.arange(total) - np.repeat(ends[:-1], lens) + behind
        self._put_pages(pieces, cache, lens, place)
        if fill is not None:
            source = np.full(total, -1)
            source[fill[0]] = fill[1]
            self._set("source", source, -1)
        if self.shape.sampled:
            about = _joined(layouts, "predicts") + np.repeat(cached, scores)
            wishes = [piece.live.wish for piece in pieces]
            heat = np.array([wish.temperature for wish in wishes], np.float32).view(np.int32)
            self._set("about", about, 0)
            self._set("seeds", np.repeat([wish.seed for wish in wishes], scores), 0)
            self._set("heat", np.repeat(heat, scores), 0)
        self._sent.copy_(self._staged, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def _put_pages(self, pieces: Sequence[Piece], cache: PagedCache, lens: Sequence[int], place: Ints) -> None:
        """The page table, and from it where the key of each token goes."""
        table = self._whole[self.places["table"]].reshape(self.shape.requests, self.shape.pages)
        counts = [-(-(piece.cached + count) // cache.page_size) for piece, count in zip(pieces, lens, strict=True)]
        cache.fill_table(table, [piece.live.pages for piece in pieces], counts)
        page = table[np.repeat(np.arange(len(pieces)), lens), place // cache.page_size]
        waste = cache.waste_page * cache.page_size
        self._set("slots", page.astype(np.int64) * cache.page_size + place % cache.page_size, waste)

    def _set(self, name: str, values: NDArray[np.generic], rest: int) -> None:
        part = self._whole[self.places[name]]
        part[: len(values)] = values
        part[len(values) :] = rest


def _joined(layouts: Sequence[Layout], name: str) -> NDArray[Any]:
    """One array of each layout, one behind the other; most often all layouts are the same one."""
    if layouts.count(layouts[0]) == len(layouts):
        return np.tile(getattr(layouts[0], name), len(layouts))
    return np.concatenate([getattr(layout, name) for layout in layouts])


def power_of_2(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def rounded(number: int) -> int:
    """Up to a multiple of an eighth of the power of 2 below it."""
    step = max(1, (1 << max(number.bit_length() - 1, 0)) // 8)
    return -(-number // step) * step


def counts_up_to(most: int) -> list[int]:
    """Numbers of requests that have shapes of their own, up to ``most``."""
    return sorted({*(count for count in map(rounded, range(1, most)) if count < most), most})
