"""Draft, then verify: steps of linear self-speculation at the block sizes that a policy chooses (paper, section 3.1).

A round is two forwards and one answer to the host, at its end. Requests of other block sizes wait for their bucket, or
take part with their own size, without padding or filled up to the largest (section 5.3).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recguide.engine.batches import draft_batch, fill_of, verify_batch
from recguide.engine.outcomes import Change, Ends, accepted, ends_of, outcome_of
from recguide.engine.requests import ASKED, CACHED, PAGES_ROW, RAN, SAMPLED, TOKENS, Live, room_for, seen_of, standing
from recguide.engine.scores import Scores, Unmade, blank, is_broken, spread
from recguide.engine.ways import DRAFT_BROKEN, VERIFY_BROKEN, Planned, Setup
from recguide.sim.adaptive import Equation3
from recguide.sim.batching import Batching
from recguide.sim.policies import BlockPolicy, ByLoad, Fixed, Tally
from recguide.sim.rounds import AR, Ints
from recguide.sim.sharing import Allocation
from recguide.sim.steps import Work, choose_blocks, count_rounds
from recguide.traces.errors import InputError


@dataclass(frozen=True, slots=True)
class Blocks:
    """Who takes part, at which block sizes, and the tokens that each is filled up to."""

    lives: Sequence[Live]
    sizes: list[int]
    filled: list[int]
    chosen: int | Ints
    """The sizes as they were chosen: one for all, or those of each."""
    cached: Ints
    positions: Ints
    """Output tokens so far."""
    pages: Ints
    """Where in the pool their pages are listed."""
    sampled: bool


class Part(NamedTuple):
    """Requests of a step with the same block size, and what is known of their rounds before these are over."""

    places: Sequence[int]
    lives: Sequence[Live]
    seeds: Ints
    cached: Ints
    positions: Ints
    size: int
    draft_at: slice | Ints | None
    """Which scores are those of the drafts; None where there are none."""
    verify_at: slice | Ints
    ends: Ends
    told: tuple[Scores | None, Scores] | None = None
    """Drafts and verified tokens, where somebody knows them."""


def _parts(blocks: Blocks, seeds: Ints) -> Iterator[Part]:
    lives, count = blocks.lives, len(blocks.lives)
    if len(set(blocks.sizes)) == 1:
        size, total = blocks.sizes[0], count * blocks.sizes[0]
        drafts, verifies = (None, slice(total)) if size == AR else (slice(total), slice(total, 2 * total))
        yield Part(range(count), lives, seeds, blocks.cached, blocks.positions, size, drafts, verifies, ends_of(lives))
        return
    sizes = np.array(blocks.sizes)
    drafted = np.where(sizes > AR, sizes, 0)
    draft_at = np.cumsum(drafted) - drafted
    verify_at = drafted.sum() + np.cumsum(sizes) - sizes
    for size in set(blocks.sizes):
        at = np.flatnonzero(sizes == size)
        some, own, cached = [lives[place] for place in at.tolist()], seeds[at], blocks.cached[at]
        found = spread(draft_at[at], size) if size > AR else None, spread(verify_at[at], size)
        yield Part(at.tolist(), some, own, cached, blocks.positions[at], size, found[0], found[1], ends_of(some))


class LinearWay:
    """Steps of a draft forward and a verify forward."""

    masks = 0

    def __init__(self, setup: Setup, policy: BlockPolicy, batching: Batching) -> None:
        self.setup, self.policy, self.batching = setup, policy, batching
        self.tallies: dict[int, Tally] | None = {} if getattr(policy, "signal", None) is not None else None
        self._last = 0

    def plan(self, running: Sequence[Live], step: int) -> Planned:
        """Ask the policy, and take along whom the batching chooses."""
        state = standing(running)
        policy = self.policy
        # such a policy looks at nothing
        wanted = policy.block_size if isinstance(policy, Fixed) else policy(seen_of(running, self.tallies))
        wanted = _with_wishes(wanted, state[ASKED])
        largest = room_for(running, self.setup.block_sizes, self.setup.max_context)
        chosen, rows = choose_blocks(wanted, largest, step - state[RAN], self.batching, self._last)
        lives, taken = list(running), state.copy() if rows is None else state[:, rows]
        if rows is not None:
            lives = [running[row] for row in rows.tolist()]
        sizes = [chosen] * len(lives) if isinstance(chosen, int) else chosen.tolist()
        self._check(sizes)
        filled = [max(sizes)] * len(sizes) if self.batching.padded else sizes
        return Planned(_work(taken[CACHED], sizes, filled), rows, _blocks(lives, sizes, filled, chosen, taken))

    def rehearse(self, lives: Sequence[Live]) -> Iterator[Planned]:
        """At every block size that the policy may choose, as far as that is known."""
        taken = standing(lives)
        for size in _choices(self.policy, (AR, *self.setup.block_sizes)):
            sizes = [size] * len(lives)
            yield Planned(_work(taken[CACHED], sizes, sizes), None, _blocks(lives, sizes, sizes, size, taken))

    def _check(self, sizes: Sequence[int]) -> None:
        allowed = (AR, *self.setup.block_sizes)
        wrong = next((size for size in set(sizes) if size not in allowed), None)
        if wrong is not None:
            raise InputError(f"policy: found block size {wrong}, allowed: {', '.join(map(str, allowed))}")

    def run(self, planned: Planned) -> list[Change]:
        """Draft and verify; the host is asked for nothing in between."""
        return self.begin(planned)()

    def begin(self, planned: Planned) -> Callable[[], list[Change]]:
        """Launch both."""
        blocks: Blocks = planned.what
        forwards, mask_id, shift = self.setup.forwards, self.setup.mask_id, self.setup.shift
        lives, cached, sizes, filled = blocks.lives, blocks.cached, blocks.sizes, blocks.filled
        seeds, own = np.array([live.tokens[-1] for live in lives]), (blocks.pages, blocks.sampled)
        statistics, fill = [], None
        if max(filled) > AR:
            drafts = draft_batch(lives, cached, seeds, sizes, filled, (mask_id, shift)).of(*own)
            statistics.append(forwards.run(drafts))
            fill = fill_of(sizes, filled)
        # prepared while the draft runs, and what follows while the verify does
        verify = verify_batch(lives, cached, seeds, sizes, filled, mask_id).of(*own)
        statistics.append(forwards.run(verify, fill))
        parts = [self._foretold(part) for part in _parts(blocks, seeds)]
        return lambda: self._changes(parts, forwards.read(*statistics))

    def _changes(self, parts: Sequence[Part], found: Scores) -> list[Change]:
        """What became of the requests, in their order."""
        if len(parts) == 1:
            return self._rounds(parts[0], found)
        changes: dict[int, Change] = {}
        for part in parts:
            changes |= zip(part.places, self._rounds(part, found), strict=True)
        return [changes[place] for place in range(len(changes))]

    def _foretold(self, part: Part) -> Part:
        """The part with what the judge says of it, if forwards change nothing about that."""
        if not getattr(self.setup.judge, "foretells", False):
            return part
        nothing = blank(len(part.lives) * part.size)
        return part._replace(told=self._told(part, nothing if part.size > AR else None, nothing))

    def _told(self, part: Part, draft: Scores | None, seen: Scores) -> tuple[Scores | None, Scores]:
        """What the judge makes of the scores of these drafts and of their verification."""
        judge, where = self.setup.judge, (part.positions, part.size)
        verified = judge.verified(part.lives, *where, seen)
        return None if draft is None else judge.drafted(part.lives, "seeded", *where, draft), verified

    def _rounds(self, part: Part, found: Scores) -> list[Change]:
        """The rounds of requests with the same block size."""
        size, count = part.size, len(part.lives)
        seen = found.at(part.verify_at)
        seeded = None if part.draft_at is None else found.at(part.draft_at)
        drafted, verified = part.told or self._told(part, seeded, seen)
        ids, nats = verified.first.reshape(count, size), verified.entropy.reshape(count, size)
        block = ids[:, :0] if drafted is None else drafted.first.reshape(count, size)[:, 1:]
        took = accepted(part.lives, block, ids, part.ends)
        drafts = None if drafted is None else Unmade(part.seeds, drafted, size, part.cached)
        cut, whole = (outcome_of(flag, drafted is not None) for flag in (True, False))
        rows = took.emitted, took.accept_len, ids.tolist(), nats.tolist(), range(count)
        changes = [
            Change(live, size, many, tokens[:n], entropies[:n], cut if n < many else whole, None, drafts, place)
            for live, n, many, tokens, entropies, place in zip(part.lives, *rows, strict=True)
        ]
        for scores, skip, error in ((seeded, 1, DRAFT_BROKEN), (seen, 0, VERIFY_BROKEN)):
            if scores is not None and scores.first.min() < 0:
                for place in np.flatnonzero(is_broken(scores, size, skip)).tolist():
                    changes[place] = Change(part.lives[place], error=error)
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
        """As the device's clock measured the first forward, if that was one."""
        blocks: Blocks = planned.what
        return self.setup.forwards.watch.first() if max(blocks.filled) > AR else 0.0


