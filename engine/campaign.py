"""One measured run of a campaign: a closed loop of recorded requests on the serving engine."""

import gc
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from recguide.engine.forced import Forced
from recguide.engine.model import Decoder
from recguide.engine.outcomes import Change
from recguide.engine.requests import Live, Wish
from recguide.engine.served import ServedRun
from recguide.engine.serving import Engine, EngineConfig
from recguide.sim.batching import batching_named
from recguide.sim.log import Replay
from recguide.sim.measurement import Seconds, with_ends
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy
from recguide.traces.dense import DenseTrace
from recguide.traces.errors import InputError

WARM_STEPS = 12
"""Of a run that is thrown away, in which kernels are compiled and chosen."""


@dataclass(frozen=True, slots=True)
class Server:
    """What all runs of a campaign have in common."""

    decoder: Decoder
    trace: DenseTrace
    prompts: Mapping[str, Sequence[int]] | None
    """Token ids by request, where the model says what is accepted; None where the trace does."""
    batching: str = "bucket"
    max_batched_tokens: int = Limits().max_batched_tokens
    kv_tokens: int | None = None
    clock: Callable[[], float] = time.perf_counter

    def engine(self, policy: Policy, concurrency: int) -> tuple[Engine, Callable[[int], Live]]:
        """An engine, and what sends it the request of a row of the trace."""
        origin = self.trace.provenance
        pages = None if self.kv_tokens is None else Limits().pages(self.kv_tokens)
        limits = Limits(self.max_batched_tokens, max_running=concurrency, kv_pages=pages)
        config = EngineConfig(origin.block_sizes, limits, origin.max_context, batching_named(self.batching))
        if self.prompts is None:
            judge = Forced(self.trace, self.decoder.config)
            forced = Engine(self.decoder, policy, config, judge, self.clock)
            return forced, lambda row: judge.send(forced, row, 0.0)
        engine, prompts = Engine(self.decoder, policy, config, None, self.clock), self.prompts
        names = [request.request_id for request in self.trace.requests]
        wish = Wish(origin.max_output_tokens)
        return engine, lambda row: engine.add(prompts[names[row]], wish, row, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a run was."""

    run: Replay
    draft_s: Seconds
    forward_s: Seconds
    served: ServedRun | None
    """Where the model said what is accepted."""


def closed_loop(
    server: Server, make: Callable[[], Policy], rows: Sequence[int], concurrency: int, steady_s: float | None
) -> Found:
    """Serve these rows of the trace with so many in flight; the first one is sent at time 0.

    After ``steady_s`` seconds with all places taken no further request is sent, and the run ends with those that were.
    ``make`` gives a fresh policy, for one that learns must not remember the warm-up.
    """
    _warm_up(server, make(), rows[:concurrency], concurrency)
    engine, send = server.engine(make(), concurrency)
    if engine.forwards.graphs:
        engine.prepare([concurrency])
    served = None if server.prompts is None else ServedRun()
    left, until, started = deque(rows), np.inf, engine.now
    while left or engine.in_flight:
        while left and engine.in_flight < concurrency:
            send(left.popleft())
        changes = engine.step()
        if served is not None:
            served.see(changes)
        _check(changes)
        if until == np.inf and steady_s is not None and not engine.scheduler.waiting:
            until = engine.now + steady_s
        if engine.now > until:
            left.clear()
    assert engine.log.log is not None
    run = shifted(engine.replay(concurrency, closed=True), started)
    # of a step that drafts alone the log has the whole time, and the host's around a draft is no forward's
    forward_s = np.array(engine.log.forward_s)
    return Found(run, np.minimum(engine.log.draft_s, forward_s), forward_s, served)


def _check(changes: Sequence[Change]) -> None:
    wrong = next((change.error for change in changes if change.error), None)
    if wrong:
        raise InputError(f"model: a request ended with an error, and so its run says nothing: {wrong}")


def _warm_up(server: Server, policy: Policy, rows: Sequence[int], concurrency: int) -> None:
    """Some steps of an engine of its own, so that nothing of them is left."""
    engine, send = server.engine(policy, concurrency)
    lives = [send(row) for row in rows]
    for _ in range(WARM_STEPS):
        if engine.in_flight:
            engine.step()
    for live in lives:
        engine.cancel(live)
    del engine, send, lives
    gc.collect()
    if server.decoder.device.type == "cuda":
        torch.cuda.empty_cache()


def shifted(run: Replay, started: float) -> Replay:
    """The same with times counted from ``started``."""
    steps = {**run.steps, "start_s": np.maximum(run.steps["start_s"] - started, 0)}
    times = {name: np.maximum(getattr(run, name) - started, 0) for name in ("sent_s", "started_s")}
    return with_ends(replace(run, steps=steps, **times))
