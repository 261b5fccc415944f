"""Fitting the adaptive policy to a dense trace and a profile: V_B(s, z), rho_C and T_C(B) (paper, section 5.2).

As the authors' repository does it, with two exceptions: rounds come from walks at every candidate block size and at a
random mixture of them instead of one served policy, and rho_C is searched once more on the policy's own rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from recguide.sim.adaptive import ALL, CANDIDATES, Adaptive, Load, adaptive, stratum
from recguide.sim.costs import CostModel
from recguide.sim.history import PAPER, Floats, Signal
from recguide.sim.overlap import Bools, places
from recguide.sim.pricing import Cells, search
from recguide.sim.rounds import Ints, Rounds, rounds_of
from recguide.sim.walks import Plan, Walk, always, plan_of, sums_of, walk
from recguide.traces.dense import DenseTrace
from recguide.traces.errors import InputError

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128)
BINS = 24
ENOUGH = 20
"""Rounds for each bin of certainty without which nothing is fitted: a share of rounds in one is good to about 0.1."""
NEARBY = (0.0, 0.6, 0.8, 1.0, 1.25, 1.7, 1e6)
"""Multiples of a price that are tried on the policy's own rounds: the first one is the largest block for everyone, the
last one the cheapest."""
SAMPLE = 160
"""Requests that they are tried on, evenly spaced, where there are more."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a fit is made with."""

    concurrencies: Sequence[int] = CONCURRENCIES
    candidates: Sequence[int] = CANDIDATES
    signal: Signal = PAPER
    bins: int = BINS
    seed: int = 0
    """Of the mixture of block sizes."""


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

    def of(self, requests: Bools, datasets: Sequence[str]) -> "Calibration":
        """The rounds of the chosen requests, weighed among themselves."""
        keep = requests[self.request]
        request, context, s = self.request[keep], self.context[keep], self.s[keep]
        emitted = {size: lens[keep] for size, lens in self.emitted.items()}
        weight = weights(request, datasets)
        return Calibration(request, context, s, self.block_size[keep], self.full[keep], emitted, weight)


class Tables(NamedTuple):
    """V_B(s, z), and the bins of s that it is for."""

    edges: list[float]
    values: dict[str, dict[int, list[float]]]


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
    """The policy of all rounds of a trace; what it gains on them is too good, and ``crossfit`` says by how much."""
    settings = Settings(concurrencies, candidates, signal, bins, seed)
    rounds = rounds_of(trace)
    datasets = [request.dataset for request in trace.requests]
    rows = calibrate(rounds, datasets, checked(rounds, settings), signal, seed)
    everyone = np.ones(len(datasets), bool)
    return fit_rows(trace, rounds, costs, rows, everyone, settings)


def checked(rounds: Rounds, settings: Settings) -> list[int]:
    """The candidates, ascending; ValueError unless all were recorded."""
    for size in settings.candidates:
        rounds.check(size)
    return sorted(settings.candidates)


def fit_rows(
    trace: DenseTrace, rounds: Rounds, costs: CostModel, rows: Calibration, chosen: Bools, settings: Settings
) -> Adaptive:
    """The policy of the calibration rounds of the chosen requests; ``chosen`` is [requests]."""
    datasets = [request.dataset for request in trace.requests]
    rows = rows.of(chosen, datasets)
    if not len(rows.s):
        raise InputError("every output is too short: there is no round with another one before it")
    edges = _edges(rows, settings.bins)
    tables = Tables(edges, values_of(rows, edges, max(48, 3 * settings.bins)))
    cells = cells_of(rows, tables)
    loads = [_load(rows, cells, costs, concurrency) for concurrency in sorted(set(settings.concurrencies))]
    origin, sizes = trace.provenance, tuple(sorted(settings.candidates))
    provenance = _provenance(trace, costs, len(rows.s), int(chosen.sum()), settings.seed)
    fitted = Adaptive(
        origin.model,
        origin.weights_sha256,
        sizes,
        settings.signal,
        tuple(edges),
        tables.values,
        tuple(loads),
        None,
        provenance,
    )
    return _on_its_own_rounds(fitted, rounds, chosen, rows)


def _provenance(trace: DenseTrace, costs: CostModel, rounds: int, requests: int, seed: int) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "seed": seed,
        "trace": {
            "requests": requests,
            "datasets": sorted({request.dataset for request in trace.requests}),
            "prompt_set_sha256": trace.provenance.prompt_set_sha256,
            "adapter_sha256": trace.provenance.adapter_sha256 or "none",
            "block_sizes": list(trace.provenance.block_sizes),
        },
        "profile": {"name": costs.name, "model": costs.model, "gpu": costs.gpu},
    }


def calibrate(
    rounds: Rounds, datasets: Sequence[str], candidates: Sequence[int], signal: Signal, seed: int = 0
) -> Calibration:
    """Walk through all requests at every candidate block size, and at a random one for each round."""
    rng = np.random.default_rng(seed)
    plans: list[Plan] = [partial(always, size) for size in candidates]
    walks = [walk(rounds, plan, signal) for plan in (*plans, _mixture(rng, candidates))]
    return calibration(rounds, datasets, candidates, walks)


def calibration(
    rounds: Rounds, datasets: Sequence[str], candidates: Sequence[int], walks: Sequence[Walk]
) -> Calibration:
    """The rounds of these walks that have a history."""
    later = [each.of(~np.isnan(each.s)) for each in walks]
    names = ("request", "at", "s", "last", "full")
    request, at, s, last, full = (np.concatenate([getattr(each, name) for each in later]) for name in names)
    emitted = {size: rounds.emitted[size][at] for size in candidates}
    return Calibration(request, places(rounds)[2][at], s, last, full, emitted, weights(request, datasets))