def _choices(policy: BlockPolicy, allowed: Sequence[int]) -> Sequence[int]:
    if isinstance(policy, Fixed):
        return (policy.block_size,)
    if isinstance(policy, ByLoad):
        return sorted({size for _, size in policy.ranges})
    if isinstance(policy, Equation3):
        # the tables hold what it chooses, and before the first round the cold start
        return sorted({*policy.tables.ravel().tolist(), *policy.cold_start.tolist()})
    if isinstance(policy, Allocation):
        return (AR, *policy.fitted.candidates)
    return allowed


def _with_wishes(chosen: int | Ints, asked: Ints) -> int | Ints:
    """What the policy chose, but for requests that ask for a block size of their own."""
    return np.where(asked > 0, asked, chosen) if asked.any() else chosen


def _blocks(lives: Sequence[Live], sizes: list[int], filled: list[int], chosen: int | Ints, taken: Ints) -> Blocks:
    """Of requests that stand so."""
    sampled = bool(taken[SAMPLED].any())
    return Blocks(lives, sizes, filled, chosen, taken[CACHED], taken[TOKENS], taken[PAGES_ROW], sampled)


def _work(cached: Ints, sizes: list[int], filled: list[int]) -> Work:
    """Query tokens as the simulator counts them."""
    count, size = len(sizes), sizes[0]
    if filled is sizes and sizes.count(size) == count:
        return Work(0.0, size, count, size * count, int(cached.sum()), size * count if size > AR else 0)
    tokens = sum(filled)
    drafted = sum([fill for fill in filled if fill > AR])
    return Work(0.0, max(sizes), len(sizes), tokens, int(cached.sum()), drafted, 2 * (tokens - sum(sizes)))
