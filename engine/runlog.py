"""What the engine did, in the simulator's own form: the log of its steps and emissions, with measured times."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recguide.engine.outcomes import Change
from recguide.engine.requests import Live
from recguide.sim.arrivals import Arrival
from recguide.sim.log import PREFILL_STEP, Log, Replay, Step
from recguide.sim.steps import Work


@dataclass(slots=True)
class RunLog:
    """A run while it happens; requests are numbered in the order in which they were sent."""

    log: Log = field(default_factory=Log)
    draft_s: list[float] = field(default_factory=list)
    """Of each step, the seconds of its draft forward."""
    outcomes: list[int] = field(default_factory=list)
    """``Outcome`` flags of each emission; 0 for a prefill's."""

    @property
    def num_steps(self) -> int:
        """Steps so far."""
        return self.log.num_steps

    def send(self, row: int, prompt_tokens: int, arrival_s: float, now: float) -> int:
        """A request is sent; gives its number."""
        return self.log.send(Arrival(arrival_s, row, prompt_tokens, 0), now)

    def step(
        self,
        started: float,
        in_flight: int,
        work: Work,
        draft_s: float,
        pages: int | None,
        changes: Sequence[Change],
    ) -> None:
        """A step ended, whose work has its seconds, and this is what changed."""
        self.log.add_step(Step(started, in_flight, *work))
        self.draft_s.append(draft_s)
        if pages is not None:
            self.log.add_pages(pages)
        emitting = [change for change in changes if change.tokens]
        numbers = [change.live.number for change in emitting]
        sizes = [change.block_size for change in emitting]
        self.log.emit(numbers, [len(change.tokens) for change in emitting], sizes, started + work.seconds)
        self.outcomes += [change.outcome for change in emitting]

    def start(self, lives: Sequence[Live], now: float) -> None:
        """A step takes up these requests' prefills, or parts of them."""
        for live in lives:
            self.log.start(live.number, now)

    def finish(self, live: Live, now: float) -> None:
        """A request has ended; one without an answer is never finished for the log."""
        self.log.output_tokens[live.number] = len(live.tokens)
        if live.error is None:
            self.log.finish(live.number, now)

    def replay(
        self, preemptions: int, recomputed_tokens: int, concurrency: int | None = None, *, closed: bool = False
    ) -> Replay:
        """The run as the simulator would tell it, with the times that were measured."""
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


def prefill_work(tokens: int, requests: int, context: int) -> Work:
    """A prefill step, as the simulator counts it."""
    return Work(0.0, PREFILL_STEP, requests, tokens, context)
