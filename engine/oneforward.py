"""Steps of one forward that verifies drafts and makes the next ones in branches (paper, section 5.1).

The forward carries everyone's next need: the verifier row and branches of those that hold a draft, a draft row of those
that do not. Verifier rows are never drafts to the adapter. Only they commit keys.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from recguide.engine.batches import Batch, known_frame
from recguide.engine.outcomes import Change, Ends, accepted, ends_of
from recguide.engine.planning import Layout, drafting, put_round, verifying
from recguide.engine.requests import Held, Live
from recguide.engine.scores import Scores, blank, held_of, spread
from recguide.engine.ways import DRAFT_BROKEN, VERIFY_BROKEN, Planned, Setup, positions_of
from recguide.sim.overlap import CONTINUED, CORRECTED, SEEDED, Outcome
from recguide.sim.rounds import AR, Ints
from recguide.sim.steps import Work

_VIEW = "seeded", "continuation"
_CUT, _DRAFTED, _PREPARED = Outcome.CUT.value, Outcome.DRAFTED.value, Outcome.PREPARED.value
_CORRECTION = Outcome.CORRECTION_COVERED.value, Outcome.CORRECTION_REUSED.value, CORRECTED
_CONTINUATION = Outcome.CONTINUATION_COVERED.value, Outcome.CONTINUATION_REUSED.value, CONTINUED


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
    drafted: Ints
    """[requests, B-1] What is verified."""
    flags: list[int]
    """``Outcome`` flags that rounds have whatever becomes of them."""
    ends: Ends
    told: Scores | None = None
    """What is drafted or verified, where somebody knows it."""
    branches: Mapping[tuple[int, int], Scores] = {}
    """What branches draft, by the place of their request in here and where they leave its block, where one knows."""


def _groups(needs: Sequence[Need], batch: Batch, starts: Ints) -> Iterator[Group]:
    kinds = [(need.size, need.drafts) for need in needs]
    for size, drafts in set(kinds):
        places = [place for place, other in enumerate(kinds) if other == (size, drafts)]
        alike = [needs[place] for place in places]
        lives = [need.live for need in alike]
        drafted = batch.ids[batch.frame.starts[places][:, None] + np.arange(1, size)]
        flags = [_flags_of(need) for need in alike]
        stand = positions_of(lives), starts[places], drafted, flags, ends_of(lives)
        yield Group(size, drafts, places, alike, lives, *stand)


def _flags_of(need: Need) -> int:
    drafted = need.held is not None and need.held.source == SEEDED
    return (_DRAFTED if drafted else 0) | (_PREPARED if need.leaves else 0)


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
        forwards, batch = self.setup.forwards, self._batch(needs)
        statistics = forwards.run(batch)
        # prepared while the forward runs
        starts = np.cumsum(batch.frame.counts) - batch.frame.counts
        groups = [self._foretold(group) for group in _groups(needs, batch, starts)]
        return lambda: self._changes(needs, groups, starts, forwards.read(statistics))

    def _batch(self, needs: Sequence[Need]) -> Batch:
        """What they bring to the forward."""
        frame = known_frame(tuple([self._layout(need) for need in needs]))
        ids = np.full(frame.total, self.setup.mask_id)
        for need, start in zip(needs, frame.starts.tolist(), strict=True):
            if need.held is None:
                ids[start] = need.live.tokens[-1]
            else:
                put_round(ids[start:], need.held, need.leaves, need.behind, self.second(need.held))
        lives = [need.live for need in needs]
        return Batch(lives, np.array([live.cached for live in lives]), frame, ids)

    def _layout(self, need: Need) -> Layout:
        if need.drafts:
            return drafting(need.size, self.setup.shift)
        return verifying(need.size, need.leaves, self.setup.shift, need.behind) if need.leaves else verifying(need.size)

    def _foretold(self, group: Group) -> Group:
        """The group with what the judge says of it, if the forward changes nothing about that."""
        if not getattr(self.setup.judge, "foretells", False):
            return group
        told = self._told(group, blank(len(group.lives) * group.size))
        return group._replace(told=told, branches=self._told_branches(group))

    def _told_branches(self, group: Group) -> dict[tuple[int, int], Scores]:
        asked: dict[tuple[bool, int], list[tuple[int, int]]] = {}
        for place, need in enumerate(group.needs):
            for leave in need.leaves:
                asked.setdefault((leave == need.size, need.behind), []).append((place, leave))
        made: dict[tuple[int, int], Scores] = {}
        for (goes_on, size), branches in asked.items():
            places, leaves = np.array(branches).T
            lives = [group.lives[place] for place, _ in branches]
            where = _VIEW[goes_on], group.positions[places] + leaves - goes_on, size
            found = self.setup.judge.drafted(lives, *where, blank(len(lives) * size))
            made |= zip(branches, _parts(found, size), strict=True)
        return made

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

    def _drafted(self, group: Group, made: Scores) -> list[Change]:
        """Requests hold the drafts that they made."""
        return [
            Change(live, held=held_of(live.tokens[-1], part, live.cached))
            for live, part in zip(group.lives, _parts(made, group.size), strict=True)
        ]

    def _verified(self, group: Group, verified: Scores, found: Scores) -> list[Change]:
        """Rounds at the same block size, each with the draft of the branch that it hit."""
        size = group.size
        ids = verified.first.reshape(-1, size)
        took = accepted(group.lives, group.drafted, ids, group.ends)
        rounds = zip(
            group.needs, group.flags, *took, ids.tolist(), verified.entropy.reshape(-1, size).tolist(), strict=True
        )
        changes = []
        for place, (need, flags, whole, count, token, lives, tokens, entropies) in enumerate(rounds):
            following = None
            if count < whole:
                flags |= _CUT
            elif whole in need.leaves:
                hit, following = self._hit(group, place, whole, token, lives, found)
                flags |= hit
            changes.append(
                Change(need.live, size, whole, tokens[:count], entropies[:count], flags, following, need.held)
            )
        return changes

    def _hit(
        self, group: Group, place: int, leave: int, token: int, lives: bool, found: Scores
    ) -> tuple[int, Held | None]:
        """Flags of the branch that the outcome lies on, and its draft, if ``token`` is the one it began with."""
        need, goes_on = group.needs[place], leave == group.size
        assert need.held is not None
        covered, reused, source = _CONTINUATION if goes_on else _CORRECTION
        if not lives or (not goes_on and self.second(need.held)[leave] != token):
            return covered, None
        part = group.branches.get((place, leave)) or self._branch(group, place, leave, found)
        # a shifted draft's first token is the verifier's own
        if goes_on and not self.setup.shift and part.first[0] != token:
            return covered, None
        return covered | reused, held_of(token, part, need.live.cached + leave, source)

    def _branch(self, group: Group, place: int, leave: int, found: Scores) -> Scores:
        """What a branch drafted."""
        need, goes_on = group.needs[place], leave == group.size
        start = int(group.starts[place]) + group.size + need.behind * need.leaves.index(leave)
        where = _VIEW[goes_on], group.positions[[place]] + leave - goes_on, need.behind
        return self.setup.judge.drafted([need.live], *where, found.part(start, start + need.behind))

    def told(self, planned: Planned, changes: Sequence[Change], seconds: float) -> None:
        """There is nothing to learn from."""

    def draft_seconds(self, planned: Planned, seconds: float) -> float:
        """All of it where the forward drafts alone."""
        return 0.0 if planned.work.query_tokens else seconds


def _parts(scores: Scores, size: int) -> list[Scores]:
    """Scores of so many tokens each."""
    return [scores.part(start, start + size) for start in range(0, len(scores.first), size)]


def planned(needs: Sequence[Need]) -> Planned:
    """A step of these needs."""
    rows = np.array([place for place, need in enumerate(needs) if not need.drafts], np.int64)
    return Planned(_work(needs), rows if len(rows) < len(needs) else None, needs)


def _work(needs: Sequence[Need]) -> Work:
    """Query tokens as the simulator counts them: a forward of drafts alone is none of a verify."""
    context, count = sum([need.live.cached for need in needs]), len(needs)
    tokens = sum([need.tokens for need in needs])
    rounds = [need.size for need in needs if not need.drafts]
    if not rounds:
        return Work(0.0, max([need.size for need in needs]), count, 0, context, tokens)
    return Work(0.0, max(rounds), count, tokens, context)
