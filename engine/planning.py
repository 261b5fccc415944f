"""What one request brings to a forward: tokens, positions, what they see, which are drafts, and which are scored.

Layouts are those of `kernels/layouts.py` with what the engine needs beside. Where several tokens are drafted, entry j
of a draft's scores is that of block position j; entry 0 stands there to make all of them B long, and means something
in a continuation alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recguide.engine.requests import Held, Live
from recguide.kernels.layouts import MAX_TAIL, Tail, branch, causal, draft, packed, quadratic
from recguide.sim.rounds import Ints

PIECE = 2048
"""Prompt tokens that one forward takes of a request, at most."""
assert PIECE <= MAX_TAIL


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The query tokens of one request, positions counted from its cached tokens."""

    tokens: NDArray[np.int32]
    """[4, tokens] What each sees of the others as ``packed`` codes it, its position, if it is a draft, its place."""
    scores: NDArray[np.int32]
    """[2, scores] The token whose logits are looked at, and the position that these are about."""
    sizes: tuple[int, int, int]
    """Tokens, drafts among them, and scores."""
    kept: bool = False
    """Whether the same object comes back with the next request."""

    def __len__(self) -> int:
        return self.sizes[0]


class Piece(NamedTuple):
    """One request's part of a forward."""

    live: Live
    cached: int
    layout: Layout
    ids: Sequence[int] | Ints


def prompt_piece(live: Live, done: int, count: int, masks: int, mask_id: int, shift: int) -> Piece:
    """The ``count`` known tokens behind ``done`` of them, ``PIECE`` at most; the last of all is scored.

    Masks behind it may draft.
    """
    ids = live.known_ids(done, count)
    if done + count < live.known:
        return Piece(live, done, Layout(_prompt()[:, :count], np.zeros((2, 0), np.int32), (count, 0, 0)), ids)
    tokens, scores = _prompt()[:, :count], np.array([[count - 1], [count]], np.int32)
    if masks:
        behind = _branch(count, count, masks, shift)
        tokens, scores = np.concatenate([tokens, behind.tokens], 1), np.concatenate([scores, behind.scores], 1)
        ids = [*ids, *[mask_id] * masks]
    return Piece(live, done, Layout(tokens, scores, (count + masks, masks, scores.shape[1])), ids)


@lru_cache(maxsize=1)
def _prompt() -> NDArray[np.int32]:
    """[4, PIECE] The tokens of a layout, causally, which those of shorter ones are the first of."""
    return _layout(causal(PIECE), [False] * PIECE, (), ()).tokens


def _places(size: int, shift: int) -> list[int]:
    """Where in a row the token is whose logit scores each block position; that of position 0 may mean nothing."""
    return [max(place - shift, 0) for place in range(size)]


def _layout(tail: Tail, gate: Sequence[bool], scored: Sequence[int], predicts: Sequence[int], first: int = 0) -> Layout:
    """The layout of a tail, or of its part from the token ``first`` on."""
    tokens = np.array([packed(tail), tail.positions, gate, range(first, first + len(gate))], np.int32)
    return Layout(tokens, np.array([scored, predicts], np.int32), (len(gate), sum(gate), len(scored)), True)


@lru_cache(maxsize=256)
def drafting(size: int, shift: int) -> Layout:
    """A seed and its masks, which see each other; B scores."""
    return _layout(draft(size), [True] * size, _places(size, shift), range(size))


@lru_cache(maxsize=4096)
def verifying(size: int, leaves: tuple[int, ...] = (), shift: int = 0, behind: int | None = None) -> Layout:
    """A block, causally, with B scores, and behind it branches that leave it at these places.

    Branches have ``behind`` tokens and as many scores each; None: B. A block of one token is an AR step.
    """
    if not leaves:
        return _layout(causal(size), [False] * size, range(size), range(1, size + 1))
    behind = behind or size
    parts = [verifying(size), *(_branch(size + n * behind, leave, behind, shift) for n, leave in enumerate(leaves))]
    tokens = np.concatenate([part.tokens for part in parts], 1)
    scores = np.concatenate([part.scores for part in parts], 1)
    return Layout(tokens, scores, (tokens.shape[1], behind * len(leaves), scores.shape[1]), True)


@lru_cache(maxsize=4096)
def _branch(first: int, leave: int, size: int, shift: int) -> Layout:
    """The part of such a layout that is a branch, from the token ``first`` on."""
    scored = [first + place for place in _places(size, shift)]
    return _layout(branch(first, leave, size), [True] * size, scored, range(leave, leave + size), first)


@lru_cache(maxsize=64)
def verifying_all(size: int, shift: int) -> Layout:
    """TiDAR's: a block, causally, and a draft of B masks behind each number of its tokens; B scores each."""
    leaves = range(1, size + 1)
    scored, predicts = list(range(size)), list(range(1, size + 1))
    for leave in leaves:
        scored += [leave * size + place for place in _places(size, shift)]
        predicts += range(leave, leave + size)
    return _layout(quadratic(size), [False] * size + [True] * size * size, scored, predicts)


@lru_cache(maxsize=1024)
def padded(layout: Layout | None, size: int) -> Layout:
    """The layout, or nothing, filled up to ``size`` tokens with such as see the cached prefix and nobody sees."""
    short = layout or _layout(Tail((), (), (), ()), (), (), ())
    rest = np.arange(len(short), size, dtype=np.int32)
    more = np.stack([np.zeros_like(rest), rest, np.zeros_like(rest), rest])
    return Layout(np.concatenate([short.tokens, more], 1), short.scores, (size, *short.sizes[1:]), True)


def draft_piece(live: Live, size: int, filled: int, mask_id: int, shift: int) -> Piece:
    """A draft behind the seed; filled up to ``filled`` tokens, of which size 1 drafts nothing."""
    layout = drafting(size, shift) if size > 1 else None
    if layout is None or filled > size:
        layout = padded(layout, filled)
    return Piece(live, live.cached, layout, _seeded(live, filled, mask_id))


def _seeded(live: Live, count: int, mask_id: int) -> Ints:
    ids = _masks(count, mask_id).copy()
    ids[0] = live.tokens[-1]
    return ids


@lru_cache(maxsize=256)
def _masks(count: int, mask_id: int) -> Ints:
    return np.full(count, mask_id)


def verify_piece(live: Live, size: int, filled: int, mask_id: int) -> Piece:
    """The seed, and what the draft forward before puts into the other places of its block."""
    layout = verifying(size)
    if filled > size:
        layout = padded(layout, filled)
    return Piece(live, live.cached, layout, _seeded(live, filled, mask_id))


def branched_piece(
    live: Live, held: Held, leaves: tuple[int, ...], behind: int, first: Ints, mask_id: int, shift: int
) -> Piece:
    """The draft that is held, and branches of ``behind`` tokens: those below B start with their token in ``first``."""
    size = len(held)
    ids = np.full(size + behind * len(leaves), mask_id, np.int64)
    put_round(ids, held, leaves, behind, first)
    return Piece(live, live.cached, verifying(size, leaves, shift, behind), ids)


def put_round(ids: Ints, held: Held, leaves: tuple[int, ...], behind: int, first: Ints) -> None:
    """Write what such a piece has in the place of masks."""
    size = len(held)
    ids[:size] = held.tokens
    for number, leave in enumerate(leaves):
        if leave < size:
            ids[size + number * behind] = first[leave]
