"""Overlap: one forward verifies a draft and prepares the next one in branches (paper, section 5.1; `sim/overlap.py`).

The forward carries everyone's next need: the verifier row and branches of those that hold a draft, a draft row of those
that do not. Verifier rows are never drafts to the adapter. Only they commit keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recguide.engine.outcomes import Change, accepted, outcome_of
from recguide.engine.planning import Piece, branched_piece, draft_piece, verify_piece
from recguide.engine.requests import Held, Live, room_for
from recguide.engine.scores import Scores, held_of, spread
from recguide.engine.ways import DRAFT_BROKEN, VERIFY_BROKEN, Planned, Setup, positions_of
from recguide.sim.overlap import CONTINUED, CORRECTED, SEEDED, Outcome, Overlap, prepared
from recguide.sim.rounds import AR, Ints
from recguide.sim.steps import Work


@dataclass(frozen=True, slots=True)
class Need:
    """What one request needs next: a draft of ``size`` tokens, or with ``held`` or at size 1 a verification."""

    live: Live
    size: int
    held: Held | None = None
    leaves: tuple[int, ...] = ()
    """Where branches leave the block: corrections below its size, the continuation at it."""

    @property
    def drafts(self) -> bool:
        """Whether it is a draft."""
        return self.held is None and self.size > AR

    @property
    def tokens(self) -> int:
        """Query tokens."""
        return self.size * (1 + len(self.leaves))


class OverlapWay:
    """Steps of one forward."""

    masks = 0

    def __init__(self, setup: Setup, rules: Overlap) -> None:
        self.setup, self.rules = setup, rules

    def plan(self, running: Sequence[Live], step: int) -> Planned:
        """Drafts for those without one, and the round of everyone else."""
        largest = room_for(running, self.setup.block_sizes, self.setup.max_context)
        size = self.rules.block_size
        sizes = [size] * len(running) if largest is None else np.minimum(largest, size).tolist()
        held = [live.drafted() if size > AR else None for live, size in zip(running, sizes, strict=True)]
        leaves = self._leaves(running, held)
        needs = [Need(*need) for need in zip(running, sizes, held, leaves, strict=True)]
        rows = np.array([place for place, need in enumerate(needs) if not need.drafts], np.int64)
        return Planned(_work(needs), rows if len(rows) < len(needs) else None, needs)

    def rehearse(self, lives: Sequence[Live]) -> Iterator[Planned]:
        """A draft, and rounds with as many branches as there may be."""
        size, nothing = self.rules.block_size, np.zeros(self.rules.block_size, np.int64)
        levels = np.zeros(size, np.uint8)
        held = Held(nothing, nothing, nothing, levels, levels, SEEDED, lives[0].cached)
        branches = [*range(1, min(self.rules.corrections, size - 1) + 1), size]
        kinds = [Need(lives[0], size), Need(lives[0], AR)]
        kinds += [Need(lives[0], size, held, tuple(branches[:count])) for count in range(len(branches) + 1)]
        for kind in kinds:
            needs = [replace(kind, live=live) for live in lives]
            yield Planned(_work(needs), None, needs)

    def _leaves(self, running: Sequence[Live], held: Sequence[Held | None]) -> list[tuple[int, ...]]:
        """Where branches leave each draft that is held."""
        rules = self.rules
        leaves: list[tuple[int, ...]] = [()] * len(held)
        may = [
            (place, draft)
            for place, draft in enumerate(held)
            if draft is not None and len(draft) == rules.block_size and (rules.recursive or draft.source == SEEDED)
        ]
        if not may:
            return leaves
        margin = np.stack([draft.margin[1:] for _, draft in may])
        limit = np.array([running[place].limit for place, _ in may])
        room = self.setup.max_context - np.array([draft.cached for _, draft in may])
        corrections, goes_on = prepared(margin, rules, limit, room, SEEDED)
        for row, (place, draft) in enumerate(may):
            places = [int(at[row]) for at in corrections if at[row] > 0 and self._second(draft)[at[row]] >= 0]
            leaves[place] = (*places, *([rules.block_size] if goes_on[row] else []))
        return leaves

    def _second(self, held: Held) -> Ints:
        return held.second if self.rules.eos == "allowed" else held.second_no_eos

    def run(self, planned: Planned) -> list[Change]:
        """Everyone's need in one forward."""
        needs: list[Need] = planned.what
        pieces = [self._piece(need) for need in needs]
        found = self.setup.forwards.read(self.setup.forwards.run(pieces))
        counts = np.array([len(piece.layout.scored) for piece in pieces])
        starts = np.cumsum(counts) - counts
        broken = np.minimum.reduceat(found.first, starts) < 0
        kinds = [(need.drafts, need.size) for need in needs]
        changes: list[Change | None] = [None] * len(needs)
        for kind in set(kinds):
            places = [place for place, other in enumerate(kinds) if other == kind]
            alike = [needs[place] for place in places]
            made = (self._drafted if kind[0] else self._verified)(alike, kind[1], found, starts[places])
            for place, change in zip(places, made, strict=True):
                changes[place] = change
        for place in np.flatnonzero(broken).tolist():
            need = needs[place]
            changes[place] = Change(need.live, error=DRAFT_BROKEN if need.drafts else VERIFY_BROKEN)
        return [change for change in changes if change is not None]

    def _piece(self, need: Need) -> Piece:
        mask_id, shift = self.setup.mask_id, self.setup.shift
        if need.drafts:
            return draft_piece(need.live, need.size, need.size, mask_id, shift)
        if need.held is None:
            return verify_piece(need.live, AR, AR, mask_id)
        return branched_piece(need.live, need.held, need.leaves, need.size, self._second(need.held), mask_id, shift)

    def _drafted(self, needs: Sequence[Need], size: int, found: Scores, starts: Ints) -> list[Change]:
        """Requests hold the drafts that they made."""
        lives = [need.live for need in needs]
        seen = found.at(spread(starts, size))
        made = self.setup.judge.drafted(lives, "seeded", positions_of(lives), size, seen)
        parts = [made.part(i * size, (i + 1) * size) for i in range(len(lives))]
        return [
            Change(live, held=held_of(live.tokens[-1], part, live.cached))
            for live, part in zip(lives, parts, strict=True)
        ]

    def _verified(self, needs: Sequence[Need], size: int, found: Scores, starts: Ints) -> list[Change]:
        """Rounds at the same block size, each with the draft of the branch that it hit."""
        lives = [need.live for need in needs]
        verified = self.setup.judge.verified(lives, positions_of(lives), size, found.at(spread(starts, size)))
        verified_ids = verified.first.reshape(-1, size)
        blocks = [need.held.tokens[1:] if need.held is not None else np.zeros(0, np.int64) for need in needs]
        took = accepted(lives, np.stack(blocks), verified_ids)
        accept_lens, emitted, own = took.accept_len.tolist(), took.emitted.tolist(), took.token.tolist()
        tokens, entropies = verified_ids.tolist(), verified.entropy.reshape(-1, size).tolist()
        changes = []
        for i, need in enumerate(needs):
            whole, count, held = accept_lens[i], emitted[i], need.held
            flags = outcome_of(count < whole, held is not None and held.source == SEEDED)
            following = None
            if held is not None and need.leaves:
                flags |= Outcome.PREPARED.value
                if count == whole:
                    behind = found.part(int(starts[i]), int(starts[i]) + need.tokens)
                    hit, following = self._hit(need, held, whole, own[i], took.lives[i], behind)
                    flags |= hit
            brought = tokens[i][:count], entropies[i][:count]
            changes.append(Change(need.live, size, whole, *brought, flags, following, held))
        return changes

    def _hit(
        self, need: Need, held: Held, accept_len: int, token: int, lives: bool, found: Scores
    ) -> tuple[int, Held | None]:
        """Flags of the branch that the outcome lies on, and its draft, if ``token`` is the one it began with."""
        if accept_len not in need.leaves:
            return 0, None
        live, size, judge = need.live, need.size, self.setup.judge
        start = size * (1 + need.leaves.index(accept_len))
        part = found.part(start, start + size)
        behind = np.array([len(live.tokens) + accept_len])
        if accept_len < size:
            covered, reused, source = Outcome.CORRECTION_COVERED, Outcome.CORRECTION_REUSED, CORRECTED
            part = judge.drafted([live], "seeded", behind, size, part)
            hit = int(self._second(held)[accept_len]) == token
        else:
            covered, reused, source = Outcome.CONTINUATION_COVERED, Outcome.CONTINUATION_REUSED, CONTINUED
            part = judge.drafted([live], "continuation", behind - 1, size, part)
            # a shifted draft's first token is the verifier's own
            hit = bool(self.setup.shift) or int(part.first[0]) == token
        if not (hit and lives):
            return covered.value, None
        return covered.value | reused.value, held_of(token, part, live.cached + accept_len, source)

    def told(self, planned: Planned, changes: Sequence[Change], seconds: float) -> None:
        """There is nothing to learn from."""

    def draft_seconds(self, planned: Planned, seconds: float) -> float:
        """All of it where the forward drafts alone."""
        return 0.0 if planned.work.query_tokens else seconds


def _work(needs: Sequence[Need]) -> Work:
    """Query tokens as the simulator counts them: a forward of drafts alone is none of a verify."""
    context, count = sum(need.live.cached for need in needs), len(needs)
    rounds = [need for need in needs if not need.drafts]
    drafted = sum(need.tokens for need in needs if need.drafts)
    if not rounds:
        return Work(0.0, max(need.size for need in needs), count, 0, context, drafted)
    tokens = drafted + sum(need.tokens for need in rounds)
    return Work(0.0, max(need.size for need in rounds), count, tokens, context)
