"""Steps of the joint policy (`joint.py`), replayed from a dense trace."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.sim.chances import MOST_CORRECTIONS
from recguide.sim.costs import CostModel
from recguide.sim.history import Floats
from recguide.sim.joint import Decisions, Joint, runnable
from recguide.sim.oneforward import kind_of
from recguide.sim.overlap import CONTINUED, CORRECTED, SEEDED, Bools, Outcome, Overlap, draft_of, places
from recguide.sim.rounds import AR, Ints, Rounds
from recguide.sim.running import Running
from recguide.sim.steps import Work
from recguide.traces.dense import matched_lens

SOURCES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Plays:
    """A round from everywhere, for drafts of each block size and source: [sizes, sources, rows, ...]."""

    accept_len: Ints
    emitted: Ints
    position: Ints
    """[..., 3] Of correction branches."""
    chance: Floats
    """[..., 4] Of use, that of the continuation last; of whatever may not run it is 0."""
    used: Ints
    """[...] Which of the four would be used, or -1."""
    bonus: Bools
    """[sizes, rows] Whether a continuation from this row has its first token right."""


def plays_of(rounds: Rounds, policy: Joint) -> Plays:
    """Everything that follows from a row alone."""
    sizes = policy.fitted.candidates
    bonus = np.stack([rounds.drafts["continuation", size].match & np.uint32(1) != 0 for size in sizes])
    parts = [[_play(rounds, policy, size, source) for source in (SEEDED, CONTINUED)] for size in sizes]
    # a right correction is drafted from the true prefix, as any seeded draft

    def of(part: int) -> NDArray[Any]:
        return np.stack([np.stack([seeded[part], seeded[part], continued[part]]) for seeded, continued in parts])

    return Plays(of(0), of(1), of(2), of(3), of(4), bonus)


def _play(rounds: Rounds, policy: Joint, size: int, source: int) -> tuple[Ints, Ints, Ints, Floats, Ints]:
    match, second, margin = draft_of(rounds, Overlap(size), source)
    position, left, cached = places(rounds)
    accepted = matched_lens(match) + 1
    emitted = np.minimum(accepted, left)
    limit, room = rounds.max_output_tokens - position, rounds.max_context - cached
    branched, chance = runnable(policy.chances, margin, np.full(len(margin), size), limit, room)
    right = (second >> np.minimum(accepted - 1, 31).astype(np.uint32)) & np.uint32(1) != 0
    hit = (branched == accepted[:, None]) & (right & (accepted < size))[:, None]
    used = np.where(hit.any(axis=1), hit.argmax(axis=1), -1)
    used = np.where(emitted < left, np.where(accepted == size, MOST_CORRECTIONS, used), -1)
    return accepted, emitted, branched, chance, used


class JointSteps:
    """Every forward carries each running request's next need, branches and block sizes by the policy."""

    def __init__(self, rounds: Rounds, costs: CostModel, policy: Joint) -> None:
        self.rounds, self.costs, self.policy = rounds, costs, policy
        self.decisions = Decisions(policy, costs if policy.costs is None else policy.costs)
        self.sizes = self.decisions.sizes
        ready = policy.prepared
        self.plays = ready[1] if ready is not None and ready[0] is rounds else plays_of(rounds, policy)
        self.num_rows = len(rounds.finished)
        self.rows: Ints | None = None
        self.outcomes: list[int] | None = []
        nothing = np.zeros(0, np.int64)
        self._entry = self._next = self._drafting = self._draft_size = self._sizes = nothing
        self._taken = np.zeros((0, 4), bool)

    def start(self, running: Running, step: int) -> Work:
        """Drafts for those that hold none, and the round of everyone else with the branches that pay."""
        at, held, count = running.at, running.held, len(running.at)
        room = self._room(running)
        plain = room < self.sizes[0]
        holds = (held >= 0) & (held % self.num_rows == at) & (self._size_of(held) <= room)
        drafts = ~holds & ~plain
        value = self._value(running)
        self._drafting = np.flatnonzero(drafts)
        self._draft_size = self.decisions.first_size(value[self._drafting], count, room[self._drafting])
        emitting = np.flatnonzero(~drafts)
        self.rows = emitting if len(self._drafting) else None
        self._entry = np.where(plain, -1, held)[emitting]
        self._sizes = np.where(self._entry < 0, AR, self._size_of(self._entry))
        self._plan(value[emitting], count)
        return self._work(count, running.context_tokens)

    def _room(self, running: Running) -> Ints:
        largest = running.largest
        return np.full(len(running.at), self.sizes[-1]) if largest is None else largest

    def _size_of(self, entry: Ints) -> Ints:
        found: Ints = self.sizes[np.maximum(entry, 0) // (SOURCES * self.num_rows)]
        return found

    def _value(self, running: Running) -> Floats:
        """[requests, sizes] Expected tokens of a round; clairvoyant: those of the round at hand."""
        if self.policy.clairvoyant:
            return self.plays.emitted[:, SEEDED, running.at].T.astype(np.float64)
        return self.decisions.value(running.look())

    def _plan(self, value: Floats, count: int) -> None:
        """Branches and the next block size of those that emit."""
        size, source, row = self._unpacked(self._entry)
        chance = self.plays.chance[size, source, row] * (self._entry >= 0)[:, None]
        if self.policy.clairvoyant:
            chance, value = self._known(size, source, row)
        self._next, self._taken = self.decisions.plan(value, chance, count)

    def _known(self, size: Ints, source: Ints, row: Ints) -> tuple[Floats, Floats]:
        """The same with what will be: 1 for the branch that is used, and the tokens of the round behind it."""
        used = self.plays.used[size, source, row]
        after = row + self.plays.emitted[size, source, row]
        hit = np.arange(4) == used[:, None]
        whole = self.plays.bonus[:, np.minimum(row + self.sizes[size] - 1, self.num_rows - 1)].any(axis=0)
        hit[:, MOST_CORRECTIONS] &= whole
        value = self.plays.emitted[:, SEEDED, np.minimum(after, self.num_rows - 1)].T
        return hit.astype(np.float64), value.astype(np.float64)

    def _unpacked(self, entry: Ints) -> tuple[Ints, Ints, Ints]:
        entry = np.maximum(entry, 0)
        return entry // (SOURCES * self.num_rows), entry // self.num_rows % SOURCES, entry % self.num_rows

    def _work(self, count: int, context: int) -> Work:
        drafted = int(self.sizes[self._draft_size].sum())
        verified = int(self._sizes.sum())
        tokens = verified + int((self._taken.sum(axis=1) * self.sizes[self._next]).sum())
        largest = int(self._sizes.max(initial=0))
        kind = kind_of("rows", bool(len(self._drafting)), tokens, verified, largest)
        curve = self.costs.curve((kind,), count, drafted + tokens)
        seconds, outside = curve(context), not curve.covers(context)
        seconds += self.costs.step_host_s("rows", (count, drafted + tokens), (len(self._sizes), verified))
        if not tokens:
            return Work(seconds, int(self.sizes[self._draft_size].max()), count, 0, context, drafted, 0, outside)
        return Work(seconds, largest, count, drafted + tokens, context, 0, 0, outside)

    def finish(self, running: Running, step: int) -> tuple[list[int], list[int]]:
        """Whoever drafted holds that draft now; everyone else emits, and may hold the draft of a branch."""
        stride = SOURCES * self.num_rows
        running.held[self._drafting] = self._draft_size * stride + SEEDED * self.num_rows + running.at[self._drafting]
        if not len(self._sizes):
            return [], []
        size, source, row = self._unpacked(self._entry)
        plain = self._entry < 0
        accepted = np.where(plain, 1, self.plays.accept_len[size, source, row])
        emitted = np.where(plain, 1, self.plays.emitted[size, source, row])
        tokens = running.emit(emitted, accepted if running.resized else None, self._sizes, self.rows, step)
        following, flags = self._outcome(size, source, row, emitted, accepted, plain)
        running.held[slice(None) if self.rows is None else self.rows] = following
        if self.outcomes is not None:
            self.outcomes += flags.tolist()
        return tokens, self._sizes.tolist()

    def _outcome(
        self, size: Ints, source: Ints, row: Ints, emitted: Ints, accepted: Ints, plain: Bools
    ) -> tuple[Ints, Ints]:
        """The drafts held afterwards, -1 for none, and what became of branches."""
        lines = np.arange(len(row))
        position = self.plays.position[size, source, row]
        uncut = (emitted == accepted) & ~plain
        located = ((position == accepted[:, None]) & self._taken[:, :MOST_CORRECTIONS]).any(axis=1) & uncut
        whole = (accepted == self.sizes[size]) & self._taken[:, MOST_CORRECTIONS] & uncut
        used = self.plays.used[size, source, row]
        corrected = located & (used >= 0) & (used < MOST_CORRECTIONS)
        corrected &= self._taken[lines, np.maximum(used, 0)]
        after = np.minimum(row + emitted, self.num_rows - 1)
        continued = whole & (used == MOST_CORRECTIONS) & self.plays.bonus[self._next, np.maximum(after - 1, 0)]
        following = (self._next * SOURCES + np.where(continued, CONTINUED, CORRECTED)) * self.num_rows + after
        flags = (
            located * Outcome.CORRECTION_COVERED.value
            + corrected * Outcome.CORRECTION_REUSED.value
            + whole * Outcome.CONTINUATION_COVERED.value
            + continued * Outcome.CONTINUATION_REUSED.value
            + ((source == SEEDED) & ~plain) * Outcome.DRAFTED.value
            + (accepted > emitted) * Outcome.CUT.value
            + self._taken.any(axis=1) * Outcome.PREPARED.value
        )
        return np.where(corrected | continued, following, -1), flags
