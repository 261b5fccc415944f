"""Rounds of requests that SGLang schedules: the ways and policies of our engine, one scheduler step after the other.

Who runs is SGLang's to say, and what a step does with them is the policy's: which bucket takes part, who drafts and who
verifies. Those who take no part emit nothing and wait.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple
from weakref import WeakSet

from recguide.engine.forwards import CAPTURE_AFTER
from recguide.engine.outcomes import Change, apply
from recguide.engine.requests import Live, Roster
from recguide.engine.runlog import RunLog, Spent
from recguide.engine.scores import Scores, is_broken
from recguide.engine.served import ServedRun
from recguide.engine.wayof import way_of
from recguide.engine.ways import VERIFY_BROKEN, Planned, Setup, positions_of
from recguide.sim.batching import Batching
from recguide.sim.history import Signal
from recguide.sim.log import Step
from recguide.sim.methods import Policy
from recguide.sim.steps import Work

MOST_STEPS = 3
"""Of one call. A step that nobody is left of emits nothing, nor does one of drafts; the one behind verifies them."""


class Begun(NamedTuple):
    """A step that runs."""

    planned: Planned
    end: Callable[[], list[Change]]
    started: float
    known: dict[int, int]
    """By the number of each request, how many tokens it had."""

    def is_of(self, change: Change) -> bool:
        """Whether its request still stands where it stood."""
        return len(change.live.tokens) == self.known[change.live.number]


class ScheduledRounds:
    """Steps of one policy.

    ``keep`` keeps the log of all of them, and ``clock`` gives seconds. With ``ahead`` the next step is launched as soon
    as one is over, and runs while SGLang deals with its outcome. Who joins meanwhile takes part in the one after that,
    and what is found of those who left is dropped. All of a step is done within an ``aside()``.
    """

    def __init__(
        self,
        setup: Setup,
        policy: Policy,
        batching: Batching,
        keep: bool = False,
        ahead: bool = False,
        aside: Callable[[], AbstractContextManager[None]] = nullcontext,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.setup, self.way = setup, way_of(policy, setup, batching)
        self.signal: Signal | None = getattr(policy, "signal", None)
        self.keep, self.ahead, self.aside, self.clock = keep, ahead, aside, clock
        self._begun: Begun | None = None
        self.restart()

    def restart(self) -> None:
        """Forget what was served; nobody may be."""
        if self._begun is not None:
            with self.aside():
                self._begun.end()
            self.setup.forwards.spent()
        self._begun, self._edge, self._steps = None, 0.0, 0
        self._unkept: list[tuple[Step, Spent, list[Change]]] = []
        self.log, self.served = RunLog(self.keep), ServedRun()
        self._started = self.clock()
        # those that SGLang drops without a word are gone from here too
        self._open: WeakSet[Live] = WeakSet()
        self.preemptions = self.recomputed_tokens = 0

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.clock() - self._started

    def arrived(self, live: Live) -> None:
        """A request has come in, and gets its number."""
        live.number = self.log.send(live.row, len(live.prompt), self.now, self.now)
        self._open.add(live)

    def ended(self, live: Live, reason: str) -> None:
        """A request has ended for a reason of SGLang's own: an abort, or a stop string."""
        if live in self._open:
            self._open.discard(live)
            live.finish_reason = live.finish_reason or reason
            self.log.finish(live, self.now)

    def preempted(self, live: Live) -> None:
        """A request gave way for KV slots, and will be prefilled anew with all that it has emitted."""
        self.preemptions += 1
        self.recomputed_tokens += live.known
        live.held = None

    def prefilled(self, lives: Sequence[Live], found: Scores, work: Work, started: float) -> list[Change]:
        """Prompts have been read to their ends, and this is what was found there; gives their first tokens."""
        verified = self.setup.judge.verified(lives, positions_of(lives), 1, found) if lives else found
        broken = is_broken(verified, 1).tolist()
        tokens, entropies = verified.first.tolist(), verified.entropy.tolist()
        changes = [
            Change(live, error=VERIFY_BROKEN) if bad else Change(live, 0, 1, [token], [entropy])
            for live, bad, token, entropy in zip(lives, broken, tokens, entropies, strict=True)
        ]
        apply(changes, None)
        for live in lives:
            live.ran = self._steps + 1
        # what has been spent by a step that runs is told when that is over
        self._over(changes, work, started, (0.0, 0.0, 0.0) if self._begun else (0.0, *self.setup.forwards.spent()))
        self._keep()
        return changes

    def prepare(self, nobody: Live, counts: Iterable[int]) -> int:
        """Run a round of every kind for so many requests each, so that the graphs are there; gives how many ran.

        All of them are ``nobody``'s, and nothing is in the log.
        """
        count, self.setup.forwards.capture_after = 0, 1
        for requests in counts:
            for planned in self.way.rehearse([nobody] * requests):
                with self.aside():
                    self.way.run(planned)
                self.way.draft_seconds(planned, 0.0)
                count += 1
        self.setup.forwards.spent()
        self.setup.forwards.capture_after = CAPTURE_AFTER
        return count

    def start(self, lives: Sequence[Live]) -> None:
        """A prefill takes up these requests, or parts of them."""
        self.log.start(lives, self.now)

    def step(self, running: Sequence[Live]) -> list[Change]:
        """Take running requests further, until one of them emits or fails; gives the changes of the last step."""
        changes: list[Change] = []
        for _ in range(MOST_STEPS):
            changes = self._step(running)
            if any(change.tokens or change.error for change in changes):
                break
        going = [live for live in running if live.finish_reason is None]
        if self.ahead and going:
            self._begun = self._begin(going)
        # what is kept of a step nobody waits for
        self._keep()
        return changes

    def _begin(self, running: Sequence[Live]) -> Begun:
        started, lives = self.now, Roster()
        # where they stand is asked for more than once
        lives.extend(running)
        planned = self.way.plan(lives, self._steps)
        known = {live.number: len(live.tokens) for live in running}
        with self.aside():
            return Begun(planned, self.way.begin(planned), started, known)

    def _step(self, running: Sequence[Live]) -> list[Change]:
        begun, self._begun = self._begun or self._begin(running), None
        with self.aside():
            found = begun.end()
        here = {live.number for live in running}
        changes = [change for change in found if change.live.number in here and begun.is_of(change)]
        apply(changes, self.signal, self._steps + 1)
        seconds = self.now - max(begun.started, self._edge)
        self.way.told(begun.planned, found, seconds)
        draft_s = self.way.draft_seconds(begun.planned, seconds)
        self._over(changes, begun.planned.work, begun.started, (draft_s, *self.setup.forwards.spent()))
        return changes

    def _over(self, changes: list[Change], work: Work, started: float, spent: Spent) -> None:
        """A step has ended. In the log they follow each other, whatever was launched when."""
        started, now = max(started, self._edge), self.now
        self._steps, self._edge = self._steps + 1, now
        step = Step(started, len(self._open), *work._replace(seconds=now - started))
        self._unkept.append((step, spent, changes))

    def _keep(self) -> None:
        """Keep what there is to be kept of the steps that have ended."""
        for step, spent, changes in self._unkept:
            self.log.step(step, spent, None, changes)
            if self.keep:
                self.served.see(changes)
            for change in changes:
                if change.live.finish_reason is not None:
                    self.ended(change.live, change.live.finish_reason)
        self._unkept.clear()
