"""Fitting the synthetic acceptance to published statistics of the models, and to nothing else.

What differs between benchmarks and models is found here, one number at a time; what all texts have in common, in
:mod:`recguide.sim.paper.dynamics_fit`. ``scripts/fit_paper.py`` runs both and writes parameters.json.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from recguide.sim.costs import constant_costs
from recguide.sim.metrics import metrics_of
from recguide.sim.overlap import Overlap
from recguide.sim.paper.acceptance import Parameters, synthetic_trace, unadapted
from recguide.sim.paper.published import (
    ADAPTER_BENCHMARK,
    ADAPTER_ROUNDS,
    BENCHMARKS,
    CATEGORIES,
    SECOND_RATE,
    TABLE2_TAU,
    TABLE3,
    Branches,
)
from recguide.sim.replay import replay
from recguide.sim.rounds import rounds_of
from recguide.traces.dense import DenseTrace
from recguide.traces.replays import replay as rounds_at
from recguide.traces.summaries import rejections

COSTS = constant_costs(draft=1.0, verify=1.0, rows=1.0, prefill=1.0, decode=1.0)
"""Branch outcomes at C = 1 do not depend on times."""
STEPS = 5
CLOSE = 0.5
"""Percentage points."""
GUESSES = ((16.0, 3.0), (-12.0, -18.0))
"""Points that continuations and corrections are ready more often for a unit of contrast, and for one of bias."""
MOST_MOVE = 0.6
MOST_CONTRAST = 0.6


def calibrated(model: str, parameters: Parameters, requests: int) -> Parameters:
    """Each category's ease, contrast and doubt to the tau of LinearSS (Table 2) and the branch outcomes (Table 3); the
    adapter to its rounds."""
    for category in CATEGORIES:
        parameters = fitted(model, parameters, category, requests)
    return replace(parameters, adapter=adapter_of(model, parameters, requests))


def eased(model: str, parameters: Parameters, benchmark: str, requests: int) -> Parameters:
    """The same with the benchmark's ease at which a round at B = 16 emits the published tokens."""
    place = list(BENCHMARKS).index(benchmark)
    target = TABLE2_TAU[model]["LinearSS"][place]

    def at(ease: float) -> Parameters:
        return replace(parameters, ease={**parameters.ease, benchmark: ease})

    def miss(ease: float) -> float:
        return float(
            np.log(accept_len(synthetic_trace(model, at(ease), requests, only=benchmark, grid=(16,)), 16) / target)
        )

    return at(root(miss, parameters.ease[benchmark], 0.1))


def adapter_of(model: str, parameters: Parameters, requests: int) -> float:
    """By how much hazards are higher, as a logarithm, where drafts take the published number of rounds more for the
    same text without the adapter."""
    with_it, without = ADAPTER_ROUNDS
    only = ADAPTER_BENCHMARK

    def tokens(adapter: float) -> float:
        bare = unadapted(replace(parameters, adapter=adapter))
        return accept_len(synthetic_trace(model, bare, requests, only=only, grid=(16,)), 16)

    whole = tokens(0.0)
    return root(lambda adapter: float(np.log(tokens(adapter) / whole * without / with_it)), parameters.adapter, 0.1)


def root(miss: Callable[[float], float], start: float, step: float) -> float:
    """Where a smooth function of one number is 0, by secants."""
    x, y = [start, start + step], [miss(start), miss(start + step)]
    for _ in range(STEPS):
        if abs(y[-1]) < 2e-3 or y[-1] == y[-2]:
            break
        x.append(x[-1] - y[-1] * (x[-1] - x[-2]) / (y[-1] - y[-2]))
        y.append(miss(x[-1]))
    return x[int(np.argmin(np.abs(y)))]


def accept_len(trace: DenseTrace, block_size: int) -> float:
    """Tokens over rounds of plain self-speculation."""
    return float(rounds_at(trace, block_size).accept_len.mean())


