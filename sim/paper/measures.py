"""The figures of each of the paper's tables, by name, for any acceptance and costs; ``targets`` has the paper's.

Those of many requests at a time are in :mod:`recguide.sim.paper.crowds`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from recguide.sim.methods import Policy
from recguide.sim.overlap import Overlap
from recguide.sim.paper.b200 import DFLASH_LAYERS
from recguide.sim.paper.published import (
    BENCHMARKS,
    BLOCK_SIZES,
    CATEGORIES,
    FORWARD_MS,
    INTERVALS,
    LOADS,
    TABLE2_TAU,
)
from recguide.sim.paper.subjects import APART, Alone, Subject, alone, mean
from recguide.sim.paper.targets import ADAPTED, LEAN, REPEATING
from recguide.sim.policies import ar, fixed
from recguide.sim.tidar import Tidar
from recguide.traces.replays import replay as rounds_at
from recguide.traces.summaries import confidence, rejections, transitions

Figures = dict[str, float]
BRANCHES = ("correction_coverage", "correction_reuse", "continuation_coverage", "continuation_reuse", "no_hit")
ABLATION: Mapping[str, Policy] = {
    "LinearSS": fixed(16),
    "+ 1st Correction": Overlap(corrections=1, continuation="never"),
    "+ 2nd Correction": Overlap(corrections=2, continuation="never"),
    "+ Continuation": Overlap(),
}


def table1(subject: Subject) -> Figures:
    """% of next rounds in each interval, by the interval of the round, at B = 32."""
    found = transitions(rounds_at(subject.of(subject.benchmarks), 32))
    return {
        f"{INTERVALS[a]} to {INTERVALS[b]}": 100 * (share or 0.0)
        for a, row in enumerate(found.rates)
        for b, share in enumerate(row)
    }


def figure2(subject: Subject) -> Figures:
    """(a) % of rounds in each interval at B = 32, by benchmark and over all; (b) ms of a forward."""
    shares: Figures = {}
    for name, parts in [("overall", subject.benchmarks), *((each, [each]) for each in subject.benchmarks)]:
        found = transitions(rounds_at(subject.of(parts), 32)).interval_rates
        shares |= {f"A in {INTERVALS[i]}, {name}": 100 * (share or 0.0) for i, share in enumerate(found)}
    # the paper times single forwards: the mean of draft and verify without what the host adds
    host = {(size, count): subject.costs.host_s(count, count * size) for size in BLOCK_SIZES for count in LOADS}
    drafts_have_it = subject.model is not None
    for size, count in host:
        both = subject.costs.curve(("draft", "verify"), count, count * size)(512 * count)
        shares[f"forward ms, B = {size}, C = {count}"] = 500 * (both - drafts_have_it * host[size, count])
    return shares


def figure3(subject: Subject) -> Figures:
    """Mean confidence of passed and of first rejected draft tokens, and how many of each are risky."""
    trace = subject.of(subject.benchmarks)
    rounds = rounds_at(trace, 16)
    found, levels = rejections(trace, rounds), (np.arange(256) + 0.5) / 256
    whole = confidence(trace, rounds)[-1]
    means = [float(levels @ np.array(part["p1"]) / max(sum(part["p1"]), 1)) for part in (whole.passed, whole.rejected)]
    return {
        "mean confidence, passed": means[0],
        "mean confidence, first rejected": means[1],
        "% risky, passed": 100 * (found.passed_risky_rate or 0.0),
        "% risky, first rejected": 100 * (found.risky_rate or 0.0),
        "% second candidate right, first rejected": 100 * (found.second_rate or 0.0),
    }


def at_one(
    subject: Subject, policy: Policy, names: Sequence[str] | None = None, repeating: bool = False
) -> dict[str, Alone]:
    """By benchmark, or by those named: one request at a time."""
    wanted = subject.benchmarks if names is None else names
    return {name: alone(subject.of([name]), subject.costs, policy, repeating) for name in wanted}


METHODS: Mapping[str, Policy] = {"LinearSS": fixed(16), "TiDAR": Tidar(), "RecGuide": Overlap()}


def table2(subject: Subject) -> Figures:
    """tau and speedup over AR at C = 1, B = 16; of mt-bench apart, where it is there."""
    apart = [APART] if any(request.dataset == APART for request in subject.trace.requests) else []
    names = [*subject.benchmarks, *apart]
    baseline = {name: run.tokens_per_s for name, run in at_one(subject, ar, names).items()}
    found: Figures = {}
    for method, policy in METHODS.items():
        drafted = unadapted(subject) if method == "TiDAR" else subject
        runs = at_one(drafted, policy, names)
        key = "accept_length" if method == "LinearSS" else "tau"
        tau = {name: float(run.metrics[key] or 0.0) for name, run in runs.items()}
        speed = {name: run.tokens_per_s / baseline[name] for name, run in runs.items()}
        found |= _by_benchmark(f"{method}, tau", tau) | _by_benchmark(f"{method}, speedup", speed)
    if subject.model:
        found |= _dflash(subject, baseline)
    return found | _readings(subject, baseline)


def unadapted(subject: Subject) -> Subject:
    """The same as drafted without the adapter, where that is there; it is for linear drafts alone."""
    return subject if subject.unadapted is None else replace(subject, trace=subject.unadapted, _kept={})


def _readings(subject: Subject, baseline: Mapping[str, float]) -> Figures:
    """Overall figures under other readings of the paper."""

    def speedup(runs: Mapping[str, Alone]) -> float:
        return mean([run.tokens_per_s / baseline[name] for name, run in runs.items()])

    found: Figures = {}
    if subject.unadapted is not None:
        runs = at_one(subject, Tidar())
        found[f"{ADAPTED}, tau, overall"] = mean([float(run.metrics["tau"] or 0.0) for run in runs.values()])
        found[f"{ADAPTED}, speedup, overall"] = speedup(runs)
    if subject.model:
        found[f"RecGuide, {REPEATING}, speedup, overall"] = speedup(at_one(subject, Overlap(), repeating=True))
    if subject.lean_costs is not None:
        runs = at_one(subject.priced(subject.lean_costs), Overlap(), repeating=True)
        found[f"RecGuide, {REPEATING}, {LEAN}, speedup, overall"] = speedup(runs)
    return found


def _dflash(subject: Subject, baseline: Mapping[str, float]) -> Figures:
    """From its published tau, a target's verify, a draft in proportion to its layers, and a lean host."""
    model = subject.model or ""
    costs = subject.lean_costs or subject.costs
    round_s = costs.round_curve(16, 1)(512) - (1 - DFLASH_LAYERS[model]) * costs.forward_s("verify", 1, 16, 512)
    tau = dict(zip(BENCHMARKS, TABLE2_TAU[model]["DFlash"], strict=True))
    speed = {name: tau[name] / round_s / baseline[name] for name in tau}
    return _by_benchmark("DFlash, tau", tau) | _by_benchmark("DFlash, speedup", speed)


