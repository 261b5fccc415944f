"""What one forward reads, as one array of integers: written on the host, sent in one copy, read through fixed views.

A shape's array can be used again and again, which is what CUDA graphs need: lengths are among what is read, and the
copies there and back are among what is recorded. Tokens, requests and scores that fill a shape up belong to nobody;
their keys go to a page that nobody holds.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.batches import Batch, Frame, batch_of
from recguide.engine.batches import Fill as Fill
from recguide.engine.pages import PagedCache
from recguide.engine.planning import Piece
from recguide.engine.sizes import PLAIN, FillSizes
from recguide.kernels.layouts import Rows
from recguide.kernels.packed_statistics import WORDS
from recguide.sim.rounds import Ints
from recguide.sim.sizes import filled_up

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

    @lru_cache(maxsize=4096)  # noqa: B019 - a shape is a few numbers
    def rounded(self, most_pages: int, sizes: FillSizes = PLAIN) -> "Shape":
        """A shape with room for this one, of which there are few: 8 token counts to a power of 2 at most.

        Tables are as wide as the longest request there may be, unless that makes them too large to be sent each time.
        """
        requests = power_of_2(self.requests)
        pages = most_pages if requests * most_pages <= MAX_TABLE else min(most_pages, power_of_2(self.pages))
        return Shape(requests, sizes.of_tokens(self.tokens), sizes.of_scores(self.scores), pages, *self[4:])


def shape_of(batch: Batch, page_size: int, filled: bool) -> Shape:
    """The shape of a batch, nothing rounded."""
    frame = batch.frame
    longest = int((batch.cached + frame.lens).max())
    draft = "none" if not frame.drafts else "all" if frame.drafts == frame.total else "some"
    sizes = len(batch), frame.total, len(frame.scored), -(-longest // page_size)
    return Shape(*sizes, draft, filled, batch.sampled)


class Inputs:
    """The array of one shape, on the host and on the device, the views that a forward reads, and its graph.

    On a GPU whoever launches what reads or writes these arrays says so, by :meth:`launched`.
    """

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape
        sizes = self.sizes(shape)
        starts = [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values())]
        self._staged = torch.zeros(starts[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
        self._sent = self._staged.to(device, copy=True)
        self.places = {name: slice(at, at + size) for (name, size), at in zip(sizes.items(), starts, strict=False)}
        whole: NDArray[np.int32] = self._staged.numpy()
        self._parts = {name: whole[place] for name, place in self.places.items()}
        self._rests: dict[str, tuple[int, int]] = {}
        """From where on each part has which number."""
        self._frame: Frame | None = None
        self._fill: Fill | None = None
        self.found = torch.zeros(WORDS, shape.scores, dtype=torch.int32, pin_memory=device.type == "cuda")
        """[6, scores] Where a forward puts what it found, on the host: until the next one of this shape."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.runs = 0
        """Without a graph, so far."""
        self.prepared = False
        """Whether it got a graph before anybody was served."""
        self._done = torch.cuda.Event() if device.type == "cuda" else None

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
        """Write what these pieces say, for :meth:`send` to send, once the device is done with what was there."""
        self.wait()
        batch = batch_of(pieces)
        frame, cached = batch.frame, batch.cached
        behind = cached[frame.owner]
        _, positions, _, within = frame.tokens
        place = within + behind
        self._set("ids", batch.ids, 0)
        self._set("positions", positions + behind, 0)
        self._set("prefix", cached, 0)
        self._put_pages(batch, cache, frame.lens, place)
        if frame is not self._frame or fill is not self._fill:
            self._put_frame(frame, fill)
        if self.shape.sampled:
            self._put_noise(batch)

    def send(self) -> None:
        """Bring what was written to the device, in the order of its work: a graph does so whenever it runs."""
        self._sent.copy_(self._staged, non_blocking=True)

    def launched(self) -> None:
        """A forward was launched."""
        if self._done is not None:
            self._done.record()

    def wait(self) -> None:
        """Let the device finish the last forward."""
        if self._done is not None:
            self._done.synchronize()

    def _put_frame(self, frame: Frame, fill: Fill | None) -> None:
        """What stays as it is while forwards of the same layouts follow each other."""
        self._frame, self._fill = frame, fill
        self._set("visible", frame.tokens[0], 0)
        self._set("gate", frame.tokens[2], 0)
        self._set("scored", frame.scored, 0)
        self._set("indptr", frame.starts, frame.total)
        if fill is not None:
            source = np.full(frame.total, -1)
            source[fill[0]] = fill[1]
            self._set("source", source, -1)

    def _put_noise(self, batch: Batch) -> None:
        owner, wishes = batch.frame.score_owner, [live.wish for live in batch.lives]
        heat = np.array([wish.temperature for wish in wishes], np.float32).view(np.int32)
        self._set("about", batch.frame.predicts + batch.cached[owner], 0)
        self._set("seeds", np.array([wish.seed for wish in wishes])[owner], 0)
        self._set("heat", heat[owner], 0)

    def _put_pages(self, batch: Batch, cache: PagedCache, lens: Ints, place: Ints) -> None:
        """The page table, and from it where the key of each token goes."""
        size = cache.page_size
        table = self._parts["table"].reshape(self.shape.requests, self.shape.pages)
        cache.fill_table(table, batch.pool, batch.rows, -(-(batch.cached + lens) // size))
        column = place // size
        # the page's place instead of the column's
        slots = place + (table[batch.frame.owner, column] - column) * size
        self._set("slots", slots, cache.waste_page * size)

    def _set(self, name: str, values: NDArray[np.generic], rest: int) -> None:
        part, count = self._parts[name], len(values)
        part[:count] = values
        if self._rests.get(name) != (count, rest):
            part[count:] = rest
            self._rests[name] = count, rest


def power_of_2(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def counts_up_to(most: int) -> list[int]:
    """Numbers of requests that have shapes of their own, up to ``most``."""
    return sorted({*(count for count in map(filled_up, range(1, most)) if count < most), most})
