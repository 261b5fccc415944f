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
Runs = tuple[tuple[int, int, int], ...]
"""Requests with the same block size behind each other: that size, the tokens that each is filled up to, how many."""


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


def _joined(frames: Sequence[Frame]) -> Frame:
    """The frame of the layouts of these, one behind the other."""
    if len(frames) == 1:
        return frames[0]
    names = "lens", "counts", "tokens", "scored", "predicts"
    lens, counts, tokens, scored, predicts = (
        np.concatenate([getattr(frame, name) for frame in frames], -1) for name in names
    )
    totals, drafts = [frame.total for frame in frames], sum([frame.drafts for frame in frames])
    scored += np.repeat(np.cumsum(totals) - totals, [len(frame.scored) for frame in frames])
    layouts = tuple([layout for frame in frames for layout in frame.layouts])
    starts, owner = np.cumsum(lens) - lens, np.repeat(np.arange(len(lens)), lens)
    return Frame(layouts, lens, counts, starts, len(owner), drafts, owner, tokens, scored, predicts)


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
        """The same, told what it would have to ask its requests for; they are the last of those that are told of."""
        self._rows = rows[len(rows) - len(self.lives) :]
        self._sampled = sampled if len(rows) == len(self.lives) or not sampled else None
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


def draft_batch(lives: Sequence[Live], cached: Ints, seeds: Ints, runs: Runs, form: tuple[int, int]) -> Batch:
    """Drafts behind the seeds; where some draft nothing and are not filled up either, they come first.

    ``form`` is the mask token and the draft shift.
    """
    if runs[0][1] == AR:
        first, runs = runs[0][2], runs[1:]
        lives, cached, seeds = lives[first:], cached[first:], seeds[first:]
    frame = _draft_frame(runs, form[1])
    return Batch(lives, cached, frame, _seeded(frame, seeds, form[0]))


def verify_batch(lives: Sequence[Live], cached: Ints, seeds: Ints, runs: Runs, mask_id: int) -> Batch:
    """The seeds, and what the draft forward before puts into the other places of their blocks."""
    frame = _verify_frame(runs)
    return Batch(lives, cached, frame, _seeded(frame, seeds, mask_id))


@lru_cache(maxsize=512)
def fill_of(runs: Runs) -> Fill:
    """The places of draft tokens in the verify, and the scores of the draft that they come from."""
    parts, token, score = [], 0, 0
    for size, fill, count in runs:
        # the n-th draft token of each, from 1 on
        nth, each = np.arange(1, size), np.arange(count)[:, None]
        parts.append(((token + each * fill + nth).ravel(), (score + each * size + nth).ravel()))
        token, score = token + count * fill, score + (count * size if size > AR else 0)
    return np.concatenate([at for at, _ in parts]), np.concatenate([at for _, at in parts])


@lru_cache(maxsize=512)
def _draft_frame(runs: Runs, shift: int) -> Frame:
    return _joined([_draft_run(*run, shift) for run in runs])


@lru_cache(maxsize=512)
def _verify_frame(runs: Runs) -> Frame:
    return _joined([_verify_run(*run) for run in runs])


@lru_cache(maxsize=512)
def _draft_run(size: int, fill: int, count: int, shift: int) -> Frame:
    own = drafting(size, shift) if size > AR else None
    return frame_of((padded(own, fill) if own is None or fill > size else own,) * count)


@lru_cache(maxsize=512)
def _verify_run(size: int, fill: int, count: int) -> Frame:
    return frame_of((padded(verifying(size), fill) if fill > size else verifying(size),) * count)


def _seeded(frame: Frame, seeds: Ints, mask_id: int) -> Ints:
    ids = np.full(frame.total, mask_id)
    ids[frame.starts] = seeds
    return ids
