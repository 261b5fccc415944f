"""Serving recorded requests on one simulated GPU: prefills and batched rounds, one event each (paper, section 5.3)."""

from collections.abc import Generator, Sequence

import simpy

from recguide.sim.arrivals import Clients, as_recorded
from recguide.sim.batching import BUCKETED, Batching
from recguide.sim.costs import CostModel
from recguide.sim.history import History
from recguide.sim.log import PREFILL_STEP, Replay, Step
from recguide.sim.memory import MAX_BATCHED_TOKENS, Limits
from recguide.sim.methods import Policy, method_of
from recguide.sim.rounds import Rounds
from recguide.sim.running import Running
from recguide.sim.server import Server

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
) -> Replay:
    """Serve the recorded requests named in ``order`` with ``concurrency`` of them in flight (closed loop).

    The next request is sent the moment one finishes. Prompts go first: a waiting one is prefilled in the next step,
    together with others up to ``max_batched_tokens``, and its prefill emits the first token.
    """
    if concurrency < 1 or not len(order):
        raise ValueError(f"concurrency {concurrency}, requests {len(order)}: allowed: at least 1 of each")
    limits = Limits(max_batched_tokens=max_batched_tokens)
    clients = Clients(as_recorded(rounds, order), concurrency)
    return serve(rounds, costs, policy, clients, batching=batching, limits=limits, closed=True)


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
) -> Replay:
    """Serve what the clients send, until the last of it is answered.

    ``resized`` says that requests may have other lengths than the recorded ones, and ``closed`` that all of them are
    there at the start, so that finishing requests alone decide when others are sent.
    """
    limits = limits or Limits()
    limits.check()
    if limits.kv_tokens is not None:
        # a request that has the cache for itself runs the largest block that fits, as at the context limit
        rounds = rounds.within(limits.kv_tokens)
    method = method_of(policy, rounds, costs, batching)
    running = Running(rounds, resized)
    signal = getattr(policy, "signal", None)
    if signal is not None:
        running.history = History(rounds.entropy, signal)
    server = Server(costs, method, running, clients, limits)
    env = simpy.Environment()
    env.process(_serve(env, server))
    env.run()
    return server.replay(closed)


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
