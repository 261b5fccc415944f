"""TiDAR: one forward verifies a draft and drafts behind each of its outcomes (`sim/tidar.py` says the rules)."""

from collections.abc import Sequence

import numpy as np

from recguide.engine.forwards import Scores, read
from recguide.engine.outcomes import Change, accepted, outcome_of
from recguide.engine.planning import Piece, verify_piece, verifying_all
from recguide.engine.requests import Live
from recguide.engine.ways import VERIFY_BROKEN, Planned, Setup, held_of, is_broken
from recguide.sim.overlap import CONTINUED
from recguide.sim.rounds import AR
from recguide.sim.steps import Work
from recguide.sim.tidar import Tidar


class QuadraticWay:
    """Steps of one forward; the first draft comes with the prefill, behind whose prompt there are B masks."""

    def __init__(self, setup: Setup, rules: Tidar) -> None:
        self.setup, self.masks = setup, rules.block_size

    def plan(self, running: Sequence[Live], step: int) -> Planned:
        """A block and the drafts behind it, or where these have no room an AR step."""
        size = self.masks
        sizes = [size if self._fits(live) else AR for live in running]
        tokens = sum(size * (size + 1) if size > AR else 1 for size in sizes)
        context = sum(live.cached for live in running)
        work = Work(0.0, max(sizes), len(running), tokens, context)
        return Planned(work, None, list(zip(running, sizes, strict=True)))

    def _fits(self, live: Live) -> bool:
        return live.drafted() is not None and live.cached + 2 * self.masks <= self.setup.max_context

    def run(self, planned: Planned) -> list[Change]:
        """Everyone's round in one forward."""
        pieces = [self._piece(live, size) for live, size in planned.what]
        found = read(self.setup.forwards.run(pieces))
        changes, at = [], 0
        for (live, size), piece in zip(planned.what, pieces, strict=True):
            part = found.part(at, at + len(piece.layout.scored))
            at += len(piece.layout.scored)
            changes.append(self._change(live, size, part))
        return changes

    def _piece(self, live: Live, size: int) -> Piece:
        held = live.drafted()
        if size == AR or held is None:
            return verify_piece(live, AR, AR, self.setup.mask_id)
        ids = np.full(size * (size + 1), self.setup.mask_id, np.int64)
        ids[:size] = held.tokens
        return Piece(live, live.cached, verifying_all(size, self.setup.shift), ids)

    def _change(self, live: Live, size: int, found: Scores) -> Change:
        if is_broken(found):
            return Change(live, error=VERIFY_BROKEN)
        held = live.drafted() if size > AR else None
        position = len(live.tokens)
        verified = self.setup.judge.verified(live, position, found.part(0, size))
        tokens, block = verified.first.tolist(), held.tokens[1:].tolist() if held is not None else []
        accept_len, emitted = accepted(block, tokens, live.eos_ids, live.tokens_left)
        following = None
        if held is not None and emitted == accept_len:
            part = found.part(size * accept_len, size * (accept_len + 1))
            part = self.setup.judge.drafted(live, "continuation", position + accept_len - 1, part)
            following = held_of(tokens[accept_len - 1], part, live.cached + accept_len, CONTINUED)
        flags, entropies = outcome_of(accept_len, emitted, False), verified.entropy[:emitted].tolist()
        return Change(live, size, accept_len, tokens[:emitted], entropies, flags, following, held)

    def told(self, planned: Planned, changes: Sequence[Change], seconds: float) -> None:
        """There is nothing to learn from."""

    def draft_seconds(self, planned: Planned, seconds: float) -> float:
        """No forward only drafts."""
        return 0.0
