"""A closed loop without the event loop: who takes part in which step, before anyone knows how long steps take.

All requests are there at the start, and the next one is sent when one ends. So nothing depends on the clock, as long
as policies do not: first the steps are found (here), then their times (``recguide.sim.timed``).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recguide.sim.batching import Batching, Choose
from recguide.sim.chains import Chains, LinearChains, OneForwardChains, Standing, own_choices, standing_at
from recguide.sim.lanes import Lane, Layout, lane_of
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy
from recguide.sim.oneforward import OneForward
from recguide.sim.regime import Switching
from recguide.sim.rounds import Ints, Rounds
from recguide.sim.steps import Linear, Method

OVERLAP = -1
"""The load at which rounds take one forward."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a policy plays requests whose next rounds follow from their own rounds and the load."""

    load_of: Callable[[int], int]
    """What it distinguishes among numbers of running requests; ``OVERLAP``: one forward a round."""
    chains: LinearChains | None
    one_forward: OneForwardChains | None
    choose: Choose | None
    """Which bucket goes next among unequal blocks; None: everyone runs."""
    layout: str | None = None
    """The kind of forwards that verify and draft at once; None: there are none, nor outcomes to keep."""
    planner: str = ""
    """Of rounds that draft, then verify, as :func:`recguide.sim.steps.planner_of` says it."""

    def follow(self, load: int, standing: Standing) -> Chains:
        """What requests do from where they stand."""
        chains = self.one_forward if load == OVERLAP else self.chains
        if chains is None:
            raise TypeError("a plan that follows nobody")
        return chains.follow(load, standing)

    def choose_at(self, load: int) -> Choose | None:
        """Which bucket goes next at this load; None: everyone runs."""
        return None if load == OVERLAP else self.choose


def plan_of(rounds: Rounds, policy: Policy, method: Method, batching: Batching) -> Plan | None:
    """The plan of a policy, or None for one that looks at more."""
    if isinstance(method, OneForward):
        return Plan(lambda running: OVERLAP, None, OneForwardChains(rounds, method), None, method.kind)
    if isinstance(method, Switching):
        return _switching(rounds, method, batching)
    own = own_choices(policy)
    if own is None or not isinstance(method, Linear):
        return None
    # where every block fits, a policy that gives one size for all splits nobody off
    choose = None if own.uniform and rounds.largest is None else batching.choose
    return Plan(own.load_of, LinearChains(rounds, own), None, choose, planner=method.planner)


def _switching(rounds: Rounds, method: Switching, batching: Batching) -> Plan | None:
    own = own_choices(method.above.policy)
    if own is None:
        return None
    switch, above = method.switch, own.load_of
    below = OneForwardChains(rounds, method.below)

    def load_of(running: int) -> int:
        return OVERLAP if running <= switch else above(running)

    chains = LinearChains(rounds, own, flagged=True)
    return Plan(load_of, chains, below, batching.choose, method.below.kind, method.above.planner)


class Prefill(NamedTuple):
    """A step that prefills prompts."""

    step: int
    in_flight: int
    requests: list[int]


class Block(NamedTuple):
    """Round steps that follow each other with the same requests running."""

    first_step: int
    steps: int
    in_flight: int
    one_forward: bool


