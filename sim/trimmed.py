"""Rounds whose verify takes only the part of a draft that is likely to be accepted (after DSpark, arXiv 2607.05147)."""

from dataclasses import dataclass

import numpy as np

from recguide.sim.allocation import verify_lengths
from recguide.sim.costs import ROUND, CostModel
from recguide.sim.drafts import Key
from recguide.sim.history import Floats
from recguide.sim.overlap import Bools, Outcome
from recguide.sim.rounds import AR, Ints, Rounds
from recguide.sim.running import Running
from recguide.sim.steps import Work
from recguide.traces.errors import InputError


@dataclass(frozen=True, slots=True)
class Ragged:
    """Everyone drafts at one block size, and what is verified of it is shared out."""

    block_size: int = 16

    @property
    def keys(self) -> tuple[Key]:
        """The recorded drafts that it looks at."""
        return (("seeded", self.block_size),)


class Trimmed:
    """A draft forward of whole blocks, then a verify of a prefix of each, without padding.

    Where a block has no room in the context, its request takes AR steps: one token of the verify.
    """

    def __init__(self, rounds: Rounds, costs: CostModel, rules: Ragged) -> None:
        self.rounds, self.costs, self.block_size = rounds, costs, rules.block_size
        p1 = rounds.drafts["seeded", rules.block_size].p1
        if p1 is None:
            raise InputError("the trace has no p1, which ragged verification looks at")
        # stored rounded down, in steps of 1/256
        self.p1: Floats = (p1 + 0.5) / 256
        self.rows: Ints | None = None
        self.outcomes: list[int] | None = []
        self._lengths = self._sizes = np.zeros(0, np.int64)

    def start(self, running: Running, step: int) -> Work:
        """Share out the verify."""
        size, count, context = self.block_size, len(running.ids), running.context_tokens
        largest = running.largest
        fits = np.ones(count, bool) if largest is None else largest >= size
        self._sizes = np.where(fits, size, AR)
        drafting = int(fits.sum())
        draft_s, measured = 0.0, True
        if drafting:
            drafts = self.costs.curve(ROUND[:1], drafting, drafting * size)
            own = context if drafting == count else running.cached(np.flatnonzero(fits))
            draft_s, measured = drafts(own), drafts.covers(own)
        self._lengths = self._share_out(running.at, fits, draft_s, context)
        tokens = int(self._lengths.sum())
        verify = self.costs.curve(ROUND[1:] if drafting else ("decode", "host"), count, tokens)
        outside = not (measured and verify.covers(context))
        return Work(
            draft_s + verify(context), int(self._sizes.max()), count, tokens, context, drafting * size, 0, outside
        )

    def _share_out(self, at: Ints, fits: Bools, draft_s: float, context: int) -> Ints:
        """Tokens that each request verifies, 1 to B."""
        count, drafting = len(at), np.flatnonzero(fits)
        lengths = np.ones(count, np.int64)

        if len(drafting):
            seconds = np.maximum(draft_s + self._verify_s(count, len(drafting), context), 1e-12)
            lengths[drafting] = verify_lengths(self.p1[at[drafting]], seconds)
        return lengths

    def _verify_s(self, count: int, drafting: int, context: int) -> Floats:
        """Seconds of the verify and the host by the number of admitted draft tokens.

        Costs are piecewise linear in query tokens, and change their slope at whole block sizes.
        """
        most = count + drafting * (self.block_size - 1)
        knots = sorted({count, *(min(count * size, most) for size in (2, *self.rounds.block_sizes)), most})
        known = [self.costs.curve(ROUND[1:], count, tokens)(context) for tokens in knots]
        seconds: Floats = np.interp(np.arange(count, most + 1), knots, known)
        return seconds

    def finish(self, running: Running, step: int) -> tuple[list[int], list[int]]:
        """Emit what was accepted of the verified part, and the verifier's own token."""
        at = running.at
        accepted = np.where(self._sizes > AR, self.rounds.accept_len[self.block_size].take(at), 1).astype(np.int64)
        accepted = np.minimum(accepted, self._lengths)
        whole = np.where(self._sizes > AR, self.rounds.emitted[self.block_size].take(at), 1)
        emitted = np.minimum(whole, self._lengths)
        flags = (self._sizes > AR) * Outcome.DRAFTED.value + (emitted < accepted) * Outcome.CUT.value
        if self.outcomes is not None:
            self.outcomes += flags.tolist()
        tokens = running.emit(emitted, accepted if running.resized else None, self._sizes, None, step)
        return tokens, self._sizes.tolist()
