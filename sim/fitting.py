"""Fitting the adaptive policy to a dense trace and a profile: V_B(s, z), rho_C and T_C(B), in-sample.

As the authors' repository does it, with two exceptions: rounds come from replays of every candidate block size and of
a random mixture of them instead of one served policy, and rho_C is the exact price of time of the fitted cells.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from recguide.sim.adaptive import ALL, CANDIDATES, Adaptive, Load, certainty, stratum
from recguide.sim.costs import CostModel
from recguide.sim.history import PAPER, Floats, Signal
from recguide.sim.overlap import Bools, places
from recguide.sim.policies import RECIPE
from recguide.sim.rounds import Ints, Rounds, rounds_of
from recguide.traces.dense import DenseTrace

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128)
BINS = 24
Plan = Callable[[int], Ints]


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Rounds with at least one round before them, each an entry: its history, and what every block size would give."""

    request: Ints
    context: Ints
    """Cached tokens."""
    s: Floats
    block_size: Ints
    """Of the round before."""
    full: Bools
    """Whether that was fully accepted."""
    emitted: Mapping[int, Ints]
    weight: Floats
    """Sums to 1: datasets weigh the same, then their requests, then the rounds of each."""


def fit_in_sample(
    trace: DenseTrace,
    costs: CostModel,
    *,
    concurrencies: Sequence[int] = CONCURRENCIES,
    candidates: Sequence[int] = CANDIDATES,
    signal: Signal = PAPER,
    bins: int = BINS,
    seed: int = 0,
) -> Adaptive:
    """The policy that is best for the very rounds it was fitted to; ``seed`` draws the mixture of block sizes."""
    rounds = rounds_of(trace)
    for size in candidates:
        rounds.check(size)
    sizes = tuple(sorted(candidates))
    rows = calibrate(rounds, [request.dataset for request in trace.requests], sizes, signal, seed)
    if not len(rows.s):
        raise ValueError("every output is too short: there is no round with another one before it")
    edges = _edges(rows, bins)
    values = values_of(rows, edges, max(48, 3 * bins))
    loads = [_load(rows, edges, values, costs, concurrency) for concurrency in sorted(set(concurrencies))]
    provenance = _provenance(trace, costs, rows, seed)
    origin = trace.provenance
    return Adaptive(origin.model, origin.weights_sha256, sizes, signal, tuple(edges), values, tuple(loads), provenance)


def _provenance(trace: DenseTrace, costs: CostModel, rows: Calibration, seed: int) -> dict[str, Any]:
    return {
        "fitted": "in-sample",
        "rounds": len(rows.s),
        "seed": seed,
        "trace": {
            "requests": len(trace.requests),
            "datasets": sorted({request.dataset for request in trace.requests}),
            "prompt_set_sha256": trace.provenance.prompt_set_sha256,
            "block_sizes": list(trace.provenance.block_sizes),
        },
        "profile": {"name": costs.name, "model": costs.model, "gpu": costs.gpu},
    }


def calibrate(
    rounds: Rounds, datasets: Sequence[str], candidates: Sequence[int], signal: Signal, seed: int = 0
) -> Calibration:
    """Walk through all requests at every candidate block size, and at a random one for each round."""
    rng = np.random.default_rng(seed)
    plans: list[Plan] = [partial(np.full, fill_value=size) for size in candidates]
    plans.append(lambda count: rng.choice(np.array(candidates), count))
    walks = [_walk(rounds, plan, signal) for plan in plans]
    request, at, s, block_size, full = (np.concatenate(parts) for parts in zip(*walks, strict=True))
    emitted = {size: rounds.emitted[size][at] for size in candidates}
    cached = places(rounds)[2][at]
    return Calibration(request, cached, s, block_size, full, emitted, _weights(request, datasets))


def _walk(rounds: Rounds, plan: Plan, signal: Signal) -> tuple[Ints, Ints, Floats, Ints, Bools]:
    """Request, row, s, last block size and whether it was accepted fully, of every round but the first ones."""
    sums = np.concatenate([[0.0], np.cumsum(rounds.entropy)])
    request = np.flatnonzero(rounds.output_tokens > 1)
    at = rounds.first[request] + 1
    entropy, before = np.full((2, len(request)), np.nan)
    size, full = np.zeros(len(request), np.int64), np.zeros(len(request), bool)
    visited: list[tuple[Any, ...]] = []
    while len(request):
        visited.append((request, at, certainty(entropy, before), size, full))
        size = plan(len(request))
        if rounds.largest is not None:
            size = np.minimum(size, rounds.largest[at])
        emitted = np.zeros(len(at), np.int64)
        for one in set(size.tolist()):
            emitted[size == one] = rounds.emitted[one][at[size == one]]
        count = signal.decisions(emitted, size)
        entropy, before = (sums[at + count] - sums[at]) / count, entropy
        at, full = at + emitted, emitted == size
        going = ~rounds.finished[at]
        request, at, entropy, before, size, full = (x[going] for x in (request, at, entropy, before, size, full))
    told = visited[1:] or [tuple(x[:0] for x in (request, at, entropy, size, full))]
    return tuple(np.concatenate(parts) for parts in zip(*told, strict=True))  # type: ignore[return-value]


