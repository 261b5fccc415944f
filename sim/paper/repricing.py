"""rho_C as the authors' repository searches it, for the paper itself says no more than that it weighs cost.

What counts is the mean of benchmarks of the mean of requests of tokens over time, on walks that draw each block size by
the last one; block sizes without history are those of the official recipe.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from recguide.sim.adaptive import ALL, Adaptive, Load, adaptive, stratum
from recguide.sim.history import Floats
from recguide.sim.paper.published import EXPLORED
from recguide.sim.policies import recipe
from recguide.sim.pricing import candidates, decide
from recguide.sim.rounds import Ints, Rounds, rounds_of
from recguide.sim.walks import Walk, walk
from recguide.traces.dense import DenseTrace

FIRST = 16
"""Block size of a walk's first round."""
WALKS = 4
"""Over all requests; rounds differ from one to the next."""


class Explored(NamedTuple):
    """Rounds with a history, by request and by what the policy can tell apart: a stratum and a bin of certainty."""

    rounds: Floats
    """[requests, cells]"""
    tokens: Floats
    """[requests, cells, block sizes] That they emit at each."""
    value: Floats
    """[cells, block sizes] V_B(s, z)."""
    dataset: Ints
    """[requests]"""


def repriced(fitted: Adaptive, trace: DenseTrace) -> Adaptive:
    """The same tables of V_B at these prices."""
    found = explored(fitted, trace)
    return replace(fitted, loads=tuple(_priced(load, found) for load in fitted.loads))


def _priced(load: Load, found: Explored) -> Load:
    cost = np.array(list(load.cost_s.values()))
    prices = candidates(found.value, cost)
    scores = np.array([round(score(found, cost, float(rho)), 9) for rho in prices])
    return replace(load, rho=float(prices[scores.argmax()]), cold_start=recipe.at(load.concurrency))


def score(found: Explored, cost: Floats, rho: float) -> float:
    """Tokens per second of full batches at this price: the mean of datasets of the mean of their requests."""
    choice = decide(found.value, cost, rho)
    tokens = found.tokens[:, np.arange(len(choice)), choice].sum(axis=1)
    seconds = found.rounds @ cost[choice]
    there = seconds > 0
    rates = np.bincount(found.dataset[there], tokens[there] / seconds[there])
    return float((rates / np.maximum(np.bincount(found.dataset[there]), 1)).mean())


def explored(fitted: Adaptive, trace: DenseTrace) -> Explored:
    """The walks over all requests of a trace, counted."""
    rounds, rng = rounds_of(trace), np.random.default_rng(0)
    places = adaptive(fitted).place
    strata = [ALL, *(stratum(size, full) for size in fitted.candidates for full in (False, True))]
    bins, sizes = len(fitted.edges) + 1, fitted.candidates
    shape = (len(rounds.first), len(strata) * bins)
    count, tokens = np.zeros(shape), np.zeros((*shape, len(sizes)))
    for _ in range(WALKS):
        steps = with_history(rounds, fitted, rng)
        cell = places[steps.last, steps.full.astype(np.int64)] * bins
        cell += np.searchsorted(np.array(fitted.edges), steps.s, side="right")
        np.add.at(count, (steps.request, cell), 1.0)
        for i, size in enumerate(sizes):
            np.add.at(tokens[:, :, i], (steps.request, cell), rounds.emitted[size][steps.at])
    tables = [fitted.values.get(name, fitted.values[ALL]) for name in strata]
    value = np.concatenate([np.array([table[size] for size in sizes]).T for table in tables])
    dataset = np.unique([request.dataset for request in trace.requests], return_inverse=True)[1]
    return Explored(count, tokens, value, dataset.astype(np.int64))


def with_history(rounds: Rounds, fitted: Adaptive, rng: np.random.Generator) -> Walk:
    """A walk that draws each block size by the last one, without its rounds that have no history."""
    steps = walk(rounds, partial(_drawn, rng), fitted.signal)
    return steps.of(~np.isnan(steps.s))


def _drawn(rng: np.random.Generator, s: Floats, last: Ints, full: Ints) -> Ints:
    drawn = np.full(len(last), FIRST)
    for size, chances in EXPLORED.items():
        here = np.flatnonzero(last == size)
        drawn[here] = rng.choice(np.array(list(EXPLORED)), len(here), p=np.array(chances) / 100)
    return drawn
