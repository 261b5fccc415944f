"""Rounds of requests that SGLang schedules: the ways and policies of our engine, one scheduler step after the other.

Who runs is SGLang's to say, and what a step does with them is the policy's: which bucket takes part, who drafts and who
verifies. Those who take no part emit nothing and wait.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from recguide.engine.forwards import CAPTURE_AFTER
from recguide.engine.outcomes import Change, apply
from recguide.engine.requests import Live, Roster
from recguide.engine.runlog import RunLog
from recguide.engine.scores import Scores, is_broken
from recguide.engine.served import ServedRun
from recguide.engine.wayof import way_of
from recguide.engine.ways import VERIFY_BROKEN, Planned, Setup, positions_of
from recguide.sim.batching import Batching
from recguide.sim.history import Signal
from recguide.sim.log import Step
from recguide.sim.methods import Policy
from recguide.sim.steps import Work

MOST_STEPS = 2
"""Of one call: a step of drafts alone emits nothing, and the one behind it verifies them."""


class ScheduledRounds:
    """Steps of one policy; ``keep`` keeps the log of all of them, and ``clock`` gives seconds."""

    def __init__(
        self,
        setup: Setup,
        policy: Policy,
        batching: Batching,
        keep: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.setup, self.way = setup, way_of(policy, setup, batching)
        self.signal: Signal | None = getattr(policy, "signal", None)
        self.keep, self.clock = keep, clock
        self.restart()

    def restart(self) -> None:
        """Forget what was served."""
        self.log, self.served = RunLog(self.keep), ServedRun()
        self._started = self.clock()
        self._open: set[int] = set()
        self.preemptions = self.recomputed_tokens = 0

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.clock() - self._started

    def arrived(self, prompt_tokens: int, row: int = 0) -> int:
        """A request has come in; gives its number."""
        number = self.log.send(row, prompt_tokens, self.now, self.now)
        self._open.add(number)
        return number

    def ended(self, live: Live, reason: str) -> None:
        """A request has ended for a reason of SGLang's own: an abort, or a stop string."""
        if live.number in self._open:
            self._open.discard(live.number)
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
        for live in lives:
            live.ran = self.log.totals.steps + 1
        self._done(changes, work, started, 0.0, None)
        return changes

    def prepare(self, nobody: Live, counts: Iterable[int]) -> int:
        """Run a round of every kind for so many requests each, so that the graphs are there; gives how many ran.

        All of them are ``nobody``'s, and nothing is in the log.
        """
        count, self.setup.forwards.capture_after = 0, 1
        for requests in counts:
            for planned in self.way.rehearse([nobody] * requests):
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
        return changes

    def _step(self, running: Sequence[Live]) -> list[Change]:
        started, lives = self.now, Roster()
        # where they stand is asked for more than once
        lives.extend(running)
        planned = self.way.plan(lives, self.log.totals.steps)
        changes = self.way.run(planned)
        seconds = self.now - started
        self._done(changes, planned.work, started, self.way.draft_seconds(planned, seconds), planned)
        return changes

    def _done(self, changes: list[Change], work: Work, started: float, draft_s: float, planned: Planned | None) -> None:
        """Let requests be what the step made of them, and keep what there is to be kept."""
        seconds = self.now - started
        apply(changes, None if planned is None else self.signal, self.log.totals.steps + 1)
        if planned is not None:
            self.way.told(planned, changes, seconds)
        device = (draft_s, *self.setup.forwards.spent())
        self.log.step(Step(started, len(self._open), *work._replace(seconds=seconds)), device, None, changes)
        if self.keep:
            self.served.see(changes)
        for change in changes:
            if change.live.finish_reason is not None:
                self.ended(change.live, change.live.finish_reason)
