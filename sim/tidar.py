"""Quadratic self-speculation (TiDAR): one forward verifies a draft and drafts behind every outcome that it can have.

For a block B the forward has B groups, [draft token i, MASK x B]: B(B+1) query tokens. The draft of the next round is
the group behind the last accepted token, and its first token is the verifier's own.
"""

from dataclasses import dataclass

import numpy as np

from recguide.sim.drafts import Key
from recguide.sim.overlap import NO_DRAFT, Outcome, Tables, places
from recguide.sim.rounds import AR, Rounds
from recguide.traces.dense import matched_lens


@dataclass(frozen=True, slots=True)
class Tidar:
    """The quadratic layout at one block size."""

    block_size: int = 16

    @property
    def keys(self) -> tuple[Key]:
        """The recorded drafts that it plays."""
        return (("continuation", self.block_size),)


def tidar_tables(rounds: Rounds, rules: Tidar) -> Tables:
    """Play one round from everywhere; there is one source of drafts.

    A draft made behind p-1 tokens has the verifier's token at p-1 as its own first one, and this token is emitted with
    the round that made the draft. So the round at p accepts the continuation's draft tokens from its second on, and
    the verifier's token comes last, as in every other method. The first draft comes out of the prefill, which
    carries B masks.
    """
    size = rules.block_size
    match = rounds.drafts["continuation", size].match
    position, left, cached = places(rounds)
    earlier = match[np.maximum(np.arange(len(match)) - 1, 0)] >> np.uint32(1)
    # nothing precedes a text's first token that a draft could come from
    accepted = np.where(position == 0, 1, matched_lens(earlier) + 1)
    # the masks behind the last draft token need room too
    fits = cached + 2 * size <= rounds.max_context
    accepted = np.where(fits, accepted, 1)
    block, tokens = np.where(fits, size, AR), np.where(fits, size * (size + 1), 1)
    cut = (accepted > left) * Outcome.CUT.value
    rows = [part[None] for part in (tokens, accepted, np.minimum(accepted, left), cut, np.full(len(match), NO_DRAFT))]
    return Tables(block, *(row.astype(np.int16) for row in rows))
