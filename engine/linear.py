"""Draft, then verify: steps of linear self-speculation at the block sizes that a policy chooses (paper, section 3.1).

A round is two forwards and one answer to the host, at its end. Requests of other block sizes wait for their bucket, or
take part with their own size, without padding or filled up to the largest (section 5.3).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement, pairwise

import numpy as np

from recguide.engine.batches import Runs, draft_batch, fill_of, verify_batch
from recguide.engine.inputs import power_of_2
from recguide.engine.linear_rounds import Blocks, Part, Rounds, Told, changes_of, parts_of, rounds_of
from recguide.engine.outcomes import Change
from recguide.engine.requests import ASKED, CACHED, PAGES_ROW, RAN, SAMPLED, TOKENS, Live, room_for, seen_of, standing
from recguide.engine.scores import Scores, blank
from recguide.engine.ways import Planned, Setup
from recguide.sim.adaptive import Equation3
from recguide.sim.batching import Batching
from recguide.sim.policies import BlockPolicy, ByLoad, Fixed, Tally
from recguide.sim.rounds import AR, Ints
from recguide.sim.sharing import Allocation
from recguide.sim.sizes import filled_up
from recguide.sim.steps import Work, choose_blocks, count_rounds
from recguide.traces.errors import InputError

FEW = 8
"""Requests up to which all mixtures of block sizes are rehearsed."""


class LinearWay:
    """Steps of a draft forward and a verify forward."""

    masks = 0

    def __init__(self, setup: Setup, policy: BlockPolicy, batching: Batching) -> None:
        self.setup, self.policy, self.batching = setup, policy, batching
        self.tallies: dict[int, Tally] | None = {} if getattr(policy, "signal", None) is not None else None
        self._last = 0
        self._rehearsed: set[tuple[int, int]] = set()

    def plan(self, running: Sequence[Live], step: int) -> Planned:
        """Ask the policy, and take along whom the batching chooses."""
        state = standing(running)
        policy = self.policy
        # such a policy looks at nothing
        wanted = policy.block_size if isinstance(policy, Fixed) else policy(seen_of(running, self.tallies))
        wanted = _with_wishes(wanted, state[ASKED])
        largest = room_for(running, self.setup.block_sizes, self.setup.max_context)
        chosen, rows = choose_blocks(wanted, largest, step - state[RAN], self.batching, self._last)
        order = None if isinstance(chosen, int) else np.argsort(chosen, kind="stable")
        at = rows if order is None else order if rows is None else rows[order]
        taken = state.copy() if at is None else state[:, at]
        lives = list(running) if at is None else [running[row] for row in at.tolist()]
        runs = _runs(chosen, len(lives), self.batching.padded)
        self._check(runs)
        return Planned(_work(taken[CACHED], runs), rows, _blocks(lives, runs, chosen, order, taken))

    def rehearse(self, lives: Sequence[Live]) -> Iterator[Planned]:
        """At every block size that the policy may choose, as far as that is known."""
        taken = standing(lives)
        for size in _choices(self.policy, (AR, *self.setup.block_sizes)):
            runs = _runs(size, len(lives), False)
            yield Planned(_work(taken[CACHED], runs), None, _blocks(lives, runs, size, None, taken))
            self._rehearsed.add(_kind(runs))
        if isinstance(self.policy, Allocation):
            order = np.arange(len(lives))
            for each in _mixtures(self.policy.fitted.candidates, len(lives)):
                runs = _runs(each, len(lives), False)
                if (kind := _kind(runs)) not in self._rehearsed:
                    self._rehearsed.add(kind)
                    yield Planned(_work(taken[CACHED], runs), None, _blocks(lives, runs, each, order, taken))

    def _check(self, runs: Runs) -> None:
        allowed = (AR, *self.setup.block_sizes)
        wrong = next((size for size, _, _ in runs if size not in allowed), None)
        if wrong is not None:
            raise InputError(f"policy: found block size {wrong}, allowed: {', '.join(map(str, allowed))}")

    def run(self, planned: Planned) -> list[Change]:
        """Draft and verify; the host is asked for nothing in between."""
        return self.begin(planned)()

    def begin(self, planned: Planned) -> Callable[[], list[Change]]:
        """Launch both."""
        blocks: Blocks = planned.what
        forwards, mask_id, shift = self.setup.forwards, self.setup.mask_id, self.setup.shift
        lives, cached, runs = blocks.lives, blocks.cached, blocks.runs
        seeds, own = np.array([live.tokens[-1] for live in lives]), (blocks.pages, blocks.sampled)
        statistics, fill = [], None
        if runs[-1][1] > AR:
            drafts = draft_batch(lives, cached, seeds, runs, (mask_id, shift)).of(*own)
            statistics.append(forwards.run(drafts))
            fill = fill_of(runs)
        # prepared while the draft runs, and what follows while the verify does
        verify = verify_batch(lives, cached, seeds, runs, mask_id).of(*own)
        statistics.append(forwards.run(verify, fill))
        rounds = rounds_of(blocks, [self._foretold(part) for part in parts_of(blocks, seeds)])
        return lambda: self._changes(rounds, forwards.read(*statistics))

    def _changes(self, rounds: Rounds, found: Scores) -> list[Change]:
        """What became of the requests."""
        parts = [part if part.told else part._replace(told=self._seen(part, found)) for part in rounds.parts]
        return changes_of(rounds._replace(parts=parts), found)

    def _foretold(self, part: Part) -> Part:
        """The part with what the judge says of it, if forwards change nothing about that."""
        if not getattr(self.setup.judge, "foretells", False):
            return part
        nothing = blank(len(part.lives) * part.size)
        return part._replace(told=self._told(part, nothing if part.size > AR else None, nothing))

    def _seen(self, part: Part, found: Scores) -> Told:
        """What it says when they are over."""
        draft = None if part.draft_at is None else found.at(part.draft_at)
        return self._told(part, draft, found.at(part.verify_at))

    def _told(self, part: Part, draft: Scores | None, seen: Scores) -> Told:
        """What the judge makes of the scores of these drafts and of their verification."""
        judge, where = self.setup.judge, (part.positions, part.size)
        verified = judge.verified(part.lives, *where, seen)
        return None if draft is None else judge.drafted(part.lives, "seeded", *where, draft), verified

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
        return self.setup.forwards.watch.first() if blocks.runs[-1][1] > AR else 0.0


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


def _kind(runs: Runs) -> tuple[int, int]:
    """What forwards of these blocks are filled up to: their requests and tokens."""
    return power_of_2(sum([count for _, _, count in runs])), filled_up(sum([size * count for _, size, count in runs]))


def _mixtures(sizes: Sequence[int], count: int) -> Iterator[Ints]:
    """Unequal blocks for so many requests, of about every sum that they can have."""
    if count <= FEW:
        yield from map(np.array, combinations_with_replacement(sizes, count))
        return
    # one after the other gets the next larger size: steps are small beside sums of many
    for small, large in pairwise(sizes):
        for larger in range(count):
            yield np.repeat((small, large), (count - larger, larger))


def _with_wishes(chosen: int | Ints, asked: Ints) -> int | Ints:
    """What the policy chose, but for requests that ask for a block size of their own."""
    return np.where(asked > 0, asked, chosen) if asked.any() else chosen


def _runs(chosen: int | Ints, count: int, padded: bool) -> Runs:
    """Of requests with these block sizes, smaller ones first."""
    if isinstance(chosen, int):
        return ((chosen, chosen, count),)
    each = chosen.tolist()
    sizes = sorted(set(each))
    return tuple([(size, sizes[-1] if padded else size, each.count(size)) for size in sizes])


def _blocks(lives: Sequence[Live], runs: Runs, chosen: int | Ints, order: Ints | None, taken: Ints) -> Blocks:
    """Of requests that stand so."""
    sampled = bool(taken[SAMPLED].any())
    return Blocks(lives, runs, chosen, order, taken[CACHED], taken[TOKENS], taken[PAGES_ROW], sampled)


def _work(cached: Ints, runs: Runs) -> Work:
    """Query tokens as the simulator counts them."""
    tokens = sum([filled * count for _, filled, count in runs])
    drafted = sum([filled * count for _, filled, count in runs if filled > AR])
    padding = 2 * (tokens - sum([size * count for size, _, count in runs]))
    return Work(0.0, runs[-1][0], len(cached), tokens, int(cached.sum()), drafted, padding)
