"""Draft, then verify: steps of linear self-speculation at the block sizes that a policy chooses (paper, section 3.1).

A round is two forwards and one answer to the host, at its end. Requests of other block sizes wait for their bucket, or
take part with their own size, without padding or filled up to the largest (section 5.3).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from recguide.engine.clocks import Stopwatch
from recguide.engine.inputs import Fill
from recguide.engine.outcomes import Change, accepted, outcome_of
from recguide.engine.planning import Piece, draft_piece, verify_piece
from recguide.engine.requests import Live, room_for, seen_of
from recguide.engine.scores import Scores, Unmade, is_broken, spread
from recguide.engine.ways import DRAFT_BROKEN, VERIFY_BROKEN, Planned, Setup, positions_of
from recguide.sim.adaptive import Equation3
from recguide.sim.batching import Batching
from recguide.sim.policies import BlockPolicy, ByLoad, Fixed, Tally
from recguide.sim.rounds import AR, Ints
from recguide.sim.steps import Work, choose_blocks, count_rounds
from recguide.traces.errors import InputError


@dataclass(frozen=True, slots=True)
class Blocks:
    """Who takes part, at which block sizes, and the tokens that each is filled up to."""

    lives: list[Live]
    sizes: list[int]
    filled: list[int]
    chosen: int | Ints
    """The sizes as they were chosen: one for all, or those of each."""


class LinearWay:
    """Steps of a draft forward and a verify forward."""

    masks = 0

    def __init__(self, setup: Setup, policy: BlockPolicy, batching: Batching) -> None:
        self.setup, self.policy, self.batching = setup, policy, batching
        self.tallies: dict[int, Tally] | None = {} if getattr(policy, "signal", None) is not None else None
        self.watch = Stopwatch(setup.forwards.device)
        self._last = 0

    def plan(self, running: Sequence[Live], step: int) -> Planned:
        """Ask the policy, and take along whom the batching chooses."""
        wanted = _with_wishes(self.policy(seen_of(running, self.tallies)), running)
        largest = room_for(running, self.setup.block_sizes, self.setup.max_context)
        waited = np.array([step - live.ran for live in running])
        chosen, rows = choose_blocks(wanted, largest, waited, self.batching, self._last)
        lives = list(running) if rows is None else [running[row] for row in rows.tolist()]
        sizes = [chosen] * len(lives) if isinstance(chosen, int) else chosen.tolist()
        self._check(sizes)
        filled = [max(sizes)] * len(sizes) if self.batching.padded else sizes
        return Planned(_work(lives, sizes, filled), rows, Blocks(lives, sizes, filled, chosen))

    def rehearse(self, lives: Sequence[Live]) -> Iterator[Planned]:
        """At every block size that the policy may choose, as far as that is known."""
        for size in _choices(self.policy, (AR, *self.setup.block_sizes)):
            sizes = [size] * len(lives)
            yield Planned(_work(lives, sizes, sizes), None, Blocks(list(lives), sizes, sizes, size))

    def _check(self, sizes: Sequence[int]) -> None:
        allowed = (AR, *self.setup.block_sizes)
        wrong = next((size for size in sizes if size not in allowed), None)
        if wrong is not None:
            raise InputError(f"policy: found block size {wrong}, allowed: {', '.join(map(str, allowed))}")

    def run(self, planned: Planned) -> list[Change]:
        """Draft and verify; the host is asked for nothing in between."""
        blocks: Blocks = planned.what
        forwards, mask_id, shift = self.setup.forwards, self.setup.mask_id, self.setup.shift
        rounds = list(zip(blocks.lives, blocks.sizes, blocks.filled, strict=True))
        drafts = [draft_piece(live, size, fill, mask_id, shift) for live, size, fill in rounds if fill > AR]
        verifies = [verify_piece(live, size, fill, mask_id) for live, size, fill in rounds]
        statistics = []
        if drafts:
            self.watch.run(lambda: statistics.append(forwards.run(drafts)))
            statistics.append(forwards.run(verifies, _fill(verifies, blocks.sizes)))
        else:
            statistics.append(forwards.run(verifies))
        return self._changes(blocks, forwards.read(*statistics))

    def _changes(self, blocks: Blocks, found: Scores) -> list[Change]:
        """What the scores of all drafts, and behind them of all verifies, come to."""
        sizes = np.array(blocks.sizes)
        drafted = np.where(sizes > AR, sizes, 0)
        draft_at = np.cumsum(drafted) - drafted
        verify_at = drafted.sum() + np.cumsum(sizes) - sizes
        changes: list[Change | None] = [None] * len(sizes)
        for size in set(blocks.sizes):
            places = np.flatnonzero(sizes == size)
            lives = [blocks.lives[place] for place in places.tolist()]
            made = self._rounds(lives, size, found, draft_at[places], verify_at[places])
            for place, change in zip(places.tolist(), made, strict=True):
                changes[place] = change
        return [change for change in changes if change is not None]

    def _rounds(self, lives: list[Live], size: int, found: Scores, draft_at: Ints, verify_at: Ints) -> list[Change]:
        """The rounds of requests with the same block size."""
        positions, judge, drafts = positions_of(lives), self.setup.judge, size > AR
        seen = found.at(spread(verify_at, size))
        bad = is_broken(seen, size)
        verified = judge.verified(lives, positions, size, seen)
        block = np.zeros((len(lives), 0), np.int64)
        if drafts:
            seen = found.at(spread(draft_at, size))
            bad_draft = is_broken(seen, size, 1)
            drafted = judge.drafted(lives, "seeded", positions, size, seen)
            block = drafted.first.reshape(-1, size)[:, 1:]
        took = accepted(lives, block, verified.first.reshape(-1, size))
        emitted, accept_lens = took.emitted.tolist(), took.accept_len.tolist()
        tokens, entropies = verified.first.reshape(-1, size).tolist(), verified.entropy.reshape(-1, size).tolist()
        changes = []
        for i, live in enumerate(lives):
            if bad[i] or (drafts and bad_draft[i]):
                changes.append(Change(live, error=VERIFY_BROKEN if bad[i] else DRAFT_BROKEN))
                continue
            count, whole = emitted[i], accept_lens[i]
            draft = Unmade(live.tokens[-1], drafted, i * size, size, live.cached) if drafts else None
            flags = outcome_of(count < whole, drafts)
            changes.append(Change(live, size, whole, tokens[i][:count], entropies[i][:count], flags, None, draft))
        return changes

    def told(self, planned: Planned, changes: Sequence[Change], seconds: float) -> None:
        """Book the rounds for policies that learn from them."""
        blocks: Blocks = planned.what
        if isinstance(blocks.chosen, int):
            self._last = blocks.chosen
        if self.tallies is not None:
            tokens = [len(change.tokens) for change in changes]
            count_rounds(self.tallies, blocks.chosen, tokens, seconds / len(changes))

    def draft_seconds(self, planned: Planned, seconds: float) -> float:
        """As the device's clock measured it."""
        return self.watch.take()


