"""A judge by which about half of a block is accepted, always in the same way, for steps that are to be timed."""

from collections.abc import Sequence

import numpy as np

from recguide.engine.model import ModelConfig
from recguide.engine.requests import Live
from recguide.engine.scores import Scores
from recguide.sim.rounds import Ints

STRIDES = 37, 41
"""Between requests, and between the same request's fours of rounds: odd and no divisor of a block size."""


class Halves:
    """What random weights would draft and verify if they agreed as those of a model do.

    Two rounds of a request emit ``span(B)`` tokens, first a few and then the rest, the next two the rest first; how
    many a few are is another number each time, and for each request. With ``whole`` blocks may be accepted as a whole;
    without, a round hits no branch, so that requests that run alike go on doing so. ``usable`` are 3 tokens at least.
    """

    def __init__(self, usable: Ints, whole: bool = True) -> None:
        self.usable, self.whole = usable, whole
        self.start = 1
        """Output tokens where the first round begins."""

    def span(self, size: int) -> int:
        """Tokens of two rounds at a block size, together."""
        return max(size + self.whole, 2)

    def accept_lens(self, numbers: Ints, positions: Ints, size: int) -> Ints:
        """[requests] Tokens that a round emits behind so many output tokens of the requests with these numbers."""
        span = self.span(size)
        fours, moved = np.divmod(positions - self.start, 2 * span)
        # a request that is alone begins in the middle
        few = 1 + ((span - 1) // 2 + numbers * STRIDES[0] + fours * STRIDES[1]) % (span - 1)
        ends = np.stack([few, np.full_like(few, span), 2 * span - few, np.full_like(few, 2 * span)], 1)
        following = (ends > moved[:, None]).argmax(1)
        lens: Ints = np.minimum(ends[np.arange(len(ends)), following] - moved, size)
        return lens

    def drafted(self, lives: Sequence[Live], view: str, positions: Ints, size: int, found: Scores) -> Scores:
        """Right up to where the round ends that verifies it; no second candidate is right."""
        numbers = _numbers(lives)
        # a continuation's first token is the one that the round behind it takes for its seed
        behind = positions + (view == "continuation")
        places = self._places(numbers, behind - 1, size)
        right = np.arange(size) < self.accept_lens(numbers, behind, size)[:, None]
        made = found.copy()
        made.first[:] = self._tokens(np.where(right, places, places + 1))
        made.second[:] = made.second_no_eos[:] = self._tokens(places + 2)
        return made

    def verified(self, lives: Sequence[Live], positions: Ints, size: int, found: Scores) -> Scores:
        """Tokens that differ from request to request, and from place to place."""
        return found._replace(first=self._tokens(self._places(_numbers(lives), positions, size)))

    def _places(self, numbers: Ints, positions: Ints, count: int) -> Ints:
        at = positions[:, None] + np.arange(count)
        return numbers[:, None] * 104729 + at * 7919

    def _tokens(self, places: Ints) -> Ints:
        tokens: Ints = self.usable[places.ravel() % len(self.usable)]
        return tokens


def usable_tokens(config: ModelConfig) -> Ints:
    """Those of a model that neither end a text nor stand for one to be drafted."""
    return np.setdiff1d(np.arange(config.vocab_size), [config.mask_id, *config.eos_ids])


def _numbers(lives: Sequence[Live]) -> Ints:
    return np.array([live.number for live in lives])
