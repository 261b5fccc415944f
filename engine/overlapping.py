"""Overlap, with one block size and branches by the paper's rule (section 5.1; `sim/overlap.py`)."""

from collections.abc import Iterator, Sequence

import numpy as np

from recguide.engine.oneforward import Need, OneForwardWay, planned
from recguide.engine.requests import Held, Live, room_for
from recguide.engine.scores import blank, held_of
from recguide.engine.ways import Planned, Setup
from recguide.sim.overlap import SEEDED, Overlap, prepared_of_one
from recguide.sim.rounds import AR


class OverlapWay(OneForwardWay):
    """Steps of one forward."""

    def __init__(self, setup: Setup, rules: Overlap) -> None:
        super().__init__(setup, rules.eos)
        self.rules = rules

    def plan(self, running: Sequence[Live], step: int) -> Planned:
        """Drafts for those without one, and the round of everyone else."""
        largest = room_for(running, self.setup.block_sizes, self.setup.max_context)
        size = self.rules.block_size
        sizes = [size] * len(running) if largest is None else np.minimum(largest, size).tolist()
        held = [live.drafted() if size > AR else None for live, size in zip(running, sizes, strict=True)]
        leaves = map(self._leaves_of, running, held)
        return planned([Need(*need, size) for need in zip(running, sizes, held, leaves, strict=True)])

    def rehearse(self, lives: Sequence[Live]) -> Iterator[Planned]:
        """A draft, and rounds with as many branches as there may be."""
        size = self.rules.block_size
        held = held_of(0, blank(size), lives[0].cached)
        branches = [*range(1, min(self.rules.corrections, size - 1) + 1), size]
        kinds = [Need(lives[0], size), Need(lives[0], AR)]
        kinds += [Need(lives[0], size, held, tuple(branches[:count]), size) for count in range(len(branches) + 1)]
        for kind in kinds:
            yield planned([kind._replace(live=live) for live in lives])

    def _leaves_of(self, live: Live, draft: Held | None) -> tuple[int, ...]:
        """Where branches leave the draft that a request holds."""
        rules = self.rules
        if draft is None or len(draft) != rules.block_size or not (rules.recursive or draft.source == SEEDED):
            return ()
        room = self.setup.max_context - draft.cached
        corrections, goes_on = prepared_of_one(draft.margin[1:], rules, live.limit, room)
        second = self.second(draft)
        return (*(at for at in corrections if second[at] >= 0), *([rules.block_size] if goes_on else []))
