"""Steps of one forward that verifies drafts and makes the next ones in branches (paper, section 5.1).

The forward carries everyone's next need: the verifier row and branches of those that hold a draft, a draft row of those
that do not. Verifier rows are never drafts to the adapter. Only they commit keys.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from recguide.engine.outcomes import Change, Ends, accepted, ends_of, outcome_of
from recguide.engine.planning import Piece, branched_piece, draft_piece, verify_piece
from recguide.engine.requests import Held, Live
from recguide.engine.scores import Scores, blank, held_of, spread
from recguide.engine.ways import DRAFT_BROKEN, VERIFY_BROKEN, Planned, Setup, positions_of
from recguide.sim.overlap import CONTINUED, CORRECTED, SEEDED, Outcome
from recguide.sim.rounds import AR, Ints
from recguide.sim.steps import Work

NOTHING: Ints = np.zeros(0, np.int64)
"""Drafted tokens of an AR step."""


class Need(NamedTuple):
    """What one request needs next: a draft of ``size`` tokens, or with ``held`` or at size 1 a verification."""

    live: Live
    size: int
    held: Held | None = None
    leaves: tuple[int, ...] = ()
    """Where branches leave the block: corrections below its size, the continuation at it."""
    behind: int = 0
    """The block size of the branches."""

    @property
    def drafts(self) -> bool:
        """Whether it is a draft."""
        return self.held is None and self.size > AR

    @property
    def tokens(self) -> int:
        """Query tokens."""
        return self.size + self.behind * len(self.leaves)


class Group(NamedTuple):
    """Requests of a step that need the same, and all that is known of them before it is over."""

    size: int
    drafts: bool
    places: list[int]
    needs: list[Need]
    lives: list[Live]
    positions: Ints
    starts: Ints
    """Where the scores of each begin."""
    ends: Ends
    told: Scores | None = None
    """What is drafted or verified, where somebody knows it."""


def _groups(needs: Sequence[Need], starts: Ints) -> Iterator[Group]:
    kinds = [(need.size, need.drafts) for need in needs]
    for kind in set(kinds):
        places = [place for place, other in enumerate(kinds) if other == kind]
        alike = [needs[place] for place in places]
        lives = [need.live for need in alike]
        yield Group(*kind, places, alike, lives, positions_of(lives), starts[places], ends_of(lives))


class OneForwardWay:
    """What all such steps have in common; ``eos`` says whether the end of the text may be a correction."""

    masks = 0

    def __init__(self, setup: Setup, eos: str = "allowed") -> None:
        self.setup, self.eos = setup, eos

    def second(self, held: Held) -> Ints:
        """The second candidates of a draft that corrections begin with."""
        return held.second if self.eos == "allowed" else held.second_no_eos

    def run(self, planned: Planned) -> list[Change]:
        """Everyone's need in one forward."""
        return self.begin(planned)()

    def begin(self, planned: Planned) -> Callable[[], list[Change]]:
        """Launch it."""
        needs: list[Need] = planned.what
        forwards, pieces = self.setup.forwards, [self._piece(need) for need in needs]
        statistics = forwards.run(pieces)
        # prepared while the forward runs
        counts = np.array([piece.layout.sizes[2] for piece in pieces])
        starts = np.cumsum(counts) - counts
        groups = [self._foretold(group) for group in _groups(needs, starts)]
        return lambda: self._changes(needs, groups, starts, forwards.read(statistics))

    def _foretold(self, group: Group) -> Group:
        """The group with what the judge says of it, if the forward changes nothing about that."""
        if not getattr(self.setup.judge, "foretells", False):
            return group
        return group._replace(told=self._told(group, blank(len(group.lives) * group.size)))

    def _told(self, group: Group, found: Scores) -> Scores:
        """What the judge makes of the scores of the drafts, or of the verified tokens."""
        judge, where = self.setup.judge, (group.positions, group.size)
        if group.drafts:
            return judge.drafted(group.lives, "seeded", *where, found)
        return judge.verified(group.lives, *where, found)

    def _changes(self, needs: Sequence[Need], groups: Sequence[Group], starts: Ints, found: Scores) -> list[Change]:
        """What became of the requests, in their order."""
        changes: dict[int, Change] = {}
        for group in groups:
            told = group.told or self._told(group, found.at(spread(group.starts, group.size)))
            made = self._drafted(group, told) if group.drafts else self._verified(group, told, found)
            changes |= zip(group.places, made, strict=True)
        if found.first.min() < 0:
            for place in np.flatnonzero(np.minimum.reduceat(found.first, starts) < 0).tolist():
                need = needs[place]
                changes[place] = Change(need.live, error=DRAFT_BROKEN if need.drafts else VERIFY_BROKEN)
        return [changes[place] for place in range(len(needs))]

    def _piece(self, need: Need) -> Piece:
        mask_id, shift = self.setup.mask_id, self.setup.shift
        if need.drafts:
            return draft_piece(need.live, need.size, need.size, mask_id, shift)
        if need.held is None:
            return verify_piece(need.live, AR, AR, mask_id)
        behind = need.behind or need.size
        return branched_piece(need.live, need.held, need.leaves, behind, self.second(need.held), mask_id, shift)

    def _drafted(self, group: Group, made: Scores) -> list[Change]:
        """Requests hold the drafts that they made."""
        parts = [made.part(start, start + group.size) for start in range(0, len(made.first), group.size)]
        return [
            Change(live, held=held_of(live.tokens[-1], part, live.cached))
            for live, part in zip(group.lives, parts, strict=True)
        ]

    def _verified(self, group: Group, verified: Scores, found: Scores) -> list[Change]:
        """Rounds at the same block size, each with the draft of the branch that it hit."""
        needs, size, starts = group.needs, group.size, group.starts.tolist()
        verified_ids = verified.first.reshape(-1, size)
        blocks = [need.held.tokens[1:] if need.held is not None else NOTHING for need in needs]
        drafted = blocks[0][None] if len(blocks) == 1 else np.stack(blocks)
        took = accepted(group.lives, drafted, verified_ids, group.ends)
        tokens, entropies = verified_ids.tolist(), verified.entropy.reshape(-1, size).tolist()
        changes = []
        for i, need in enumerate(needs):
            whole, count, held = took.accept_len[i], took.emitted[i], need.held
            flags = outcome_of(count < whole, held is not None and held.source == SEEDED)
            following = None
            if held is not None and need.leaves:
                flags |= Outcome.PREPARED.value
                if count == whole:
                    behind = found.part(starts[i] + size, starts[i] + need.tokens)
                    hit, following = self._hit(need, held, whole, took.token[i], took.lives[i], behind)
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
        live, size, judge = need.live, need.behind, self.setup.judge
        start = size * need.leaves.index(accept_len)
        part = found.part(start, start + size)
        behind = np.array([len(live.tokens) + accept_len])
        if accept_len < need.size:
            covered, reused, source = Outcome.CORRECTION_COVERED, Outcome.CORRECTION_REUSED, CORRECTED
            part = judge.drafted([live], "seeded", behind, size, part)
            hit = int(self.second(held)[accept_len]) == token
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


def planned(needs: Sequence[Need]) -> Planned:
    """A step of these needs."""
    rows = np.array([place for place, need in enumerate(needs) if not need.drafts], np.int64)
    return Planned(_work(needs), rows if len(rows) < len(needs) else None, needs)


def _work(needs: Sequence[Need]) -> Work:
    """Query tokens as the simulator counts them: a forward of drafts alone is none of a verify."""
    context, count = sum(need.live.cached for need in needs), len(needs)
    rounds = [need for need in needs if not need.drafts]
    drafted = sum(need.tokens for need in needs if need.drafts)
    if not rounds:
        return Work(0.0, max(need.size for need in needs), count, 0, context, drafted)
    tokens = drafted + sum(need.tokens for need in rounds)
    return Work(0.0, max(need.size for need in rounds), count, tokens, context)
