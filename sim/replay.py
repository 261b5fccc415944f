"""Serving recorded requests on one simulated GPU: prefills and batched rounds, one event each (paper, section 5.3)."""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from recguide.sim.batching import Batching, fullest_bucket
from recguide.sim.costs import PREFILL, CostModel
from recguide.sim.curves import Curve
from recguide.sim.policies import Policy
from recguide.sim.rounds import Ints, Rounds
from recguide.sim.running import Running

PREFILL_STEP = 0
"""Stands where a step has its block size."""
MAX_BATCHED_TOKENS = 2048
"""Prompt tokens of one prefill step; a longer prompt has a step of its own."""


class Step(NamedTuple):
    """One batched step of the GPU."""

    start_s: float
    seconds: float
    block_size: int
    """``PREFILL_STEP``, or 1: one decode forward, or B: a draft and a verify forward."""
    requests: int
    query_tokens: int
    """Of each of its forwards."""
    context_tokens: int
    """Cached before the step, summed over its requests."""
    in_flight: int
    """Requests sent and not finished when it started."""


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What happened, as flat arrays: one entry a sent request, a step, or an emission (a request in a step)."""

    concurrency: int
    request: Ints
    """[sent] Its row in the trace."""
    prompt_tokens: Ints
    output_tokens: Ints
    sent_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    finished_s: NDArray[np.float64]
    steps: dict[str, NDArray[Any]]
    """[steps] By the field names of ``Step``."""
    extrapolated: NDArray[np.bool_]
    """[steps] Whether its cost lies outside what was profiled."""
    emission_request: Ints
    """[emissions] The sent request that emitted; emissions are in order of time, those of a step together."""
    emission_tokens: Ints
    emission_step: Ints


def replay(
    rounds: Rounds,
    costs: CostModel,
    policy: Policy,
    *,
    concurrency: int,
    order: Sequence[int],
    batching: Batching = fullest_bucket,
    max_batched_tokens: int = MAX_BATCHED_TOKENS,
) -> Replay:
    """Serve the recorded requests named in ``order`` with ``concurrency`` of them in flight (closed loop).

    The next request is sent the moment one finishes. Prompts go first: a waiting one is prefilled in the next step,
    together with others up to ``max_batched_tokens``, and its prefill emits the first token.
    """
    if concurrency < 1 or not len(order):
        raise ValueError(f"concurrency {concurrency}, requests {len(order)}: allowed: at least 1 of each")
    env = simpy.Environment()
    server = _Server(rounds, costs, policy, batching, max_batched_tokens, np.asarray(order, np.int64))
    server.send(min(concurrency, len(order)), env.now)
    env.process(_serve(env, server))
    env.run()
    return server.record(concurrency)


def _serve(env: simpy.Environment, server: "_Server") -> Generator[simpy.Event]:
    while server.has_work:
        step = server.start(env.now)
        yield env.timeout(step.seconds)
        server.finish(step, env.now)


class _Server:
    """One GPU: the requests that wait for their prefill, those that run, and the log of what happened."""

    def __init__(
        self,
        rounds: Rounds,
        costs: CostModel,
        policy: Policy,
        batching: Batching,
        max_batched_tokens: int,
        order: Ints,
    ) -> None:
        self.rounds, self.costs, self.policy, self.batching = rounds, costs, policy, batching
        self.max_batched_tokens, self.order = max_batched_tokens, order
        self.prompt_tokens: list[int] = rounds.prompt_tokens[order].tolist()
        self.num_sent = 0
        self.waiting: deque[int] = deque()
        self.running = Running(rounds)
        self.batch: list[int] = []
        """Sent requests of the current step."""
        self.rows: Ints | None = None
        """Their places among the running ones; None when all of those run."""
        self.sent_s, self.first_token_s, self.finished_s = np.full((3, len(order)), np.nan)
        self.steps: list[Step] = []
        self.emission_request: list[int] = []
        self.emission_tokens: list[int] = []

    @property
    def has_work(self) -> bool:
        return bool(self.running.ids or self.waiting)

    def send(self, count: int, now: float) -> None:
        """Clients send the next requests of the order, as many as there are."""
        sent = range(self.num_sent, min(self.num_sent + count, len(self.order)))
        self.waiting.extend(sent)
        self.sent_s[sent.start : sent.stop] = now
        self.num_sent = sent.stop

    def start(self, now: float) -> Step:
        """The next step, and what it will take."""
        step = self._prefill(now) if self.waiting else self._round(now)
        self.steps.append(step)
        return step

    def finish(self, step: Step, now: float) -> None:
        """Book what the step emitted; whoever finishes makes room for a request that is sent now."""
        if step.block_size == PREFILL_STEP:
            self.first_token_s[self.batch] = now
            self.running.join(self.batch, self.order[self.batch], len(self.steps))
            self.emission_tokens += [1] * len(self.batch)
        else:
            self.emission_tokens += self.running.advance(step.block_size, self.rows, len(self.steps))
        self.emission_request += self.batch
        finished = self.running.leave()
        if finished:
            self.finished_s[finished] = now
            self.send(len(finished), now)

    def _prefill(self, now: float) -> Step:
        in_flight = len(self.waiting) + len(self.running.ids)
        self.batch, tokens = [], 0
        while self.waiting:
            prompt = self.prompt_tokens[self.waiting[0]]
            if self.batch and tokens + prompt > self.max_batched_tokens:
                break
            self.batch.append(self.waiting.popleft())
            tokens += prompt
        seconds = _curve(self.costs, PREFILL_STEP, tokens)(0)
        return Step(now, seconds, PREFILL_STEP, len(self.batch), tokens, 0, in_flight)

    def _round(self, now: float) -> Step:
        running = self.running
        block_size = self._plan()
        if block_size not in self.rounds.emitted:
            self.rounds.check(block_size)
        self.batch, context = running.ids, running.context_tokens
        if self.rows is not None:
            self.batch, context = [running.ids[row] for row in self.rows.tolist()], running.cached(self.rows)
        count = len(self.batch)
        seconds = self.costs.round_curve(block_size, count)(context)
        return Step(now, seconds, block_size, count, count * block_size, context, len(running.ids))

    def _plan(self) -> int:
        """The block size of the next round; the places of its requests go to ``rows``."""
        self.rows = None
        wanted = self.policy(self.running.seen)
        if self.rounds.largest is not None:
            wanted = np.minimum(wanted, self.rounds.largest.take(self.running.at))
        if not isinstance(wanted, np.ndarray):
            return int(wanted)
        expected = self.running.at.shape
        if wanted.shape != expected:
            raise ValueError(f"policy: found block sizes of shape {wanted.shape}, allowed: one, or shape {expected}")
        if not (wanted == wanted[0]).all():
            self.rows = self.batching(wanted, len(self.steps) - self.running.ran)
        return int(wanted[0 if self.rows is None else self.rows[0]])

    def record(self, concurrency: int) -> Replay:
        """The log as arrays."""
        # every count of a step is far below 2^53, so a table of floats holds it exactly
        table = np.fromiter(chain.from_iterable(self.steps), np.float64).reshape(-1, len(Step._fields))
        steps = {name: table[:, i].astype(Step.__annotations__[name]) for i, name in enumerate(Step._fields)}
        return Replay(
            concurrency=concurrency,
            request=self.order,
            prompt_tokens=self.rounds.prompt_tokens[self.order],
            output_tokens=self.rounds.output_tokens[self.order],
            sent_s=self.sent_s,
            first_token_s=self.first_token_s,
            finished_s=self.finished_s,
            steps=steps,
            extrapolated=_extrapolated(self.costs, steps),
            emission_request=np.array(self.emission_request),
            emission_tokens=np.array(self.emission_tokens),
            emission_step=np.repeat(np.arange(len(self.steps)), steps["requests"]),
        )


def _extrapolated(costs: CostModel, steps: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    tokens = steps["query_tokens"].astype(np.int64)
    shapes, shape_of = np.unique(steps["block_size"] << 48 | tokens, return_inverse=True)
    curves = [_curve(costs, shape >> 48, shape & (1 << 48) - 1) for shape in shapes.tolist()]
    low, high = np.array([(curve.low, curve.high) for curve in curves])[shape_of].T
    outside: NDArray[np.bool_] = (steps["context_tokens"] < low) | (steps["context_tokens"] > high)
    return outside


def _curve(costs: CostModel, block_size: int, query_tokens: int) -> Curve:
    if block_size == PREFILL_STEP:
        return costs.curve(PREFILL, 1, query_tokens)
    return costs.round_curve(block_size, query_tokens // block_size)
