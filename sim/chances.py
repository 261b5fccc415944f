"""How likely the branches of a draft are to be used, told from its margins; learned from a trace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from recguide.sim.drafts import Key
from recguide.sim.history import Floats
from recguide.sim.overlap import SEEDED, Bools, Overlap, draft_of
from recguide.sim.rounds import Ints, Rounds
from recguide.traces.dense import matched_lens
from recguide.traces.errors import InputError

LEVELS = 256
NO_TOKEN = LEVELS
"""In the place of a margin behind a draft's end, where drafts of several lengths are looked at together."""
GRID = 33
KNOTS = np.linspace(0.0, 1.0, GRID) ** 2
"""Chances at which the correction of chances is kept: closer where most of them are, near 0."""
Levels = NDArray[np.uint8] | NDArray[np.uint16]
MOST_CORRECTIONS = 3
"""Correction branches that may be prepared, the likeliest ones."""


class Tables(NamedTuple):
    """The tables of :class:`Chances` as arrays, with what ``NO_TOKEN`` says: it passes, and is never the wrong one."""

    passes: Floats
    second: Floats
    correction: Floats
    continuation: Floats


@dataclass(frozen=True)
class Chances:
    """What margins say; every table is monotone."""

    passes: tuple[float, ...]
    """[256] Share of draft tokens that pass, of those that the verifier comes to, by margin in steps of 1/256."""
    second: tuple[float, ...]
    """[256] Share of first rejected ones whose second candidate is right."""
    correction: tuple[float, ...]
    """[33] How often correction branches are used, by what the product of the tables above says, from 0 to 1."""
    continuation: tuple[float, ...]
    """[33] The same of continuation branches, by the product of passing all."""

    @cached_property
    def tables(self) -> Tables:
        """The same as arrays."""
        passes, second = np.array([*self.passes, 1.0]), np.array([*self.second, 0.0])
        return Tables(passes, second, np.array(self.correction), np.array(self.continuation))


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """The branches that drafts may get, likeliest corrections first: [drafts, ...]."""

    position: Ints
    """[drafts, 3] Block positions of corrections, 0 where there is none."""
    chance: Floats
    """[drafts, 4] That each is used; the last one is the continuation's."""


def branches_of(chances: Chances, margin: Levels) -> Branches:
    """The likeliest branches of drafts with these margins: [drafts, B-1], of the tokens behind the seed.

    Shorter drafts among them have ``NO_TOKEN`` behind their end.
    """
    tables = chances.tables
    product, whole = _products(tables.passes, tables.second, margin)
    best = _likeliest(product)
    count, lines = best.shape[1], np.arange(len(margin))[:, None]
    there = margin[lines, best] < NO_TOKEN
    chance = np.zeros((len(margin), MOST_CORRECTIONS + 1))
    position = np.zeros((len(margin), MOST_CORRECTIONS), np.int64)
    chance[:, :count] = np.interp(product[lines, best], KNOTS, tables.correction) * there
    position[:, :count] = (best + 1) * there
    chance[:, MOST_CORRECTIONS] = np.interp(whole, KNOTS, tables.continuation)
    return Branches(position, chance)


def branches_of_one(chances: Chances, margin: Sequence[int]) -> tuple[list[int], list[float]]:
    """:func:`branches_of` of one draft, for the engine: three positions and four chances."""
    passes, second, reached, product = chances.passes, chances.second, 1.0, []
    for level in margin:
        each = passes[level]
        product.append(reached * (1 - each) * second[level])
        reached *= each
    best = sorted(range(len(product)), key=product.__getitem__, reverse=True)[:MOST_CORRECTIONS]
    corrections = np.interp([product[place] for place in best], KNOTS, chances.tables.correction).tolist()
    none = [0] * (MOST_CORRECTIONS - len(best))
    continuation = float(np.interp(reached, KNOTS, chances.tables.continuation))
    return [*(place + 1 for place in best), *none], [*corrections, *none, continuation]


def _products(passes: Floats, second: Floats, margin: Levels) -> tuple[Floats, Floats]:
    """[drafts, B-1] That each token is the first wrong one with a right second candidate; [drafts] that all pass."""
    each = passes[margin]
    reached = np.multiply.accumulate(each, axis=1)
    product: Floats = 1 - each
    product[:, 1:] *= reached[:, :-1]
    product *= second[margin]
    return product, reached[:, -1]


