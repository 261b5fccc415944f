"""One measured run of a campaign: a closed loop of recorded requests on the serving engine."""

import gc
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recguide.engine.forced import Forced
from recguide.engine.garbage import young_alone
from recguide.engine.outcomes import Change
from recguide.engine.requests import Live, Wish
from recguide.engine.runlog import answered
from recguide.engine.served import ServedRun
from recguide.engine.serving import EngineConfig
from recguide.engine.station import Station
from recguide.sim.batching import batching_named
from recguide.sim.log import Replay
from recguide.sim.measurement import Seconds
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy
from recguide.sim.rounds import Ints
from recguide.sim.stopped import ended
from recguide.traces.dense import DenseTrace, Provenance
from recguide.traces.errors import InputError


def engine_config(
    origin: Provenance, most_running: int, batching: str, max_batched_tokens: int, kv_tokens: int | None
) -> EngineConfig:
    """What an engine takes on that serves requests of such a trace."""
    pages = None if kv_tokens is None else Limits().pages(kv_tokens)
    limits = Limits(max_batched_tokens, max_running=most_running, kv_pages=pages)
    return EngineConfig(origin.block_sizes, limits, origin.max_context, batching_named(batching))


class Server:
    """An engine, and the requests of a trace that it serves.

    ``prompts`` are token ids by request, where the model says what is accepted; None where the trace does.
    """

    def __init__(self, station: Station, trace: DenseTrace, prompts: Mapping[str, Sequence[int]] | None) -> None:
        self.station, self.trace, self.prompts = station, trace, prompts
        self.judge = Forced(trace, station.decoder.config) if prompts is None else None

    def turn_to(self, policy: Policy, concurrency: int) -> None:
        """Serve under this policy, at time 0."""
        self.station.turn_to(policy, concurrency, self.judge)

    def send(self, row: int, limit: int) -> Live:
        """Send the request of a row of the trace, which ends after ``limit`` tokens at the latest."""
        if self.judge is not None:
            live = self.judge.send(self.station, row, 0.0)
        else:
            assert self.prompts is not None
            wish = Wish(self.trace.provenance.max_output_tokens)
            live = self.station.add(self.prompts[self.trace.requests[row].request_id], wish, row, 0.0)
        live.tokens_left = min(live.tokens_left, limit)
        return live


@dataclass(frozen=True, slots=True)
class Stop:
    """When a run ends before its requests do: after a time, one with all places taken, or a number of steps."""

    steady_s: float | None = None
    steps: int | None = None
    whole_s: float = np.inf


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a run was."""

    run: Replay
    draft_s: Seconds
    forward_s: Seconds
    served: ServedRun | None
    """Where the model said what is accepted."""
    stopped: bool


def closed_loop(
    server: Server,
    policy: Policy,
    rows: Sequence[int],
    concurrency: int,
    limits: Sequence[int] | None = None,
    stop: Stop | None = None,
) -> Found:
    """Serve these rows of the trace with so many in flight; the first one is sent at time 0.

    ``limits`` are output tokens of each at most. A run that stops leaves requests where they stand.
    """
    stop, engine = stop or Stop(), server.station
    most = [server.trace.provenance.max_output_tokens] * len(rows) if limits is None else limits
    gc.collect()
    server.turn_to(policy, concurrency)
    served = None if server.prompts is None else ServedRun()
    left, until, started = deque(zip(rows, most, strict=True)), np.inf, engine.now
    stopped = False
    with young_alone():
        while (left or engine.in_flight) and not stopped:
            # clients are none of the server's work
            with engine.stoppable.standing_still():
                while left and engine.in_flight < concurrency:
                    server.send(*left.popleft())
            changes = engine.step()
            # nor is taking note of what happened
            with engine.stoppable.standing_still():
                if served is not None:
                    served.see(changes)
                _check(changes)
            if until == np.inf and stop.steady_s is not None and not engine.scheduler.waiting:
                until = engine.now + stop.steady_s
            over = engine.now > until and not engine.scheduler.waiting
            over |= engine.now - started > stop.whole_s or engine.steps == stop.steps
            stopped = over and bool(left or engine.in_flight)
    return _found(engine, concurrency, started, served, stopped)


def _found(engine: Station, concurrency: int, started: float, served: ServedRun | None, stopped: bool) -> Found:
    if stopped:
        engine.stop()
    log = engine.log
    run = shifted(answered(engine.replay(concurrency, closed=True)), started)
    # of a step that drafts alone the log has the whole time, and the host's around a draft is no forward's
    forward_s = np.array(log.forward_s)
    return Found(run, np.minimum(log.draft_s, forward_s), forward_s, served, stopped)


def staggered(outputs: Ints, concurrency: int, most: int, seed: int) -> Ints:
    """[requests] Limits with which the first C requests, whose outputs have these lengths, do not all end at once.

    One of them ends behind 1/C of its output, one behind 2/C, and so on in a random order, as requests in flight at
    any time of a long run would. The limit of all others is ``most``.
    """
    count = min(concurrency, len(outputs))
    shares = (1 + np.random.default_rng(seed).permutation(count)) / count
    limits = np.full(len(outputs), most)
    limits[:count] = np.maximum(np.ceil(outputs[:count] * shares), 1)
    return limits


def _check(changes: Sequence[Change]) -> None:
    wrong = next((change.error for change in changes if change.error), None)
    if wrong:
        raise InputError(f"model: a request ended with an error, and so its run says nothing: {wrong}")


def shifted(run: Replay, started: float) -> Replay:
    """The same with times counted from ``started``."""
    steps = {**run.steps, "start_s": np.maximum(run.steps["start_s"] - started, 0)}
    times = {name: np.maximum(getattr(run, name) - started, 0) for name in ("sent_s", "started_s")}
    return ended(replace(run, steps=steps, **times))
