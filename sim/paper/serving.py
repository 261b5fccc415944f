"""What the paper's words leave open about how batches are made, as ways of serving; docs/reproduce.md weighs them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recguide.sim.adaptive import Equation3, certainty
from recguide.sim.arrivals import Clients, as_recorded
from recguide.sim.batching import BUCKETED, buckets_of
from recguide.sim.closed import ClosedLoop, plan_of
from recguide.sim.costs import CostModel
from recguide.sim.history import History
from recguide.sim.log import Replay
from recguide.sim.memory import Limits
from recguide.sim.oneforward import OneForward
from recguide.sim.overlap import Overlap, Tables, draft_of, overlap_tables, places, prepared
from recguide.sim.paper.published import BLOCK_SIZES
from recguide.sim.policies import Informed, Outcomes
from recguide.sim.replay import run
from recguide.sim.rounds import Ints, Rounds
from recguide.sim.running import Running
from recguide.sim.server import Server
from recguide.sim.steps import Linear
from recguide.sim.timed import replay_of


def at_load(policy: Equation3, concurrency: int) -> Informed:
    """The policy as at this concurrency, whatever the number of requests in flight."""
    load = policy.load_of(concurrency)

    def choose(seen: Outcomes) -> Ints:
        if seen.entropy is None or seen.entropy_before is None:
            raise ValueError("the adaptive policy looks at entropies, and nobody keeps them")
        s = certainty(seen.entropy, seen.entropy_before)
        return policy.choose_at(load, s, seen.block_size, seen.accept_len == seen.block_size)

    return Informed(choose, policy.signal)


def largest_of(policy: Equation3) -> Informed:
    """Everyone at the largest block size that any of the running requests gets: its masks are drafts like others."""
    return Informed(lambda seen: int(policy(seen).max()), policy.signal)


class FullBuckets(Linear):
    """Each step runs ``most`` requests of one block size: the fullest bucket's longest waiting ones."""

    def __init__(self, rounds: Rounds, costs: CostModel, policy: Informed, most: int) -> None:
        super().__init__(rounds, costs, policy, BUCKETED)
        self.most = most

    def _wanted(self, running: Running) -> int | Ints:
        return self.policy(running.look())

    def _plan(self, running: Running, step: int) -> int | Ints:
        wanted = np.broadcast_to(self._wanted(running), len(running.ids))
        if running.largest is not None:
            wanted = np.minimum(wanted, running.largest)
        waited = step - running.ran
        fullest = max(buckets_of(wanted, waited), key=lambda bucket: (bucket.requests, bucket.waited))
        places = np.flatnonzero(wanted == fullest.block_size)
        longest = places[np.argsort(-waited[places], kind="stable")[: self.most]]
        self.rows = np.sort(longest) if len(longest) < len(wanted) else None
        return fullest.block_size


class Knowing(FullBuckets):
    """The same where each gets the block size whose next round is worth the most: its tokens less ``rho`` times its
    part of a full batch's time. Nobody can know them."""

    def __init__(self, rounds: Rounds, costs: CostModel, policy: Informed, most: int, rho: float) -> None:
        super().__init__(rounds, costs, policy, most)
        context = most * float(places(rounds)[2].mean())
        self.sizes = np.array(BLOCK_SIZES)
        cost = np.array([costs.round_curve(size, most)(context) for size in BLOCK_SIZES]) / most
        self.worth = np.stack([rounds.emitted[size] for size in BLOCK_SIZES]) - rho * cost[:, None]

    def _wanted(self, running: Running) -> int | Ints:
        wanted: Ints = self.sizes[self.worth[:, running.at].argmax(axis=0)]
        return wanted


def full_buckets(
    rounds: Rounds,
    costs: CostModel,
    policy: Equation3,
    concurrency: int,
    order: Sequence[int],
    sizes: int,
    knowing: float | None = None,
) -> Replay:
    """Serve these requests in executed batches of ``concurrency``; with ``sizes`` times as many in flight one bucket
    of the ``sizes`` is always full. ``knowing``: at this price, knowing every next round."""
    chosen = at_load(policy, concurrency)
    running = Running(rounds)
    running.history = History(rounds.entropy, chosen.signal)
    clients = Clients(as_recorded(rounds, order), sizes * concurrency)
    if knowing is None:
        method = FullBuckets(rounds, costs, chosen, concurrency)
    else:
        method = Knowing(rounds, costs, chosen, concurrency, knowing)
    server = Server(costs, method, running, clients, Limits())
    run(server)
    return server.replay(closed=True)


def repeating_rows(rounds: Rounds, costs: CostModel, rules: Overlap) -> Replay:
    """Serve all requests one by one; each branch's row has the draft tokens that it follows once more, as the authors'
    repository has them: p + B query tokens for a correction at p, 2 B for a continuation."""
    method = OneForward(repeating_tables(rounds, rules), costs, "rows")
    plan = plan_of(rounds, rules, method, BUCKETED)
    if plan is None:
        raise TypeError("one forward a round, and no plan for it")
    loop = ClosedLoop(rounds, plan, np.arange(len(rounds.first)), 1, Limits())
    return replay_of(loop, costs, BUCKETED)


def repeating_tables(rounds: Rounds, rules: Overlap) -> Tables:
    """The rounds of these rules with such rows."""
    tables, size = overlap_tables(rounds, rules), rules.block_size
    position, _, cached = places(rounds)
    limit, room = rounds.max_output_tokens - position, rounds.max_context - cached
    tokens = tables.query_tokens.copy()
    for source, row in enumerate(tokens):
        margin = draft_of(rounds, rules, source)[2]
        corrections, goes_on = prepared(margin, rules, limit, room, source)
        whole = tables.block_size == size
        row[whole] += sum((at.astype(np.int16) for at in corrections), size * goes_on.astype(np.int16))[whole]
    return replace(tables, query_tokens=tokens)
