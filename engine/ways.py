"""What the ways to take running requests a step further have in common (`sim/steps.py` has their simulated twins)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from recguide.engine.forwards import Forwards
from recguide.engine.outcomes import Change
from recguide.engine.requests import Live
from recguide.engine.scores import Scores
from recguide.sim.rounds import Ints
from recguide.sim.steps import Work

DRAFT_BROKEN = "the draft's logits are NaN"
VERIFY_BROKEN = "the verifier's logits are NaN"


class Planned(NamedTuple):
    """A step before it runs."""

    work: Work
    """Without its seconds, which nobody knows yet."""
    rows: Ints | None
    """Places of those that emit; None when all of the running ones do."""
    what: Any
    """Of the way that planned it."""


class Way(Protocol):
    """A way to take running requests one step further."""

    @property
    def masks(self) -> int:
        """Masks behind every prompt, which draft its first block; 0 where none do."""

    def plan(self, running: Sequence[Live], step: int) -> Planned:
        """Decide what step number ``step`` is; nothing changes by it."""

    def run(self, planned: Planned) -> list[Change]:
        """Run it; nothing changes by it."""

    def begin(self, planned: Planned) -> Callable[[], list[Change]]:
        """Launch it; gives what waits for its end, and then says what :meth:`run` says."""

    def rehearse(self, lives: Sequence[Live]) -> Iterator[Planned]:
        """A step of each kind of so many requests."""

    def told(self, planned: Planned, changes: Sequence[Change], seconds: float) -> None:
        """It took these seconds, and the requests are what it made of them."""

    def draft_seconds(self, planned: Planned, seconds: float) -> float:
        """How many of these were those of a draft forward."""


class Judge(Protocol):
    """Who says what was drafted and verified: the model, or a trace where acceptance is forced.

    One whose ``foretells`` is True looks at nothing that forwards find, and may be asked while they run.
    """

    def drafted(self, lives: Sequence[Live], view: str, positions: Ints, size: int, found: Scores) -> Scores:
        """``size`` scores of each request's draft behind so many output tokens, one request below the other.

        The first of them means nothing in the seeded view.
        """

    def verified(self, lives: Sequence[Live], positions: Ints, size: int, found: Scores) -> Scores:
        """``size`` scores of the verifier for each request, from this output position on."""


class AsFound:
    """The model says it."""

    def drafted(self, lives: Sequence[Live], view: str, positions: Ints, size: int, found: Scores) -> Scores:
        """As it was found."""
        return found

    def verified(self, lives: Sequence[Live], positions: Ints, size: int, found: Scores) -> Scores:
        """As it was found."""
        return found


@dataclass(frozen=True, slots=True)
class Setup:
    """What every way works with."""

    forwards: Forwards
    judge: Judge
    block_sizes: tuple[int, ...]
    """That rounds may have, ascending."""
    max_context: int

    @property
    def mask_id(self) -> int:
        """The token that marks a position to be drafted."""
        return self.forwards.decoder.config.mask_id

    @property
    def shift(self) -> int:
        """0 where a draft logit scores its own position, 1 where it scores the next one."""
        return self.forwards.decoder.config.draft_shift


def positions_of(lives: Sequence[Live]) -> Ints:
    """Output tokens of each request so far."""
    return np.array([len(live.tokens) for live in lives])