@dataclass(frozen=True, slots=True, eq=False)
class _Round:
    """Rounds at one block size and one source of drafts."""

    margin: NDArray[np.uint8]
    matched: Ints
    second: Bools
    """Whether the second candidate of the first rejected token is right."""
    bonus: Bools
    """Whether the continuation's first token is right, where all was accepted."""


def fit_chances(rounds: Rounds, at: Mapping[int, Ints]) -> Chances:
    """From rounds at these rows, by block size; ``rounds`` must hold the drafts of both views at each."""
    plays = [_played(rounds, size, rows) for size, rows in sorted(at.items())]
    passed, rejected, right = np.zeros((3, LEVELS))
    for play in plays:
        places = np.arange(play.margin.shape[1])
        passed += np.bincount(play.margin[places < play.matched[:, None]], minlength=LEVELS)
        wrong = play.matched < play.margin.shape[1]
        level = play.margin[wrong, play.matched[wrong]]
        rejected += np.bincount(level, minlength=LEVELS)
        right += np.bincount(level, play.second[wrong], minlength=LEVELS)
    passes = _monotone(passed, passed + rejected, rising=True)
    second = _monotone(right, rejected, rising=False)
    pairs = [_compared(play, passes, second) for play in plays]
    told, was, whole, full = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return Chances(tuple(passes.tolist()), tuple(second.tolist()), _corrected(told, was), _corrected(whole, full))


def _played(rounds: Rounds, size: int, rows: Ints) -> _Round:
    match, second, margin = draft_of(rounds, Overlap(size), SEEDED)
    match, second, margin = match[rows], second[rows], margin[rows]
    matched = np.minimum(matched_lens(match), size - 1)
    bonus = rounds.drafts["continuation", size].match
    after = np.minimum(rows + size - 1, len(bonus) - 1)
    is_right = (second >> np.minimum(matched, 31).astype(np.uint32)) & np.uint32(1) != 0
    return _Round(margin, matched, is_right, bonus[after] & np.uint32(1) != 0)


def _monotone(part: Floats, whole: Floats, rising: bool) -> Floats:
    share = np.where(whole > 0, part / np.maximum(whole, 1), part.sum() / max(whole.sum(), 1))
    # a level that never occurred takes what its neighbours say
    found: Floats = isotonic_regression(share, weights=np.maximum(whole, 1e-9), increasing=rising).x
    return np.clip(found, 0, 1)


def _compared(play: _Round, passes: Floats, second: Floats) -> tuple[Floats, Bools, Floats, Bools]:
    product, whole = _products(passes, second, play.margin)
    wrong = play.matched < play.margin.shape[1]
    hit = np.zeros(product.shape, bool)
    hit[wrong, play.matched[wrong]] = play.second[wrong]
    best = _likeliest(product)
    told, was = (np.take_along_axis(each, best, axis=1).ravel() for each in (product, hit))
    return told, was, whole, ~wrong & play.bonus


def _likeliest(product: Floats) -> Ints:
    """[drafts, up to 3] The places of the likeliest corrections, the likeliest one first."""
    best: Ints = np.argsort(-product, axis=1, kind="stable")[:, :MOST_CORRECTIONS]
    return best


def _corrected(told: Floats, was: Bools) -> tuple[float, ...]:
    """[33] How often it was so, monotone, by what had been told from 0 to 1."""
    order = np.argsort(told, kind="stable")
    fitted = isotonic_regression(was[order].astype(np.float64)).x
    ends = np.concatenate([[0.0], told[order], [1.0]])
    found = np.interp(KNOTS, ends, np.concatenate([[0.0], fitted, fitted[-1:]]))
    values: list[float] = np.clip(found, 0, 1).tolist()
    return tuple(values)


def keys_for(sizes: Sequence[int]) -> tuple[Key, ...]:
    """Both views at these block sizes."""
    return tuple((view, size) for size in sizes for view in ("seeded", "continuation"))


def chances_from(document: Mapping[str, Any]) -> Chances:
    """The tables of a policy file; ValueError where one has another length or holds what is no chance."""
    names = [field.name for field in fields(Chances)]
    found = {name: tuple(float(value) for value in document[name]) for name in names}
    for name, values in found.items():
        count = LEVELS if name in ("passes", "second") else GRID
        if len(values) != count or not all(0 <= value <= 1 for value in values):
            raise InputError(f"joint: {name}: allowed: {count} numbers from 0 to 1")
    return Chances(**found)