def _mixture(rng: np.random.Generator, candidates: Sequence[int]) -> Plan:
    return lambda s, last, full: rng.choice(np.array(candidates), len(s))


def weights(request: Ints, datasets: Sequence[str]) -> Floats:
    """[rounds] Summing to 1: datasets weigh the same, then their requests, then the rounds of each."""
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
    """V_B by stratum, block size and bin; a stratum with fewer than ``enough`` rounds is left out.

    It never falls as certainty grows, nor as B does: where a larger block gave less, it counts as the smaller one.
    """
    bin_of = np.searchsorted(np.array(edges), rows.s, side="right")
    sizes = sorted(rows.emitted)
    strata = {ALL: np.ones(len(rows.s), bool)}
    for size in sizes:
        for full in (False, True):
            chosen = (rows.block_size == size) & (rows.full == full)
            if chosen.sum() >= enough:
                strata[stratum(size, full)] = chosen
    bins = len(edges) + 1
    found = {}
    for name, chosen in strata.items():
        weight = rows.weight[chosen]
        values = [_value(rows.emitted[size][chosen], bin_of[chosen], weight, size, bins) for size in sizes]
        rising: list[list[float]] = np.maximum.accumulate(np.array(values), axis=0).tolist()
        found[name] = dict(zip(sizes, rising, strict=True))
    return found


def _value(emitted: Ints, bin_of: Ints, weight: Floats, block_size: int, bins: int) -> Floats:
    """[bins] Expected tokens: the sum of survival curves that never fall as certainty grows."""
    total = np.bincount(bin_of, weight, bins)
    survival = np.ones((bins, block_size))
    for k in range(2, block_size + 1):
        reached = np.bincount(bin_of, weight * (emitted >= k), bins)
        pooled = reached.sum() / total.sum()
        share = np.where(total > 0, reached / np.maximum(total, 1e-300), pooled)
        # an empty bin takes what its neighbours say
        survival[:, k - 1] = isotonic_regression(share, weights=np.maximum(total, total.sum() * 1e-9)).x
    value: Floats = np.clip(np.minimum.accumulate(survival, axis=1).sum(axis=1), 1, block_size)
    return value


def _load(rows: Calibration, cells: Cells, costs: CostModel, concurrency: int) -> Load:
    """T_C(B) at the mean context, and the price of time that achieves the most on these rounds."""
    sizes = sorted(rows.emitted)
    context = float((rows.weight * rows.context).sum()) * concurrency
    cost = np.array([max(costs.round_curve(size, concurrency)(context), 1e-12) for size in sizes])
    rho = search(cells, cost)
    return Load(concurrency, rho, dict(zip(sizes, cost.tolist(), strict=True)), sizes[0])


def cells_of(rows: Calibration, tables: Tables) -> Cells:
    """The rounds by stratum and bin; what is of no candidate's stratum goes by that of all rounds."""
    sizes, bins = sorted(rows.emitted), len(tables.edges) + 1
    bin_of = np.searchsorted(np.array(tables.edges), rows.s, side="right")
    names = [stratum(size, full) for size in sizes for full in (False, True)]
    code = np.searchsorted(np.array(sizes), rows.block_size) % len(sizes) * 2 + rows.full
    code = np.where(np.isin(rows.block_size, sizes), code, len(names)) * bins + bin_of
    count = (len(names) + 1) * bins
    weight = np.bincount(code, rows.weight, count)
    sums = [np.bincount(code, rows.weight * rows.emitted[size], count) for size in sizes]
    value = [
        np.array([tables.values.get(name, tables.values[ALL])[size] for size in sizes]).T for name in [*names, ALL]
    ]
    tokens = np.stack(sums, axis=1) / np.maximum(weight, 1e-300)[:, None]
    return Cells(weight.astype(np.float64), np.concatenate(value), tokens)


def _on_its_own_rounds(fitted: Adaptive, rounds: Rounds, chosen: Bools, rows: Calibration) -> Adaptive:
    """The price and first block that are fastest where the policy itself leads requests, of several around those found.

    Rounds at every block size are not the ones that the policy visits: it shifts its own history.
    """
    pooled = np.array([rows.weight @ rows.emitted[size] for size in fitted.candidates])
    sums, tried_on = sums_of(rounds), np.flatnonzero(chosen)
    tried_on = tried_on[:: -(-len(tried_on) // SAMPLE)]
    for i, load in enumerate(fitted.loads):
        cost = np.array([load.cost_s[size] for size in fitted.candidates])
        tried = []
        for factor in NEARBY:
            rho = load.rho * factor
            first = fitted.candidates[int((pooled - rho * cost).argmax())]
            other = _with_load(fitted, i, replace(load, rho=rho, cold_start=first))
            own = walk(rounds, plan_of(adaptive(other), i), fitted.signal, tried_on, sums)
            tried.append((float(own.seconds(load.cost_s, len(chosen)).sum()), rho, other))
        fitted = min(tried, key=lambda each: each[:2])[2]
    return fitted


def _with_load(fitted: Adaptive, index: int, load: Load) -> Adaptive:
    return replace(fitted, loads=(*fitted.loads[:index], load, *fitted.loads[index + 1 :]))
