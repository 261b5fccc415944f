"""Fitting the joint policy: chances of branches from margins, and the price of time at each load."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from recguide.sim.adaptive import Adaptive
from recguide.sim.chances import fit_chances, keys_for
from recguide.sim.costs import CostModel
from recguide.sim.joint import Joint
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.replay import replay
from recguide.sim.rounds import Rounds, rounds_of
from recguide.sim.walks import always, walk
from recguide.traces.dense import DenseTrace

LEAST, EACH_PLACE = 8, 2
"""Requests that prices are tried on: at least so many, and so many for each place in flight; evenly spaced ones."""
TRIES = (0.6, 0.85, 1.25, 1.7, 2.5, 4.0, 1e6)
"""Multiples of the throughput that was achieved, tried as the price of time.

What a long block gives is worth less than it seems: certainty lasts, so a short one is followed by others that are as
good. With many requests prices of some times the throughput are best; at the highest one everybody has the smallest
block."""


def fit_joint(
    trace: DenseTrace, costs: CostModel, fitted: Adaptive, concurrencies: Sequence[int] | None = None
) -> Joint:
    """The joint policy of a trace, on top of the V_B(s, z) of a policy that was fitted to it.

    The price of time at a load starts at what the fitted policy pays, then at what was achieved with that, and of
    this and its ``TRIES`` the one with the most tokens per second stays: with the highest one it is no slower, on these
    requests, than the smallest block for everyone.
    """
    rounds = rounds_of(trace, keys_for(fitted.candidates))
    walks = {size: walk(rounds, partial(always, size), fitted.signal) for size in fitted.candidates}
    policy = Joint(fitted, fit_chances(rounds, {size: each.at for size, each in walks.items()}), {1: 0.0})
    policy = policy.over(rounds)
    loads = {load.concurrency: load.rho for load in fitted.loads}
    wanted = sorted(loads) if concurrencies is None else sorted(concurrencies)
    rho = {load: _price(rounds, costs, policy, load, loads.get(load, max(loads.values()))) for load in wanted}
    return replace(policy, rho=rho, prepared=None)


def _price(rounds: Rounds, costs: CostModel, policy: Joint, concurrency: int, start: float) -> float:
    first = decoded_per_s(rounds, costs, replace(policy, rho={concurrency: start}), concurrency)
    tried = {start: first, first: decoded_per_s(rounds, costs, replace(policy, rho={concurrency: first}), concurrency)}
    for factor in TRIES:
        rho = factor * first
        tried[rho] = decoded_per_s(rounds, costs, replace(policy, rho={concurrency: rho}), concurrency)
    return max(tried, key=lambda rho: (tried[rho], -rho))


def decoded_per_s(rounds: Rounds, costs: CostModel, policy: Joint, concurrency: int) -> float:
    """Tokens per second of decoding with so many in flight; where there are too few requests, some are served twice."""
    known, wanted = len(rounds.first), max(LEAST, EACH_PLACE * concurrency)
    order = (np.arange(wanted) * max(known / wanted, 1)).astype(np.int64) % known
    return decode_rate(replay(rounds, costs, policy, concurrency=concurrency, order=order.tolist()))


def decode_rate(run: Replay) -> float:
    """Tokens of rounds over their seconds, in the steps that as many requests ran in as at most did."""
    decoding = run.steps["block_size"] != PREFILL_STEP
    full = decoding & (run.steps["in_flight"] == run.steps["in_flight"].max())
    tokens = np.bincount(run.emission_step, run.emission_tokens, len(decoding))
    return float(tokens[full].sum() / max(run.steps["seconds"][full].sum(), 1e-12))
