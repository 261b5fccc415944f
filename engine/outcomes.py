"""What a step changes. Forwards only find out; `apply` is the one place where a request changes by it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recguide.engine.requests import Held, Live, Roster
from recguide.engine.scores import Unmade
from recguide.sim.history import Floats, Signal, tell
from recguide.sim.overlap import Outcome
from recguide.sim.rounds import AR, Ints, emitted_lens


@dataclass(slots=True, eq=False)
class Change:
    """What became of one request in a step; without tokens it only holds a new draft."""

    live: Live
    block_size: int = 0
    """Of the round; 0 for a prefill."""
    accept_len: int = 0
    """Before any cut."""
    tokens: Sequence[int] = ()
    """Emitted."""
    entropies: Sequence[float] = ()
    """Of the verifier's distributions that gave them."""
    outcome: int = 0
    """``Outcome`` flags."""
    held: Held | None = None
    """The draft that it holds from now on."""
    verified: Held | Unmade | None = None
    """The draft that the round verified."""
    place: int = 0
    """Of that draft, among several that are not made yet."""
    error: str | None = None


class Accepted(NamedTuple):
    """What verification gave each of some requests: [requests]."""

    accept_len: Sequence[int]
    """Before any cut."""
    emitted: Sequence[int]
    token: Sequence[int]
    """The last accepted one, which is the verifier's own."""
    lives: Sequence[bool]
    """Whether the request goes on behind it."""


FEW = 8
"""Requests whose tokens are compared faster one by one."""


class Ends(NamedTuple):
    """What ends some requests."""

    left: list[int]
    """[requests] Tokens up to the output limit."""
    kinds: list[frozenset[int]]
    """[requests] Tokens that end each."""
    limits: Ints
    """The limits once more."""
    endings: list[tuple[int, NDArray[np.bool_] | None]]
    """Tokens that end some, and which; None: all."""


def ends_of(lives: Sequence[Live]) -> Ends:
    """What ends these."""
    left, kinds = [live.tokens_left for live in lives], [live.eos_ids for live in lives]
    endings: list[tuple[int, NDArray[np.bool_] | None]] = []
    for kind in set(kinds):
        own = None if kinds.count(kind) == len(kinds) else np.array([other == kind for other in kinds])[:, None]
        endings += [(token, own) for token in kind]
    return Ends(left, kinds, np.array(left), endings)


def accepted(
    lives: Sequence[Live], drafted: Ints, verified: Ints, ends: Ends | None = None, sizes: Ints | None = None
) -> Accepted:
    """Matches up to the first mismatch and the verifier's own token, cut behind EOS and at the output limit.

    ``drafted`` are [requests, B-1] tokens behind the seeds, ``verified`` the verifier's [requests, B]; ``sizes`` are
    the block sizes where some are smaller than B (None: none is), and what lies behind them does not matter. As in a
    dense trace, draft tokens behind EOS count as mismatches.
    """
    ends = ends or ends_of(lives)
    if verified.shape[1] == AR:
        # it is the verifier's own, whatever it is
        one, tokens = [1] * len(lives), verified[:, 0].tolist()
        going = [left > 1 and token not in ending for token, left, ending in zip(tokens, *ends[:2], strict=True)]
        return Accepted(one, one, tokens, going)
    if len(lives) < FEW:
        own = repeat(verified.shape[1]) if sizes is None else sizes.tolist()
        each = map(_accepted, drafted.tolist(), verified.tolist(), *ends[:2], own)
        return Accepted(*zip(*each, strict=True))
    return _accepted_of_many(drafted, verified, ends, sizes)


def _accepted(
    drafted: list[int], verified: list[int], left: int, ending: frozenset[int], size: int
) -> tuple[int, int, int, bool]:
    """Of one request."""
    whole = next((place for place in range(size - 1) if drafted[place] != verified[place]), size - 1) + 1
    eos_at = next((place for place in range(whole) if verified[place] in ending), size)
    accept_len = min(whole, eos_at + 2)
    emitted = min(accept_len, left, eos_at + 1)
    return accept_len, emitted, verified[accept_len - 1], emitted < left and eos_at >= emitted


