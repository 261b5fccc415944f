"""Serving recorded requests on one simulated GPU: prefills and batched rounds, one event each (paper, section 5.3)."""

import math
from collections.abc import Generator, Sequence

import numpy as np
import simpy

from recguide.sim.arrivals import Clients, as_recorded
from recguide.sim.batching import BUCKETED, Batching
from recguide.sim.closed import ClosedLoop, plan_of
from recguide.sim.costs import CostModel
from recguide.sim.figures import Figures
from recguide.sim.history import History
from recguide.sim.log import PREFILL_STEP, Replay, Step
from recguide.sim.memory import MAX_BATCHED_TOKENS, Limits
from recguide.sim.methods import Policy, method_of
from recguide.sim.rounds import Rounds
from recguide.sim.running import Running
from recguide.sim.server import Server
from recguide.sim.stream import Stream
from recguide.sim.timed import replay_of

__all__ = ["MAX_BATCHED_TOKENS", "PREFILL_STEP", "Replay", "Step", "replay", "serve"]


def replay(
    rounds: Rounds,
    costs: CostModel,
    policy: Policy,
    *,
    concurrency: int,
    order: Sequence[int],
    batching: Batching = BUCKETED,
    max_batched_tokens: int = MAX_BATCHED_TOKENS,
    fast: bool = True,
) -> Replay:
    """Serve the recorded requests named in ``order`` with ``concurrency`` of them in flight (closed loop).

    The next request is sent the moment one finishes. Prompts go first: a waiting one is prefilled in the next step,
    together with others up to ``max_batched_tokens``, and its prefill emits the first token.
    """
    if concurrency < 1 or not len(order):
        raise ValueError(f"concurrency {concurrency}, requests {len(order)}: allowed: at least 1 of each")
    limits = Limits(max_batched_tokens=max_batched_tokens)
    clients = Clients(as_recorded(rounds, order), concurrency)
    return serve(rounds, costs, policy, clients, batching=batching, limits=limits, closed=True, fast=fast)


def serve(
    rounds: Rounds,
    costs: CostModel,
    policy: Policy,
    clients: Clients,
    *,
    batching: Batching = BUCKETED,
    limits: Limits | None = None,
    resized: bool = False,
    closed: bool = False,
    fast: bool = True,
) -> Replay:
    """Serve what the clients send, until the last of it is answered.

    ``resized`` says that requests may have other lengths than the recorded ones, and ``closed`` that all of them are
    there at the start, so that finishing requests alone decide when others are sent. ``fast`` leaves the event loop
    out where its outcome is known without it.
    """
    limits = limits or Limits()
    server = server_of(rounds, costs, policy, clients, batching, limits, resized, None)
    plan = plan_of(rounds, policy, server.method, batching) if closed and not resized and limits.none else None
    if fast and plan is not None:
        order = np.array([arrival.row for arrival in clients.rest()], np.int64)
        limit = None if clients.limit == math.inf else int(clients.limit)
        return replay_of(ClosedLoop(rounds, plan, order, limit, limits), costs, batching)
    run(server)
    return server.replay(closed)


def stream(
    rounds: Rounds,
    costs: CostModel,
    policy: Policy,
    clients: Clients,
    figures: Figures,
    *,
    batching: Batching = BUCKETED,
    limits: Limits | None = None,
    closed: bool = False,
) -> dict[str, float | int | None]:
    """Serve as ``serve`` does, and keep nothing but sums: the figures of a run of any length, percentiles to 0.5%."""
    sums = Stream(figures)
    # whoever may have any length counts cut rounds as they happen
    server = server_of(rounds, costs, policy, clients, batching, limits or Limits(), True, sums)
    run(server)
    recomputed, reused = server.recomputed_tokens, server.reused_tokens
    return sums.metrics(server.preemptions, recomputed, reused, server.running.cut_rounds, closed)


def server_of(
    rounds: Rounds,
    costs: CostModel,
    policy: Policy,
    clients: Clients,
    batching: Batching,
    limits: Limits,
    resized: bool,
    log: Stream | None,
) -> Server:
    """The server that ``serve`` and ``stream`` let run."""
    limits.check()
    if limits.kv_tokens is not None:
        # a request that has the cache for itself runs the largest block that fits, as at the context limit
        rounds = rounds.within(limits.kv_tokens)
    method = method_of(policy, rounds, costs, batching)
    running = Running(rounds, resized)
    signal = getattr(policy, "signal", None)
    if signal is not None:
        running.history = History(rounds.entropy, signal)
    return Server(costs, method, running, clients, limits, log)


def run(server: Server) -> None:
    """Let a server work until there is nothing left to do."""
    env = simpy.Environment()
    env.process(_serve(env, server))
    env.run()


def _serve(env: simpy.Environment, server: Server) -> Generator[simpy.Event]:
    while True:
        server.receive(env.now, 0.0)
        if server.has_work:
            step = server.start(env.now)
            yield env.timeout(step.seconds)
            server.finish(step, env.now)
        elif server.clients.next is not None:
            yield env.timeout(server.clients.next.arrival_s - env.now)
        else:
            return
