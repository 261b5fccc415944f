"""Rounds of linear self-speculation that run: requests by their block sizes, and what becomes of them.

Requests of one size stand side by side, so that what they share is a slice, and unequal blocks are judged together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recguide.engine.batches import Runs
from recguide.engine.outcomes import Change, Ends, accepted, ends_of, outcome_of
from recguide.engine.requests import Live
from recguide.engine.scores import Scores, Unmade, is_broken
from recguide.engine.ways import DRAFT_BROKEN, VERIFY_BROKEN
from recguide.sim.rounds import AR, Ints

Told = tuple[Scores | None, Scores]
"""Drafts, where there are any, and verified tokens."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Who takes part, at which block sizes: smaller ones first, otherwise in the order of running requests."""

    lives: Sequence[Live]
    runs: Runs
    chosen: int | Ints
    """The sizes as they were chosen: one for all, or those of each, in the order of running requests."""
    order: Ints | None
    """Where each stands among those of the running requests that take part; None where nobody changes place."""
    cached: Ints
    positions: Ints
    """Output tokens so far."""
    pages: Ints
    """Where in the pool their pages are listed."""
    sampled: bool


class Part(NamedTuple):
    """Requests of a step with the same block size, and what is known of their rounds before these are over."""

    at: slice
    """Where they stand among those of the step."""
    lives: Sequence[Live]
    seeds: Ints
    cached: Ints
    positions: Ints
    size: int
    draft_at: slice | None
    """Which scores are those of the drafts; None where there are none."""
    verify_at: slice
    told: Told | None = None
    """Drafts and verified tokens, where somebody knows them."""


class Rounds(NamedTuple):
    """Those of a step that runs."""

    lives: Sequence[Live]
    parts: Sequence[Part]
    ends: Ends
    sizes: Ints | None
    """[requests] Their block sizes; None where all are the same."""
    places: list[int] | None
    """Where the change of each running request is found among those of the parts; None where nobody changes place."""


def parts_of(blocks: Blocks, seeds: Ints) -> Iterator[Part]:
    """Requests by their block sizes."""
    first, drafted, verified = 0, 0, sum(size * count for size, _, count in blocks.runs if size > AR)
    for size, _, count in blocks.runs:
        at, total = slice(first, first + count), size * count
        draft_at = slice(drafted, drafted + total) if size > AR else None
        own = seeds[at], blocks.cached[at], blocks.positions[at]
        yield Part(at, blocks.lives[at], *own, size, draft_at, slice(verified, verified + total))
        first, drafted, verified = at.stop, drafted if draft_at is None else draft_at.stop, verified + total


def rounds_of(blocks: Blocks, parts: Sequence[Part]) -> Rounds:
    """The rounds of a step with these parts."""
    lives, order, chosen = blocks.lives, blocks.order, blocks.chosen
    if order is None or isinstance(chosen, int):
        return Rounds(lives, parts, ends_of(lives), None, None)
    return Rounds(lives, parts, ends_of(lives), chosen[order], np.argsort(order).tolist())


def changes_of(rounds: Rounds, found: Scores) -> list[Change]:
    """What became of the requests, in the order of running ones; of all parts it is known what they are told."""
    parts = rounds.parts
    drafted, ids, nats = _side_by_side(parts)
    took = accepted(rounds.lives, drafted, ids, rounds.ends, rounds.sizes)
    came = np.arange(ids.shape[1]) < np.array(took.emitted)[:, None]
    emitted = ids[came].tolist(), nats[came].tolist()
    rows = rounds.lives, took.emitted, took.accept_len, list(accumulate(took.emitted))
    changes = [change for part in parts for change in _changes_of(part, emitted, *(row[part.at] for row in rows))]
    if found.first.min() < 0:
        _break(changes, parts, found)
    return changes if rounds.places is None else [changes[place] for place in rounds.places]


def _side_by_side(parts: Sequence[Part]) -> tuple[Ints, Ints, NDArray[np.float32]]:
    """[requests, B] Drafts behind the seeds, verified tokens and their entropies; behind smaller blocks it is zeros."""
    most, told = parts[-1].size, [part.told for part in parts if part.told]
    if len(parts) == 1:
        drafts, verified = told[0]
        ids = verified.first.reshape(-1, most)
        block = ids[:, :0] if drafts is None else drafts.first.reshape(-1, most)[:, 1:]
        return block, ids, verified.entropy.reshape(-1, most)
    count = parts[-1].at.stop
    (block, ids), nats = np.zeros((2, count, most), np.int64), np.zeros((count, most), np.float32)
    for part, (drafts, verified) in zip(parts, told, strict=True):
        own, shape = (part.at, slice(part.size)), (-1, part.size)
        ids[own], nats[own] = verified.first.reshape(shape), verified.entropy.reshape(shape)
        if drafts is not None:
            block[own] = drafts.first.reshape(shape)
    return block[:, 1:], ids, nats


def _changes_of(part: Part, emitted: tuple[list[int], list[float]], *rows: Sequence[Any]) -> list[Change]:
    """Out of all that is emitted, and the requests of a part, what each emits, accepted, and where its tokens end."""
    drafted = part.told[0] if part.told else None
    drafts = None if drafted is None else Unmade(part.seeds, drafted, part.size, part.cached)
    cut, whole = (outcome_of(flag, drafted is not None) for flag in (True, False))
    (ids, nats), size, count = emitted, part.size, range(len(part.lives))
    return [
        Change(live, size, many, ids[end - n : end], nats[end - n : end], cut if n < many else whole, None, drafts, at)
        for at, live, n, many, end in zip(count, *rows, strict=True)
    ]


def _break(changes: list[Change], parts: Sequence[Part], found: Scores) -> None:
    """Let those fail whose logits are NaN."""
    for part in parts:
        for at, skip, error in ((part.draft_at, 1, DRAFT_BROKEN), (part.verify_at, 0, VERIFY_BROKEN)):
            if at is not None:
                for place in np.flatnonzero(is_broken(found.at(at), part.size, skip)).tolist():
                    changes[part.at.start + place] = Change(part.lives[place], error=error)
