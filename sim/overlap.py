"""Drafting the next block while the current one is verified (paper, section 5.1), replayed from a dense trace.

The forward of a round has a verifier row and a few branches, each the draft of a next round that may come. All of
them see the cached prefix, and a branch sees the verifier row's tokens before its own: these are a shared trunk, so a
branch adds B query tokens and the trunk none.
"""

from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.sim.drafts import Key
from recguide.sim.rounds import AR, Ints, Rounds
from recguide.traces.dense import is_risky, matched_lens

Bools = NDArray[np.bool_]
AnyInts = NDArray[np.integer[Any]]

MOST_RISKY = {"two-risky": 2, "always": 32, "never": -1}
"""How many positions of a draft may be risky for it to get a continuation branch."""
CONTINUATIONS = tuple(MOST_RISKY)
MAX_CORRECTIONS = 3


@dataclass(frozen=True, slots=True)
class Overlap:
    """The rules of one overlap policy; the defaults are the paper's."""

    block_size: int = 16
    delta: float = 0.5
    """Positions with a smaller margin are risky."""
    corrections: int = 2
    """The earliest risky positions get a correction branch, as many as this."""
    continuation: str = "two-risky"
    """When a continuation branch is prepared; "two-risky": when at most two positions are risky."""
    eos: str = "allowed"
    """Whether the end of the text may be a correction: "allowed" or "barred"."""
    recursive: bool = True
    """Whether a reused draft has branches of its own."""

    @property
    def keys(self) -> tuple[Key, Key]:
        """The recorded drafts that it plays."""
        return ("seeded", self.block_size), ("continuation", self.block_size)


class Outcome(IntFlag):
    """What became of the branches of a round."""

    CORRECTION_COVERED = 1
    """The first mismatch was at a position with a correction branch."""
    CORRECTION_REUSED = 2
    """And its token was the verifier's, so that it drafted the next round."""
    CONTINUATION_COVERED = 4
    """The block was fully accepted, and a continuation branch was there."""
    CONTINUATION_REUSED = 8
    """And its first token was the verifier's bonus token, so that it drafted the next round."""
    DRAFTED = 16
    """The round's own draft took a forward of its own."""
    CUT = 32
    """It emitted less than it accepted, at the output's end."""
    PREPARED = 64
    """It had branches."""


SEEDED, CORRECTED, CONTINUED = range(3)
"""Where the draft of a round came from: a forward of its own, a correction branch, a continuation branch."""
NO_DRAFT = -1


def branches(margin: NDArray[np.uint8], rules: Overlap) -> tuple[list[AnyInts], Bools]:
    """Which branches to prepare for drafts with these margins: [drafts, B-1], of the draft tokens behind the seed.

    Gives the block position of each correction branch, [drafts] each, 1 to B-1 or 0 for none, and whether there is a
    continuation branch, [drafts].
    """
    risky = _packed(is_risky(margin, rules.delta))
    count = np.bitwise_count(risky)
    positions: list[AnyInts] = []
    for _ in range(rules.corrections):
        lowest = risky & (~risky + np.uint32(1))
        positions.append(np.where(lowest > 0, np.bitwise_count(lowest - np.uint32(1)) + np.uint8(1), np.uint8(0)))
        risky = risky ^ lowest
    return positions, count <= MOST_RISKY[rules.continuation]


def prepared(
    margin: NDArray[np.uint8], rules: Overlap, limit: Ints, room: Ints, source: int
) -> tuple[list[AnyInts], Bools]:
    """:func:`branches` as far as their own rounds could run, of drafts from one source.

    ``limit`` is [drafts], the tokens up to the output limit, and ``room`` those that the context has room for. A branch
    runs neither behind the one nor outside the other.
    """
    corrections, goes_on = branches(margin, rules)
    if source != SEEDED and not rules.recursive:
        corrections, goes_on = [], goes_on & False
    size = rules.block_size
    corrections = [np.where((at < limit) & (at + size <= room), at, 0) for at in corrections]
    return corrections, goes_on & (size < limit) & (2 * size <= room)


def prepared_of_one(margin: NDArray[np.uint8], rules: Overlap, limit: int, room: int) -> tuple[list[int], bool]:
    """:func:`prepared` of one draft that may have branches, for the engine: margins are [B-1], and no position is 0."""
    size = rules.block_size
    risky = (np.flatnonzero(is_risky(margin, rules.delta)) + 1).tolist()
    corrections = [at for at in risky[: rules.corrections] if at < limit and at + size <= room]
    return corrections, len(risky) <= MOST_RISKY[rules.continuation] and size < limit and 2 * size <= room


def _packed(flags: Bools) -> NDArray[np.uint32]:
    """[drafts] One bit for each of up to 32 flags, the first one lowest."""
    # products of 16 flags each are exact in float32, and many times faster than numpy's own packing of short rows
    weights = np.exp2(np.arange(16)).astype(np.float32)
    low, high = ((part @ weights[: part.shape[1]]).astype(np.uint32) for part in _halves(flags.astype(np.float32)))
    packed: NDArray[np.uint32] = low | high << np.uint32(16)
    return packed


