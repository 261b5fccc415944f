"""Prefill steps: prompts, or parts of them, and the first token of whoever's is read to its end."""

from collections.abc import Sequence

from recguide.engine.outcomes import Change
from recguide.engine.planning import PIECE, Piece, prompt_piece
from recguide.engine.requests import Live
from recguide.engine.scheduler import Part
from recguide.engine.scores import Scores, held_of, is_broken
from recguide.engine.ways import VERIFY_BROKEN, Setup, positions_of
from recguide.sim.overlap import CONTINUED


class Prefills:
    """Runs them; ``masks`` behind each prompt draft its first block, where the method wants that."""

    def __init__(self, setup: Setup, masks: int) -> None:
        self.setup, self.masks = setup, masks

    def run(self, parts: Sequence[Part]) -> list[Change]:
        """Changes of those that are read to their end. What is too long for one forward takes several."""
        left = [(live, live.done, count) for live, count in parts]
        changes: list[Change] = []
        while left:
            pieces = [self._piece(live, done, min(count, PIECE)) for live, done, count in left]
            changes += self._changes(pieces)
            left = [(live, done + PIECE, count - PIECE) for live, done, count in left if count > PIECE]
        return changes

    def _piece(self, live: Live, done: int, count: int) -> Piece:
        masks = self.masks if live.known + 2 * self.masks <= self.setup.max_context else 0
        return prompt_piece(live, done, count, masks, self.setup.mask_id, self.setup.shift)

    def _changes(self, pieces: Sequence[Piece]) -> list[Change]:
        found, at, changes = self.setup.forwards.read(self.setup.forwards.run(pieces)), 0, []
        for piece in pieces:
            count = piece.layout.sizes[2]
            if count:
                changes.append(self._change(piece.live, found.part(at, at + count)))
            at += count
        return changes

    def _change(self, live: Live, found: Scores) -> Change:
        if is_broken(found, len(found.first))[0]:
            return Change(live, error=VERIFY_BROKEN)
        position, judge = positions_of([live]), self.setup.judge
        verified = judge.verified([live], position, 1, found.part(0, 1))
        token, entropy = int(verified.first[0]), float(verified.entropy[0])
        held = None
        if len(found.first) > 1:
            part = judge.drafted([live], "continuation", position, self.masks, found.part(1, 1 + self.masks))
            held = held_of(token, part, live.known, CONTINUED)
        return Change(live, 0, 1, [token], [entropy], 0, held)