def _accepted_of_many(drafted: Ints, verified: Ints, ends: Ends, sizes: Ints | None) -> Accepted:
    """The same of many at once."""
    count, size = verified.shape
    # behind the last draft token, and behind the last verified one, there is one that stops
    misses, stops = np.zeros((2, count, size + 1), np.bool_)
    np.not_equal(drafted, verified[:, :-1], out=misses[:, : size - 1])
    misses[:, size - 1], stops[:, size], each = True, True, np.arange(count)
    if sizes is not None:
        misses[each, sizes - 1] = True
    for token, own in ends.endings:
        here = verified == token
        stops[:, :size] |= here if own is None else here & own
    whole = misses.argmax(1) + 1
    eos_at = stops.argmax(1)
    eos_at = np.where(eos_at < whole, eos_at, size)
    accept_len = np.minimum(whole, eos_at + 2)
    emitted = emitted_lens(accept_len, ends.limits, eos_at)
    token = verified[each, accept_len - 1]
    lives = (emitted < ends.limits) & (eos_at >= emitted)
    return Accepted(accept_len.tolist(), emitted.tolist(), token.tolist(), lives.tolist())


_CUT, _DRAFTED = Outcome.CUT.value, Outcome.DRAFTED.value


def outcome_of(cut: bool, drafted: bool) -> int:
    """The flags of a round without branches."""
    return cut * _CUT | drafted * _DRAFTED


def apply(changes: Sequence[Change], signal: Signal | None, steps: int | None = None) -> None:
    """Let requests be what a step made of them; sets why they are finished, where they are.

    ``signal`` is what the policy looks at; None where it does not look back, and nobody keeps what it would see, or
    where :func:`tell_roster` does. ``steps`` are those that are over with this one, for whoever counts them.
    """
    for change in changes:
        _apply(change, steps)
    if signal is not None:
        rounds = [change for change in changes if change.block_size >= AR and change.tokens]
        if rounds:
            _tell(rounds, signal)


def _apply(change: Change, steps: int | None) -> None:
    live, tokens = change.live, change.tokens
    live.held = change.held
    if change.error is not None:
        live.finish_reason, live.error = "error", change.error
    if not tokens:
        return
    live.tokens += tokens
    live.entropies += change.entropies
    live.tokens_left -= len(tokens)
    if change.block_size >= AR:
        live.block_size, live.accept_len = change.block_size, len(tokens)
        if steps is not None:
            live.ran = steps
    if tokens[-1] in live.eos_ids:
        live.finish_reason = "eos"
    elif live.tokens_left == 0:
        live.finish_reason = "length"


def _tell(rounds: Sequence[Change], signal: Signal) -> None:
    """Let the requests' figures be those after these rounds."""
    emitted = np.array([len(change.tokens) for change in rounds])
    sizes = np.array([change.block_size for change in rounds])
    figures = np.concatenate([change.live.figures for change in rounds]).reshape(len(rounds), -1).T
    tell(figures, None, _means(rounds, signal, sizes, emitted), sizes, emitted)
    for change, column in zip(rounds, figures.T, strict=True):
        change.live.figures = column


def tell_roster(running: Roster, places: Ints | None, changes: Sequence[Change], signal: Signal) -> None:
    """The same for the running requests at these places (None: for all) at once."""
    emitted = np.array([len(change.tokens) for change in changes])
    sizes = np.array([change.block_size for change in changes])
    if not emitted.all():
        came = np.flatnonzero(emitted)
        places = came if places is None else places[came]
        changes, emitted, sizes = [changes[place] for place in came.tolist()], emitted[came], sizes[came]
    if changes:
        tell(running.figures, places, _means(changes, signal, sizes, emitted), sizes, emitted)


def _means(rounds: Sequence[Change], signal: Signal, sizes: Ints, emitted: Ints) -> Floats:
    """The mean entropy of each round's first decisions."""
    count, nats = signal.decisions(emitted, sizes), [change.entropies for change in rounds]
    if count is not emitted:
        nats = [each[:n] for each, n in zip(nats, count.tolist(), strict=True)]
    return np.array([sum(each) for each in nats]) / count
