"""Branches and block sizes chosen together (`sim/joint.py`), over requests that have different ones in one forward."""

from collections.abc import Iterator, Sequence

import numpy as np

from recguide.engine.oneforward import Need, OneForwardWay, planned
from recguide.engine.requests import ACCEPT_LEN, BLOCK_SIZE, CACHED, Held, Live, figures_of, room_for, standing
from recguide.engine.scores import blank, held_of
from recguide.engine.ways import Planned, Setup
from recguide.sim.chances import MOST_CORRECTIONS, NO_TOKEN
from recguide.sim.history import ENTROPY, ENTROPY_BEFORE, Floats
from recguide.sim.joint import Decisions, Joint, runnable, runnable_of_one
from recguide.sim.rounds import AR, Ints

FEW = 4
"""Requests that are looked at faster one by one."""


class JointWay(OneForwardWay):
    """Steps of one forward."""

    def __init__(self, setup: Setup, policy: Joint, decisions: Decisions) -> None:
        super().__init__(setup)
        self.policy, self.decisions = policy, decisions
        self.sizes: list[int] = decisions.sizes.tolist()

    def plan(self, running: Sequence[Live], step: int) -> Planned:
        """Drafts for those that hold none, and the round of everyone else with the branches that pay."""
        cached, count = standing(running)[CACHED], len(running)
        room = room_for(running, self.setup.block_sizes, self.setup.max_context)
        most = np.full(count, self.sizes[-1]) if room is None else np.minimum(room, self.sizes[-1])
        held = [self._held(*each) for each in zip(running, cached.tolist(), most.tolist(), strict=True)]
        return planned((self._one_by_one if count <= FEW else self._together)(running, held, most))

    def _one_by_one(self, running: Sequence[Live], held: Sequence[Held | None], most: Ints) -> list[Need]:
        state, figures, count = standing(running), figures_of(running), len(running)
        seen = *figures[[ENTROPY, ENTROPY_BEFORE]].tolist(), *state[[BLOCK_SIZE, ACCEPT_LEN]].tolist()
        values = map(self.decisions.tokens_of_one, *seen)
        return [self._need(*each, count) for each in zip(running, held, most.tolist(), values, strict=True)]

    def _need(self, live: Live, draft: Held | None, most: int, value: list[float], count: int) -> Need:
        if draft is None:
            return Need(live, AR if most < self.sizes[0] else self.decisions.first_size_of_one(value, count, most))
        margin, room = draft.margin[1:].tolist(), self.setup.max_context - draft.cached
        position, chance = runnable_of_one(self.policy.chances, margin, live.limit, room)
        following, taken = self.decisions.plan_of_one(value, chance, count)
        return self._round(live, draft, position, taken, following)

    def _together(self, running: Sequence[Live], held: Sequence[Held | None], most: Ints) -> list[Need]:
        """The same of many at once."""
        state, figures = standing(running), figures_of(running)
        value = self.decisions.tokens(figures[ENTROPY], figures[ENTROPY_BEFORE], state[BLOCK_SIZE], state[ACCEPT_LEN])
        position, chance = self._branches(running, held, state[CACHED])
        following, taken = self.decisions.plan(value, chance, len(running))
        rounds = zip(position.tolist(), taken.tolist(), following.tolist(), strict=True)
        first = iter(self._first_sizes(value, most, held))
        return [
            Need(live, next(first)) if draft is None else self._round(live, draft, *branches)
            for live, draft, branches in zip(running, held, rounds, strict=True)
        ]

    def _held(self, live: Live, cached: int, most: int) -> Held | None:
        """The draft that a request holds, if it is of use where the request stands."""
        draft = live.held
        return draft if draft is not None and draft.cached == cached and len(draft) <= most else None

    def _first_sizes(self, value: Floats, most: Ints, held: Sequence[Held | None]) -> list[int]:
        """Block sizes of those that hold no draft: of fresh ones, and of AR steps where there is room for none."""
        at = [place for place, draft in enumerate(held) if draft is None]
        if not at:
            return []
        most = most[at]
        chosen = self.decisions.sizes[self.decisions.first_size(value[at], len(held), most)]
        sizes: list[int] = np.where(most < self.sizes[0], AR, chosen).tolist()
        return sizes

    def _branches(self, running: Sequence[Live], held: Sequence[Held | None], cached: Ints) -> tuple[Ints, Floats]:
        """[requests, 3] and [requests, 4] The branches that drafts may get, and their chances: none without a draft."""
        margin = np.full((len(held), max(self.sizes[-1] - 1, MOST_CORRECTIONS)), NO_TOKEN, np.uint16)
        size, limit = [0] * len(held), [0] * len(held)
        for place, draft in enumerate(held):
            if draft is not None:
                size[place], limit[place] = len(draft), running[place].limit
                margin[place, : len(draft) - 1] = draft.margin[1:]
        return runnable(self.policy.chances, margin, np.array(size), np.array(limit), self.setup.max_context - cached)

    def _round(self, live: Live, draft: Held, position: list[int], taken: list[bool], following: int) -> Need:
        size, second = len(draft), self.second(draft)
        leaves = [at for at, wanted in zip(position, taken, strict=False) if wanted and second[at] >= 0]
        if taken[MOST_CORRECTIONS]:
            leaves.append(size)
        return Need(live, size, draft, tuple(leaves), self.sizes[following])

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
            yield planned([kind._replace(live=live) for live in lives])