def _by_benchmark(name: str, values: Mapping[str, float]) -> Figures:
    each_of = {f"{name}, {each}": value for each, value in values.items()}
    return each_of | {f"{name}, overall": mean([value for each, value in values.items() if each != APART])}


def table3(subject: Subject) -> Figures:
    """% of rounds by what became of their branches; benchmarks weigh the same."""
    runs = at_one(subject, Overlap())
    found: Figures = {}
    for category in (*CATEGORIES, "overall"):
        names = [name for name in runs if category in (BENCHMARKS[name], "overall")]
        for key in BRANCHES if names else ():
            shares = [100 * float(runs[name].metrics[key] or 0.0) for name in names]
            found[f"{key.replace('_', ' ')}, {category}"] = mean(shares)
    return found


def table5(subject: Subject) -> Figures:
    """Tokens per second at C = 1 with more and more branches, and the gain over none."""
    speed = {
        name: mean([run.tokens_per_s for run in at_one(subject, policy).values()]) for name, policy in ABLATION.items()
    }
    return with_gains(speed, "LinearSS") | _rows(subject, speed)


def _rows(subject: Subject, speed: Mapping[str, float]) -> Figures:
    """Gains over LinearSS under other readings of what a forward with branches takes."""
    ways = {REPEATING: subject.costs} | ({f"{REPEATING}, {LEAN}": subject.lean_costs} if subject.lean_costs else {})
    found: Figures = {}
    for way, costs in ways.items() if subject.model else ():
        for name in list(ABLATION)[1:]:
            runs = at_one(subject.priced(costs), ABLATION[name], repeating=True).values()
            faster = mean([run.tokens_per_s for run in runs]) / speed["LinearSS"]
            found[f"gain %, {name}, {way}"] = 100 * (faster - 1)
    return found


def with_gains(speed: Mapping[str, float], base: str) -> Figures:
    """Tokens per second by name, and the gain of all others over ``base``."""
    found = {f"tokens/s, {name}": value for name, value in speed.items()}
    return found | {f"gain %, {name}": 100 * (speed[name] / speed[base] - 1) for name in speed if name != base}


def reported_ms(model: str) -> Figures:
    """The published forward times, by the names of ``figure2``."""
    return {
        f"forward ms, B = {size}, C = {count}": FORWARD_MS[model][size][place]
        for size in BLOCK_SIZES
        for place, count in enumerate(LOADS)
    }
