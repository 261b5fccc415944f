"""What several requests bring to a forward, as arrays: what their layouts say once for all, and where they stand."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import overload

import numpy as np
from numpy.typing import NDArray

from recguide.engine.pages import PagePool
from recguide.engine.planning import Layout, Piece, drafting, padded, verifying
from recguide.engine.requests import Live
from recguide.sim.rounds import AR, Ints

Fill = tuple[Ints, Ints]
"""Which tokens of a forward take which scores' best tokens of the forward before."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Layouts one behind the other: all of a forward that does not depend on where its requests stand."""

    layouts: tuple[Layout, ...]
    lens: Ints
    """[requests] Tokens of each."""
    counts: Ints
    """[requests] Scores of each."""
    starts: Ints
    """[requests] Where the tokens of each begin."""
    total: int
    drafts: int
    """Draft tokens of all."""
    owner: Ints
    """[tokens] Whose each is."""
    tokens: NDArray[np.int32]
    """[4, tokens] As a layout has them: positions are counted from the cached tokens."""
    scored: Ints
    """[scores] The token whose logits are looked at."""
    predicts: NDArray[np.int32]
    """[scores] The position that they are about, counted from the cached tokens."""

    @property
    def score_owner(self) -> Ints:
        """[scores] Whose each is."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


def frame_of(layouts: tuple[Layout, ...]) -> Frame:
    """The frame of these layouts."""
    lens, drafts, counts = np.array([layout.sizes for layout in layouts]).T
    starts = np.cumsum(lens) - lens
    owner = np.repeat(np.arange(len(layouts)), lens)
    tokens = np.concatenate([layout.tokens for layout in layouts], 1)
    scored, predicts = np.concatenate([layout.scores for layout in layouts], 1)
    scored = scored + np.repeat(starts, counts)
    return Frame(layouts, lens, counts, starts, len(owner), int(drafts.sum()), owner, tokens, scored, predicts)


FEW = 8
"""Requests whose layouts, one behind the other, are likely to come back."""
_kept_frame = lru_cache(maxsize=512)(frame_of)


def known_frame(layouts: tuple[Layout, ...]) -> Frame:
    """The same, kept where it is likely to come back."""
    few = len(layouts) <= FEW and all(layout.kept for layout in layouts)
    return _kept_frame(layouts) if few else frame_of(layouts)


class Batch(Sequence[Piece]):
    """Pieces of a forward, which are made one by one only for whoever asks for one."""

    __slots__ = ("_rows", "_sampled", "cached", "frame", "ids", "lives")

    def __init__(self, lives: Sequence[Live], cached: Ints, frame: Frame, ids: Ints) -> None:
        self.lives, self.cached, self.frame, self.ids = lives, cached, frame, ids
        self._rows: Ints | None = None
        self._sampled: bool | None = None

    def of(self, rows: Ints, sampled: bool) -> "Batch":
        """The same, told what it would have to ask its requests for."""
        if len(rows) == len(self.lives):
            self._rows, self._sampled = rows, sampled
        return self

    @property
    def pool(self) -> PagePool | None:
        """Where the requests' pages come from; None where they have none."""
        return self.lives[0].pages.pool

    @property
    def rows(self) -> Ints:
        """[requests] Where in the pool their pages are listed."""
        return np.array([live.pages.row for live in self.lives]) if self._rows is None else self._rows

    @property
    def sampled(self) -> bool:
        """Whether one of them has a temperature."""
        return max([live.wish.temperature for live in self.lives]) > 0 if self._sampled is None else self._sampled

    def __len__(self) -> int:
        return len(self.lives)

    @overload
    def __getitem__(self, place: int) -> Piece: ...

    @overload
    def __getitem__(self, place: slice) -> list[Piece]: ...

    def __getitem__(self, place: int | slice) -> Piece | list[Piece]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        start, layout = int(self.frame.starts[place]), self.frame.layouts[place]
        return Piece(self.lives[place], int(self.cached[place]), layout, self.ids[start : start + len(layout)])

    def __iter__(self) -> Iterator[Piece]:
        return (self[place] for place in range(len(self)))