def _choices(policy: BlockPolicy, allowed: Sequence[int]) -> Sequence[int]:
    if isinstance(policy, Fixed):
        return (policy.block_size,)
    if isinstance(policy, ByLoad):
        return sorted({size for _, size in policy.ranges})
    if isinstance(policy, Equation3):
        # the tables hold what it chooses, and before the first round the cold start
        return sorted({*policy.tables.ravel().tolist(), *policy.cold_start.tolist()})
    return allowed


def _with_wishes(chosen: int | Ints, running: Sequence[Live]) -> int | Ints:
    """What the policy chose, but for requests that ask for a block size of their own."""
    asked = np.array([live.wish.block_size or 0 for live in running])
    return np.where(asked > 0, asked, chosen) if asked.any() else chosen


def _work(lives: Sequence[Live], sizes: Sequence[int], filled: Sequence[int]) -> Work:
    """Query tokens as the simulator counts them."""
    context, tokens = sum(live.cached for live in lives), sum(filled)
    drafted = sum(fill for fill in filled if fill > AR)
    return Work(0.0, max(sizes), len(lives), tokens, context, drafted, 2 * (tokens - sum(sizes)))


def _fill(verifies: Sequence[Piece], sizes: Sequence[int]) -> Fill:
    """The places of draft tokens in the verify, and the scores of the draft that they come from."""
    size, lens = np.array(sizes), np.array([len(piece.layout) for piece in verifies])
    drafted = np.where(size > AR, size, 0)
    tokens, scores, drafts = np.cumsum(lens) - lens, np.cumsum(drafted) - drafted, np.maximum(drafted - 1, 0)
    # the n-th draft token of a request, from 1 on
    nth = np.arange(drafts.sum()) - np.repeat(np.cumsum(drafts) - drafts, drafts) + 1
    return np.repeat(tokens, drafts) + nth, np.repeat(scores, drafts) + nth