def _halves(flags: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return flags[:, :16], flags[:, 16:]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The outcome of a one-forward round at every row of ``Rounds`` for each source of its draft: [sources, rows]."""

    block_size: AnyInts
    """[rows] Smaller at the context limit; 1: an AR step, which needs no draft."""
    query_tokens: AnyInts
    """Of the verifier row and the branches."""
    accept_len: AnyInts
    emitted: AnyInts
    outcome: AnyInts
    """``Outcome`` flags."""
    next_source: AnyInts
    """Where the draft of the next round came from, or ``NO_DRAFT``."""


def overlap_tables(rounds: Rounds, rules: Overlap) -> Tables:
    """Play one round from everywhere."""
    seeded, continued = _round(rounds, rules, SEEDED), _round(rounds, rules, CONTINUED)
    # a correct correction is the draft that a forward of its own would have made
    corrected = (*seeded[:3], seeded[3] - Outcome.DRAFTED.value, seeded[4])
    sources = [seeded, corrected if rules.recursive else _round(rounds, rules, CORRECTED), continued]
    block = np.full(len(rounds.finished), rules.block_size)
    if rounds.largest is not None:
        block = np.minimum(block, rounds.largest)
    # small numbers all of them, of every position of the trace
    stacked = [np.stack(parts, dtype=np.int16, casting="unsafe") for parts in zip(*sources, strict=True)]
    return _clipped(rounds, rules, Tables(block, *stacked))


def _clipped(rounds: Rounds, rules: Overlap, whole: Tables) -> Tables:
    """Where the block has no room in the context, a smaller one runs without branches, or an AR step."""
    for size in set(whole.block_size.tolist()) - {rules.block_size}:
        here = whole.block_size == size
        whole.query_tokens[:, here] = size
        whole.accept_len[:, here] = rounds.accept_len[size][here]
        whole.emitted[:, here] = rounds.emitted[size][here]
        cut = whole.accept_len[:, here] > whole.emitted[:, here]
        whole.outcome[:, here] = cut * Outcome.CUT.value + (Outcome.DRAFTED.value if size > AR else 0)
        whole.next_source[:, here] = NO_DRAFT
    return whole


def _round(rounds: Rounds, rules: Overlap, source: int) -> tuple[AnyInts, ...]:
    """Query tokens, accepted and emitted tokens, outcome and next source at every row."""
    size = rules.block_size
    match, second, margin = draft_of(rounds, rules, source)
    position, left, cached = places(rounds)
    accepted = matched_lens(match) + 1
    emitted = np.minimum(accepted, left)
    limit, room = rounds.max_output_tokens - position, rounds.max_context - cached
    corrections, goes_on = prepared(margin, rules, limit, room, source)
    # small types where they do: every row of the trace passes here
    branch_count, covered = goes_on.astype(np.int16), np.zeros(len(accepted), np.bool_)
    for at in corrections:
        branch_count += at > 0
        covered |= at == accepted
    covered &= accepted <= left
    full = (accepted == size) & (size <= left) & goes_on
    lives = emitted < left
    corrected = covered & lives & _bit(second, accepted - 1)
    bonus = rounds.drafts["continuation", size].match
    ahead = np.concatenate([bonus[size - 1 :], np.repeat(bonus[-1:], min(size - 1, len(bonus)))])
    continued = full & lives & _bit(ahead[: len(bonus)], 0)
    events = {
        Outcome.CORRECTION_COVERED: covered,
        Outcome.CORRECTION_REUSED: corrected,
        Outcome.CONTINUATION_COVERED: full,
        Outcome.CONTINUATION_REUSED: continued,
        Outcome.CUT: accepted > left,
        Outcome.PREPARED: branch_count > 0,
    }
    outcome = np.full(len(accepted), Outcome.DRAFTED.value if source == SEEDED else 0, np.int16)
    for event, there in events.items():
        outcome += there * np.int16(event.value)
    following = np.where(corrected, np.int16(CORRECTED), np.where(continued, np.int16(CONTINUED), np.int16(NO_DRAFT)))
    return size * (1 + branch_count), accepted, emitted, outcome, following


def draft_of(
    rounds: Rounds, rules: Overlap, source: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint8]]:
    """Match bits, bits of second candidates, and margins of the B-1 draft tokens behind the seed, at every row."""
    view = "continuation" if source == CONTINUED else "seeded"
    drafts = rounds.drafts[view, rules.block_size]
    second = drafts.second if rules.eos == "allowed" else drafts.second_no_eos
    if source != CONTINUED:
        # a correct correction is drafted from the true prefix, with the verifier's token as its seed
        return drafts.match, second, drafts.margin
    # drafted one position earlier, before the bonus token was known: its token 0 turned out to be the seed
    earlier = np.maximum(np.arange(len(second)) - 1, 0)
    one = np.uint32(1)
    return drafts.match[earlier] >> one, second[earlier] >> one, drafts.margin[earlier, 1:]


def places(rounds: Rounds) -> tuple[Ints, Ints, Ints]:
    """Position, output tokens left and cached tokens at every row."""
    position = np.arange(len(rounds.finished)) - np.repeat(rounds.first, rounds.output_tokens + 1)
    left = np.repeat(rounds.output_tokens, rounds.output_tokens + 1) - position
    return position, left, np.repeat(rounds.prompt_tokens, rounds.output_tokens + 1) + position - 1


def _bit(masks: NDArray[np.uint32], at: Ints | int) -> Bools:
    shifted: Bools = (masks >> np.asarray(at, np.uint32)) & np.uint32(1) != 0
    return shifted