def batch_of(pieces: Sequence[Piece]) -> Batch:
    """These pieces together."""
    if isinstance(pieces, Batch):
        return pieces
    ids = pieces[0].ids if len(pieces) == 1 else np.concatenate([np.asarray(piece.ids) for piece in pieces])
    cached = np.array([piece.cached for piece in pieces])
    frame = known_frame(tuple(piece.layout for piece in pieces))
    return Batch([piece.live for piece in pieces], cached, frame, np.asarray(ids))


def draft_batch(
    lives: Sequence[Live], cached: Ints, seeds: Ints, sizes: Sequence[int], filled: Sequence[int], form: tuple[int, int]
) -> Batch:
    """Drafts behind the seeds, each filled up to so many tokens, of which size 1 drafts nothing.

    ``form`` is the mask token and the draft shift.
    """
    if min(filled) > AR:
        frame = _draft_frame(_key(sizes), _key(filled), len(lives), form[1])
        return Batch(lives, cached, frame, _seeded(frame, seeds, form[0]))
    places = [place for place, fill in enumerate(filled) if fill > AR]
    sizes, filled = ([values[place] for place in places] for values in (sizes, filled))
    return draft_batch([lives[place] for place in places], cached[places], seeds[places], sizes, filled, form)


def verify_batch(
    lives: Sequence[Live], cached: Ints, seeds: Ints, sizes: Sequence[int], filled: Sequence[int], mask_id: int
) -> Batch:
    """The seeds, and what the draft forward before puts into the other places of their blocks."""
    frame = _verify_frame(_key(sizes), _key(filled), len(lives))
    return Batch(lives, cached, frame, _seeded(frame, seeds, mask_id))


def fill_of(sizes: Sequence[int], filled: Sequence[int]) -> Fill:
    """The places of draft tokens in the verify, and the scores of the draft that they come from."""
    return _fill(_key(sizes), _key(filled), len(sizes))


@lru_cache(maxsize=512)
def _fill(sizes: int | tuple[int, ...], filled: int | tuple[int, ...], count: int) -> Fill:
    size, lens = np.array(list(_pairs(sizes, filled, count))).T
    drafted = np.where(size > AR, size, 0)
    tokens, scores, drafts = np.cumsum(lens) - lens, np.cumsum(drafted) - drafted, np.maximum(drafted - 1, 0)
    # the n-th draft token of a request, from 1 on
    nth = np.arange(drafts.sum()) - np.repeat(np.cumsum(drafts) - drafts, drafts) + 1
    return np.repeat(tokens, drafts) + nth, np.repeat(scores, drafts) + nth


def _key(sizes: Sequence[int]) -> int | tuple[int, ...]:
    """One number where all are the same."""
    return sizes[0] if sizes.count(sizes[0]) == len(sizes) else tuple(sizes)


def _pairs(sizes: int | tuple[int, ...], filled: int | tuple[int, ...], count: int) -> Iterator[tuple[int, int]]:
    each = ([many] * count if isinstance(many, int) else many for many in (sizes, filled))
    return zip(*each, strict=True)


@lru_cache(maxsize=512)
def _draft_frame(sizes: int | tuple[int, ...], filled: int | tuple[int, ...], count: int, shift: int) -> Frame:
    def layout(size: int, fill: int) -> Layout:
        own = drafting(size, shift) if size > AR else None
        return padded(own, fill) if own is None or fill > size else own

    return frame_of(tuple(layout(*pair) for pair in _pairs(sizes, filled, count)))


@lru_cache(maxsize=512)
def _verify_frame(sizes: int | tuple[int, ...], filled: int | tuple[int, ...], count: int) -> Frame:
    def layout(size: int, fill: int) -> Layout:
        return padded(verifying(size), fill) if fill > size else verifying(size)

    return frame_of(tuple(layout(*pair) for pair in _pairs(sizes, filled, count)))


def _seeded(frame: Frame, seeds: Ints, mask_id: int) -> Ints:
    ids = np.full(frame.total, mask_id)
    ids[frame.starts] = seeds
    return ids
