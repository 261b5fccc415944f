"""Branches and block sizes chosen together (`sim/joint.py`), over requests that have different ones in one forward."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from recguide.engine.oneforward import Need, OneForwardWay, planned
from recguide.engine.requests import Held, Live, room_for, seen_of
from recguide.engine.scores import blank, held_of
from recguide.engine.ways import Planned, Setup
from recguide.sim.chances import MOST_CORRECTIONS
from recguide.sim.history import Floats
from recguide.sim.joint import Decisions, Joint, runnable
from recguide.sim.overlap import Bools
from recguide.sim.rounds import AR, Ints


class _Branches(NamedTuple):
    """Of the running requests: [requests, 3] and [requests, 4], zeros where no draft is held."""

    position: Ints
    chance: Floats


class JointWay(OneForwardWay):
    """Steps of one forward."""

    def __init__(self, setup: Setup, policy: Joint, decisions: Decisions) -> None:
        super().__init__(setup)
        self.policy, self.decisions = policy, decisions
        self.sizes: list[int] = decisions.sizes.tolist()

    def plan(self, running: Sequence[Live], step: int) -> Planned:
        """Drafts for those that hold none, and the round of everyone else with the branches that pay."""
        largest = room_for(running, self.setup.block_sizes, self.setup.max_context)
        room = np.full(len(running), self.sizes[-1]) if largest is None else largest
        plain = room < self.sizes[0]
        held = [self._held(*each) for each in zip(running, room.tolist(), plain.tolist(), strict=True)]
        value = self.decisions.value(seen_of(running, {}))
        first = self._first_sizes(value, room, ~plain & np.array([draft is None for draft in held]))
        branches = self._branches(running, held)
        following, taken = self.decisions.plan(value, branches.chance, len(running))
        needs = []
        for place, live in enumerate(running):
            draft = held[place]
            if draft is None:
                needs.append(Need(live, first[place]))
                continue
            leaves = self._leaves(draft, branches.position[place], taken[place])
            needs.append(Need(live, len(draft), draft, leaves, self.sizes[following[place]]))
        return planned(needs)

    def _held(self, live: Live, room: int, plain: bool) -> Held | None:
        draft = live.drafted()
        return draft if draft is not None and not plain and len(draft) <= room else None

    def _first_sizes(self, value: Floats, room: Ints, drafts: Bools) -> list[int]:
        """Block sizes of fresh drafts, and of AR steps elsewhere."""
        sizes = np.full(len(room), AR)
        chosen = self.decisions.first_size(value[drafts], len(room), room[drafts])
        sizes[drafts] = self.decisions.sizes[chosen]
        listed: list[int] = sizes.tolist()
        return listed

    def _branches(self, running: Sequence[Live], held: Sequence[Held | None]) -> _Branches:
        """Those that drafts may get, and their chances."""
        found = _Branches(
            np.zeros((len(held), MOST_CORRECTIONS), np.int64), np.zeros((len(held), MOST_CORRECTIONS + 1))
        )
        lens = np.array([0 if draft is None else len(draft) for draft in held])
        for size in {draft_size for draft_size in lens.tolist() if draft_size}:
            at = np.flatnonzero(lens == size)
            margin = np.stack([draft.margin[1:] for draft in held if draft is not None and len(draft) == size])
            limit = np.array([running[place].limit for place in at.tolist()])
            room = self.setup.max_context - np.array([running[place].cached for place in at.tolist()])
            found.position[at], found.chance[at] = runnable(self.policy.chances, margin, size, limit, room)
        return found

    def _leaves(self, draft: Held, position: Ints, taken: Bools) -> tuple[int, ...]:
        second = self.second(draft)
        corrections = zip(position.tolist(), taken.tolist(), strict=False)
        places = [place for place, wanted in corrections if wanted and second[place] >= 0]
        return (*places, *([len(draft)] if taken[MOST_CORRECTIONS] else []))

    def rehearse(self, lives: Sequence[Live]) -> Iterator[Planned]:
        """Drafts, and rounds with as many branches as there may be, where all have the same block sizes."""
        kinds = [Need(lives[0], AR), *(Need(lives[0], size) for size in self.sizes)]
        for size in self.sizes:
            held = held_of(0, blank(size), lives[0].cached)
            branches = [*range(1, min(MOST_CORRECTIONS, size - 1) + 1), size]
            kinds.append(Need(lives[0], size, held))
            kinds += [
                Need(lives[0], size, held, tuple(branches[:count]), behind)
                for behind in self.sizes
                for count in range(1, len(branches) + 1)
            ]
        for kind in kinds:
            yield planned([replace(kind, live=live) for live in lives])