class ClosedLoop:
    """Finds the steps; requests are known by the number in which they were sent, from 0."""

    def __init__(self, rounds: Rounds, plan: Plan, order: Ints, concurrency: int | None, limits: Limits) -> None:
        self.rounds, self.plan, self.order, self.limits = rounds, plan, order, limits
        self.concurrency = concurrency
        self._prompts: list[int] = rounds.prompt_tokens[order].tolist()
        self._outputs: list[int] = rounds.output_tokens[order].tolist()
        self.sent_step, self.start_step, self.end_step = ([0] * len(order) for _ in range(3))
        """Steps before it was sent, before its prefill, and before its last step."""
        self.num_steps = self.num_rounds = 0
        self.prefills: list[Prefill] = []
        self.blocks: list[Block] = []
        self.stretches: list[tuple[Layout, Lane]] = []
        """One for each change of the load: what everyone would have done, and what they did."""
        self._load: int | None = None
        self._known = 0
        """Running requests for which the load is known."""
        self._running = self._num_sent = 0
        self._waiting: deque[int] = deque()
        self._running_since: list[tuple[int, int]] = []
        """Requests that run without entries, each behind the steps that were done when it last ran."""
        self._to_come: dict[int, tuple[int, int]] = {}
        """By request that does not run yet, the place of its first entry and how many it has."""
        self._send(len(order) if concurrency is None else concurrency)
        self._run()

    @property
    def _in_flight(self) -> int:
        return self._running + len(self._waiting)

    def _run(self) -> None:
        while self._waiting or self._running:
            taken = self._take() if self._waiting else []
            if taken:
                self._prefill(taken)
            else:
                self._rounds()

    def _send(self, count: int) -> None:
        for sent in range(self._num_sent, min(self._num_sent + count, len(self.order))):
            self.sent_step[sent] = self.num_steps
            self._waiting.append(sent)
            self._num_sent += 1

    def _take(self) -> list[int]:
        """Requests for the next prefill step: first come, first served."""
        budget, most = self.limits.max_batched_tokens, self.limits.max_running
        taken: list[int] = []
        for sent in self._waiting:
            tokens = self._prompts[sent]
            full = most is not None and len(taken) + self._running >= most
            if full or (taken and tokens > budget):
                break
            taken.append(sent)
            budget -= tokens
        return taken

    def _prefill(self, taken: list[int]) -> None:
        step = self.num_steps
        self.prefills.append(Prefill(step, self._in_flight, taken))
        self.num_steps += 1
        for sent in taken:
            self._waiting.popleft()
            self.start_step[sent] = self.end_step[sent] = step
        staying = [sent for sent in taken if self._outputs[sent] > 1]
        self._running += len(staying)
        for sent in staying:
            self._join(sent)
        self._send(len(taken) - len(staying))

    def _join(self, sent: int) -> None:
        if not self.stretches:
            self._running_since.append((self.num_steps, sent))
            return
        place, count = self._to_come.pop(sent)
        self.stretches[-1][1].join(place, count, self.num_steps, self.num_rounds)

    def _rounds(self) -> None:
        if self._running != self._known:
            self._look()
        layout, lane = self.stretches[-1]
        count, ended = lane.advance(self.num_rounds, self.num_steps)
        self.blocks.append(Block(self.num_steps, count, self._in_flight, self._load == OVERLAP))
        self.num_steps += count
        self.num_rounds += count
        if ended:
            for sent in layout.request[ended].tolist():
                self.end_step[sent] = self.num_steps - 1
            self._running -= len(ended)
            self._send(len(ended))

    def _look(self) -> None:
        """See whether so many running requests are another load."""
        self._known = self._running
        load = self.plan.load_of(self._running)
        if load != self._load:
            self._change(load)

    def _change(self, load: int) -> None:
        """Follow everyone anew at another load: who runs from where they stand, and who is to come from the start."""
        requests, standing = self._left()
        layout = Layout(requests, standing, self.plan.follow(load, standing))
        last = self.stretches[-1][1].last if self.stretches else 0
        # no more run later on than now, and nobody splits one request up
        choose = self.plan.choose_at(load) if self._running > 1 else None
        lane = lane_of(choose, layout, last)
        self.stretches.append((layout, lane))
        places = zip(layout.first.tolist(), layout.counts.tolist(), strict=True)
        self._to_come = dict(zip(requests.tolist(), places, strict=True))
        for ran, sent in sorted(self._running_since):
            lane.join(*self._to_come.pop(sent), ran, self.num_rounds)
        self._load = load

    def _left(self) -> tuple[Ints, Standing]:
        """Requests that have rounds to play, and where they stand."""
        if not self.stretches:
            return np.arange(len(self.order)), standing_at(self.rounds.first[self.order] + 1)
        layout, lane = self.stretches[-1]
        stopped = sorted(lane.stop(self.num_rounds, self.num_steps))
        places = np.array([place for place, _ in stopped], np.int64)
        running = layout.request[places]
        self._running_since = [(ran, sent) for (_, ran), sent in zip(stopped, running.tolist(), strict=True)]
        coming = np.array(sorted(self._to_come), np.int64)
        at_start = standing_at(self.rounds.first[self.order[coming]] + 1)
        return np.concatenate([running, coming]), layout.standing(places).and_then(at_start)