def _weights(request: Ints, datasets: Sequence[str]) -> Floats:
    _, dataset = np.unique(np.array(datasets), return_inverse=True)
    each_round = 1 / np.maximum(np.bincount(request, minlength=len(dataset)), 1)
    there = np.unique(request)
    each_request = 1 / np.maximum(np.bincount(dataset[there], minlength=dataset.max() + 1), 1)
    weight: Floats = each_round[request] * each_request[dataset[request]]
    return weight / weight.sum() if len(weight) else weight


def _edges(rows: Calibration, bins: int) -> list[float]:
    """Between bins of equal weight."""
    order = np.argsort(rows.s, kind="stable")
    at = np.searchsorted(np.cumsum(rows.weight[order]), np.arange(1, bins) / bins)
    edges: list[float] = np.unique(rows.s[order][np.minimum(at, len(order) - 1)]).tolist()
    return edges


def values_of(rows: Calibration, edges: Sequence[float], enough: int) -> dict[str, dict[int, list[float]]]:
    """V_B by stratum, block size and bin; a stratum with fewer than ``enough`` rounds is left out."""
    bin_of = np.searchsorted(np.array(edges), rows.s, side="right")
    sizes = sorted(rows.emitted)
    strata = {ALL: np.ones(len(rows.s), bool)}
    for size in sizes:
        for full in (False, True):
            chosen = (rows.block_size == size) & (rows.full == full)
            if chosen.sum() >= enough:
                strata[stratum(size, full)] = chosen
    bins = len(edges) + 1
    return {
        name: {
            size: _value(rows.emitted[size][chosen], bin_of[chosen], rows.weight[chosen], size, bins) for size in sizes
        }
        for name, chosen in strata.items()
    }


def _value(emitted: Ints, bin_of: Ints, weight: Floats, block_size: int, bins: int) -> list[float]:
    """Expected tokens by bin: the sum of survival curves that never fall as certainty grows."""
    total = np.bincount(bin_of, weight, bins)
    survival = np.ones((bins, block_size))
    for k in range(2, block_size + 1):
        reached = np.bincount(bin_of, weight * (emitted >= k), bins)
        pooled = reached.sum() / total.sum()
        share = np.where(total > 0, reached / np.maximum(total, 1e-300), pooled)
        # an empty bin takes what its neighbours say
        survival[:, k - 1] = isotonic_regression(share, weights=np.maximum(total, total.sum() * 1e-9)).x
    value: list[float] = np.clip(np.minimum.accumulate(survival, axis=1).sum(axis=1), 1, block_size).tolist()
    return value


def _load(
    rows: Calibration,
    edges: Sequence[float],
    values: Mapping[str, Mapping[int, Sequence[float]]],
    costs: CostModel,
    concurrency: int,
) -> Load:
    """T_C(B) at the mean context, and the price of time at which tokens per second are the most."""
    sizes = sorted(rows.emitted)
    context = float((rows.weight * rows.context).sum()) * concurrency
    cost = np.array([costs.round_curve(size, concurrency)(context) for size in sizes])
    weight, value = _cells(rows, edges, values, sizes)
    rho = price(weight, value, np.maximum(cost, 1e-12))
    cold = next(size for most, size in RECIPE if most is None or concurrency <= most)
    nearest = min(sizes, key=lambda size: (abs(np.log(size / cold)), size))
    return Load(concurrency, rho, dict(zip(sizes, cost.tolist(), strict=True)), nearest)


def _cells(
    rows: Calibration, edges: Sequence[float], values: Mapping[str, Mapping[int, Sequence[float]]], sizes: Sequence[int]
) -> tuple[Floats, Floats]:
    """[cells] The weight of every stratum and bin that the policy tells apart, and [cells, block sizes] their V_B."""
    bin_of = np.searchsorted(np.array(edges), rows.s, side="right")
    bins = len(edges) + 1
    names = [stratum(size, full) for size in sizes for full in (False, True)]
    code = np.searchsorted(np.array(sizes), rows.block_size) % len(sizes) * 2 + rows.full
    code = np.where(np.isin(rows.block_size, sizes), code, len(names))
    weight = np.bincount(code * bins + bin_of, rows.weight, (len(names) + 1) * bins).astype(np.float64)
    tables = [values.get(name, values[ALL]) for name in [*names, ALL]]
    value: Floats = np.concatenate([np.array([table[size] for size in sizes], np.float64).T for table in tables])
    return weight, value


def price(weight: Floats, value: Floats, cost: Floats) -> float:
    """The largest ratio of mean value to mean cost over all choices of one option in each cell (Dinkelbach).

    ``weight`` is [cells], ``value`` [cells, options], ``cost`` [options]. Choosing the most of value - price x cost in
    every cell reaches it.
    """
    rho = 0.0
    for _ in range(100):
        best = (value - rho * cost).argmax(axis=1)
        found = float((weight * value[np.arange(len(value)), best]).sum() / (weight * cost[best]).sum())
        if found <= rho * (1 + 1e-12):
            break
        rho = found
    return rho
