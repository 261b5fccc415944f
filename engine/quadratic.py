"""TiDAR: one forward verifies a draft and drafts behind each of its outcomes (`sim/tidar.py` says the rules)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from recguide.engine.outcomes import Change, accepted, outcome_of
from recguide.engine.planning import Piece, verify_piece, verifying_all
from recguide.engine.requests import Live
from recguide.engine.scores import Scores, blank, held_of, is_broken, spread
from recguide.engine.ways import VERIFY_BROKEN, Planned, Setup, positions_of
from recguide.sim.overlap import CONTINUED
from recguide.sim.rounds import AR, Ints
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

    def rehearse(self, lives: Sequence[Live]) -> Iterator[Planned]:
        """A round, and an AR step."""
        held = held_of(0, blank(self.masks), lives[0].cached, CONTINUED)
        drafted = [replace(live, held=held) for live in lives]
        for size in (self.masks, AR):
            work = Work(0.0, size, len(lives), len(lives) * (size * (size + 1) if size > AR else 1), 0)
            yield Planned(work, None, [(live, size) for live in drafted])

    def _fits(self, live: Live) -> bool:
        return live.drafted() is not None and live.cached + 2 * self.masks <= self.setup.max_context

    def run(self, planned: Planned) -> list[Change]:
        """Everyone's round in one forward."""
        return self.begin(planned)()

    def begin(self, planned: Planned) -> Callable[[], list[Change]]:
        """Launch it."""
        rounds: list[tuple[Live, int]] = planned.what
        forwards, pieces = self.setup.forwards, [self._piece(live, size) for live, size in rounds]
        statistics = forwards.run(pieces)
        return lambda: self._rounds(rounds, pieces, forwards.read(statistics))

    def _rounds(self, rounds: Sequence[tuple[Live, int]], pieces: Sequence[Piece], found: Scores) -> list[Change]:
        """What became of the requests, in their order."""
        counts = np.array([piece.layout.sizes[2] for piece in pieces])
        starts, sizes = np.cumsum(counts) - counts, np.array([size for _, size in rounds])
        changes: list[Change | None] = [None] * len(rounds)
        for size in set(sizes.tolist()):
            places = np.flatnonzero(sizes == size)
            lives = [rounds[place][0] for place in places.tolist()]
            for place, change in zip(places, self._changes(lives, size, found, starts[places]), strict=True):
                changes[place] = change
        return [change for change in changes if change is not None]

    def _piece(self, live: Live, size: int) -> Piece:
        held = live.drafted()
        if size == AR or held is None:
            return verify_piece(live, AR, AR, self.setup.mask_id)
        ids = np.full(size * (size + 1), self.setup.mask_id, np.int64)
        ids[:size] = held.tokens
        return Piece(live, live.cached, verifying_all(size, self.setup.shift), ids)

    def _changes(self, lives: Sequence[Live], size: int, found: Scores, starts: Ints) -> list[Change]:
        """Rounds of the same kind, each with the draft behind its last accepted token."""
        positions, judge, held = positions_of(lives), self.setup.judge, [live.drafted() for live in lives]
        verified = judge.verified(lives, positions, size, found.at(spread(starts, size)))
        ids, own = verified.first.reshape(-1, size), size > AR
        blocks = [draft.tokens[1:] if draft is not None and own else np.zeros(0, np.int64) for draft in held]
        took = accepted(lives, np.stack(blocks), ids)
        lens = np.array(took.accept_len)
        following = (
            judge.drafted(
                lives,
                "continuation",
                positions + lens - 1,
                size,
                found.at(spread(starts + size * lens, size)),
            )
            if own
            else None
        )
        total = size * (size + 1) if own else size
        bad = is_broken(found.at(spread(starts, total)), total)
        changes = []
        for i, live in enumerate(lives):
            if bad[i]:
                changes.append(Change(live, error=VERIFY_BROKEN))
                continue
            count, whole = took.emitted[i], took.accept_len[i]
            brought = ids[i, :count].tolist(), verified.entropy[i * size : i * size + count].tolist()
            behind = None
            if following is not None and count == whole:
                part = following.part(i * size, (i + 1) * size)
                behind = held_of(took.token[i], part, live.cached + whole, CONTINUED)
            flags = outcome_of(count < whole, False)
            changes.append(Change(live, size, whole, *brought, flags, behind, held[i] if own else None))
        return changes

    def told(self, planned: Planned, changes: Sequence[Change], seconds: float) -> None:
        """There is nothing to learn from."""

    def draft_seconds(self, planned: Planned, seconds: float) -> float:
        """No forward only drafts."""
        return 0.0