def fitted(model: str, parameters: Parameters, category: str, requests: int) -> Parameters:
    """The same with one category's contrast and bias at which branches are ready as often as published (Broyden).

    Where continuations are rarer than any contrast makes them, drafts are in doubt as a whole instead.
    """
    target = TABLE3[model][category]
    known = parameters.confidence[category]
    slopes, knobs = np.array(GUESSES), np.array([known.contrast - known.doubt, known.bias])
    move, before = np.zeros(2), np.zeros(2)
    tried = []
    for _ in range(STEPS):
        parameters = _at(model, parameters, category, requests, knobs)
        shares = branch_shares(synthetic_trace(model, parameters, requests, only=category, grid=(16,)))
        miss = np.array(
            [
                shares["continuation_coverage"] - target.continuation_coverage,
                shares["correction_coverage"] - target.correction_coverage,
            ]
        )
        tried.append((float(np.abs(miss).max()), parameters, shares))
        if tried[-1][0] < CLOSE:
            break
        if move.any():
            slopes += np.outer(miss - before - slopes @ move, move) / (move @ move)
        move, before = np.clip(-np.linalg.solve(slopes, miss), -MOST_MOVE, MOST_MOVE), miss
        knobs = knobs + move
    _, best, found = min(tried, key=lambda each: each[0])
    return _with_seconds(best, category, found, target)


def _at(model: str, parameters: Parameters, category: str, requests: int, knobs: NDArray[np.float64]) -> Parameters:
    """The same at a contrast and a bias, every benchmark eased to its tau again."""
    knob, bias = knobs.tolist()
    contrast, doubt = max(knob, -MOST_CONTRAST), max(-MOST_CONTRAST - knob, 0.0)
    now = replace(parameters.confidence[category], contrast=contrast, doubt=doubt, bias=bias, continuation_miss=0.0)
    parameters = replace(parameters, confidence={**parameters.confidence, category: now})
    for benchmark in [name for name, its in BENCHMARKS.items() if its == category]:
        parameters = eased(model, parameters, benchmark, requests)
    return parameters


def _with_seconds(parameters: Parameters, category: str, found: dict[str, float], target: Branches) -> Parameters:
    """The same with second candidates and first continuation tokens right as often as branches were reused."""
    now = parameters.confidence[category]
    ready = found["correction_reuse"] / found["correction_coverage"]
    second = min(now.second * target.correction_reuse / target.correction_coverage / ready, 1.0)
    hits = found["continuation_reuse"] / found["continuation_coverage"]
    missed = max(1 - target.continuation_reuse / target.continuation_coverage / hits, 0.0)
    values = replace(now, second=second, continuation_miss=missed)
    return replace(parameters, confidence={**parameters.confidence, category: values})


def with_sure_seconds(parameters: Parameters, ratio: float) -> Parameters:
    """The same where second candidates of tokens that were not risky are right so many times as often as others."""
    values = {name: replace(each, second_sure=ratio * each.second) for name, each in parameters.confidence.items()}
    return replace(parameters, confidence=values)


def sure_ratio(model: str, parameters: Parameters, requests: int) -> float:
    """The ratio at which second candidates are right at as many of all rejections as published."""

    def miss(ratio: float) -> float:
        trace = synthetic_trace(model, with_sure_seconds(parameters, ratio), requests, grid=(16,))
        rate = rejections(trace, rounds_at(trace, 16)).second_rate
        return (rate or 0.0) - SECOND_RATE / 100

    return min(max(root(miss, 0.8, 0.1), 0.0), 1.0)


def branch_shares(trace: DenseTrace) -> dict[str, float]:
    """% of rounds of the paper's overlap (Table 3), the mean of benchmarks."""
    names = ("correction_coverage", "correction_reuse", "continuation_coverage", "continuation_reuse", "no_hit")
    rules = Overlap()
    found = []
    for benchmark in dict.fromkeys(request.dataset for request in trace.requests):
        part = replace(trace, requests=tuple(r for r in trace.requests if r.dataset == benchmark))
        rounds = rounds_of(part, rules.keys)
        run = replay(rounds, COSTS, rules, concurrency=1, order=range(len(part.requests)))
        metrics = metrics_of(run, rounds)
        found.append([100 * float(metrics[name] or 0) for name in names])
    return dict(zip(names, np.mean(found, axis=0).tolist(), strict=True))
