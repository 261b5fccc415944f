"""What the engine did, in the simulator's own form: the log of its steps and emissions, with measured times."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recguide.engine.outcomes import Change
from recguide.engine.requests import Live
from recguide.sim.arrivals import Arrival
from recguide.sim.log import PREFILL_STEP, Log, Replay, Step
from recguide.sim.rounds import AR
from recguide.sim.steps import Work

Spent = tuple[float, float, float]
"""Seconds of a step's draft, of all its forwards, and those that the host waited for them."""


@dataclass(slots=True)
class Totals:
    """Sums over everything served so far."""

    requests: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """Requests by the reason why they ended."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    rounds: int = 0
    """With a draft, verified."""
    round_tokens: int = 0
    """That these emitted."""
    seconds: float = 0.0
    """Of steps."""


class RunLog:
    """A run while it happens; requests are numbered in the order in which they were sent.

    Without ``keep`` there are only totals, so that memory does not grow with what was served.
    """

    def __init__(self, keep: bool = True) -> None:
        self.totals = Totals()
        self.log = Log() if keep else None
        self.draft_s: list[float] = []
        """Of each step, the seconds of its draft forward."""
        self.forward_s: list[float] = []
        """Of each step, the seconds of all its forwards by the device's clock."""
        self.waited_s: list[float] = []
        """Of each step, the seconds in which the host waited for the device; the rest is its own work."""
        self.outcomes: list[int] = []
        """``Outcome`` flags of each emission; 0 for a prefill's."""

    def send(self, row: int, prompt_tokens: int, arrival_s: float, now: float) -> int:
        """A request is sent; gives its number."""
        self.totals.requests += 1
        self.totals.prompt_tokens += prompt_tokens
        if self.log is not None:
            self.log.send(Arrival(arrival_s, row, prompt_tokens, 0), now)
        return self.totals.requests - 1

    def start(self, lives: Sequence[Live], now: float) -> None:
        """A step takes up these requests' prefills, or parts of them."""
        if self.log is not None:
            for live in lives:
                self.log.start(live.number, now)

    def step(self, step: Step, device: Spent, pages: int | None, changes: Sequence[Change]) -> None:
        """A step ended, and this is what changed."""
        emitting = [change for change in changes if change.tokens]
        lens, sizes = [len(change.tokens) for change in emitting], [change.block_size for change in emitting]
        drafted = lens if sizes and min(sizes) > AR else [n for n, size in zip(lens, sizes, strict=True) if size > AR]
        totals = self.totals
        totals.steps += 1
        totals.seconds += step.seconds
        totals.output_tokens += sum(lens)
        totals.rounds += len(drafted)
        totals.round_tokens += sum(drafted)
        if self.log is not None:
            self._keep(self.log, step, device, pages)
            numbers = [change.live.number for change in emitting]
            self.log.emit(numbers, lens, sizes, step.start_s + step.seconds)
            self.outcomes += [change.outcome for change in emitting]

    def _keep(self, log: Log, step: Step, device: Spent, pages: int | None) -> None:
        log.add_step(step)
        for times, spent in zip((self.draft_s, self.forward_s, self.waited_s), device, strict=True):
            times.append(spent)
        if pages is not None:
            log.add_pages(pages)

    def finish(self, live: Live, now: float) -> None:
        """A request has ended; for the log of the run only one with an answer is finished."""
        self.totals.finished[str(live.finish_reason)] += 1
        if self.log is not None:
            self.log.output_tokens[live.number] = len(live.tokens)
            if live.finish_reason in ("eos", "length"):
                self.log.finish(live.number, now)

    def replay(
        self, preemptions: int, recomputed_tokens: int, concurrency: int | None = None, *, closed: bool = False
    ) -> Replay:
        """The run as the simulator would tell it, with the times that were measured."""
        if self.log is None:
            raise ValueError("the engine kept no log")
        known: dict[str, Any] = self.log.arrays()
        return Replay(
            **known,
            concurrency=concurrency,
            closed=closed,
            emission_outcome=np.array(self.outcomes, np.int64),
            preemptions=preemptions,
            recomputed_tokens=recomputed_tokens,
            seams=0,
            cut_rounds=None,
        )


def answered(run: Replay) -> Replay:
    """The run without the requests that got no whole answer; steps stay as they were."""
    kept = np.flatnonzero(np.isfinite(run.finished_s))
    number = np.full(len(run.request), -1)
    number[kept] = np.arange(len(kept))
    emissions = np.flatnonzero(number[run.emission_request] >= 0)
    columns = ("request", "prompt_tokens", "output_tokens", "arrival_s", "sent_s", "started_s", "first_token_s")
    parts = ("emission_tokens", "emission_step", "emission_block_size")
    return replace(
        run,
        **{name: getattr(run, name)[kept] for name in (*columns, "finished_s")},
        **{name: getattr(run, name)[emissions] for name in parts},
        emission_request=number[run.emission_request][emissions],
        emission_outcome=None if run.emission_outcome is None else run.emission_outcome[emissions],
    )


def prefill_work(tokens: int, requests: int, context: int) -> Work:
    """A prefill step, as the simulator counts it."""
    return Work(0.0, PREFILL_STEP, requests, tokens, context)
