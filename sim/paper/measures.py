"""The figures of each of the paper's tables, by name, for any acceptance and costs; ``targets`` has the paper's."""

from collections.abc import Mapping, Sequence

import numpy as np

from recguide.sim.adaptive import adaptive
from recguide.sim.log import PREFILL_STEP
from recguide.sim.methods import Policy
from recguide.sim.overlap import Overlap
from recguide.sim.paper.published import (
    BENCHMARKS,
    BLOCK_SIZES,
    CATEGORIES,
    FORWARD_MS,
    HIGH_LOADS,
    INTERVALS,
    LOADS,
    TABLE2_TAU,
    TABLE4,
)
from recguide.sim.paper.subjects import APART, Alone, Served, Subject, alone, mean, served
from recguide.sim.policies import ar, fixed, recipe
from recguide.sim.rounds import rounds_of
from recguide.sim.tidar import Tidar
from recguide.traces.replays import replay as rounds_at
from recguide.traces.summaries import confidence, rejections, transitions

Figures = dict[str, float]
BRANCHES = ("correction_coverage", "correction_reuse", "continuation_coverage", "continuation_reuse", "no_hit")
DFLASH_LAYERS = 5 / 34
"""Layers of a DFlash drafter over the target's: what its draft costs of a target's forward. Assumed."""
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


def at_one(subject: Subject, policy: Policy, names: Sequence[str] | None = None) -> dict[str, Alone]:
    """By benchmark, or by those named: one request at a time."""
    wanted = subject.benchmarks if names is None else names
    return {name: alone(subject.of([name]), subject.costs, policy) for name in wanted}


METHODS: Mapping[str, Policy] = {"LinearSS": fixed(16), "TiDAR": Tidar(), "RecGuide": Overlap()}


def table2(subject: Subject) -> Figures:
    """tau and speedup over AR at C = 1, B = 16; of mt-bench apart, where it is there."""
    apart = [APART] if any(request.dataset == APART for request in subject.trace.requests) else []
    baseline = {name: run.tokens_per_s for name, run in at_one(subject, ar, [*subject.benchmarks, *apart]).items()}
    found: Figures = {}
    for method, policy in METHODS.items():
        runs = at_one(subject, policy, [*subject.benchmarks, *apart])
        key = "accept_length" if method == "LinearSS" else "tau"
        tau = {name: float(run.metrics[key] or 0.0) for name, run in runs.items()}
        speed = {name: run.tokens_per_s / baseline[name] for name, run in runs.items()}
        found |= _by_benchmark(f"{method}, tau", tau) | _by_benchmark(f"{method}, speedup", speed)
    if subject.model:
        found |= _dflash(subject, baseline)
    return found


def _dflash(subject: Subject, baseline: Mapping[str, float]) -> Figures:
    """From its published tau, a target's verify, and a draft in proportion to its layers; half of the host's time."""
    verify_s = subject.costs.curve(("verify", "host"), 1, 16)(512)
    forward_s = subject.costs.forward_s("verify", 1, 16, 512)
    tau = dict(zip(BENCHMARKS, TABLE2_TAU[subject.model or ""]["DFlash"], strict=True))
    speed = {name: tau[name] / (verify_s + DFLASH_LAYERS * forward_s) / baseline[name] for name in tau}
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
    return _with_gains(speed, "LinearSS")


def _with_gains(speed: Mapping[str, float], base: str) -> Figures:
    found = {f"tokens/s, {name}": value for name, value in speed.items()}
    return found | {f"gain %, {name}": 100 * (speed[name] / speed[base] - 1) for name in speed if name != base}


RUNS: Mapping[str, tuple[str, str]] = {
    "fixed:8": ("fixed:8", "bucket"),
    "fixed:16": ("fixed:16", "bucket"),
    "fixed:32": ("fixed:32", "bucket"),
    "Fixed Block": ("recipe", "bucket"),
    "+ s_t": ("s", "pad"),
    "+ z_t": ("s, z", "pad"),
    "+ Bucketing": ("s, z", "bucket"),
    "no padding": ("s, z", "ragged"),
}
"""Name to policy and batching; the last one, blocks of all sizes in one forward, is not in the paper."""
HighLoad = dict[tuple[str, int], Served]


def high_load(subject: Subject) -> HighLoad:
    """By name and concurrency: all benchmarks served together, each request as often as it takes for 4 C of them."""
    trace = subject.of(subject.benchmarks)
    rounds = rounds_of(trace)
    fitted = subject.fitted
    policies: dict[str, Policy] = {
        "recipe": recipe,
        "s": adaptive(fitted, strata=False),
        "s, z": adaptive(fitted),
        **{f"fixed:{size}": fixed(size) for size in BLOCK_SIZES},
    }
    count = max(4 * HIGH_LOADS[-1], len(trace.requests))
    return {
        (name, load): served(trace, subject.costs, policies[policy], load, batching, count, rounds)
        for name, (policy, batching) in RUNS.items()
        for load in HIGH_LOADS
    }


def figure5(runs: HighLoad) -> Figures:
    """Tokens per second of all requests, and per request."""
    names = {"fixed:8": "B = 8", "fixed:16": "B = 16", "fixed:32": "B = 32", "+ Bucketing": "RecGuide",
             "no padding": "RecGuide without padding or buckets"}  # fmt: skip
    found: Figures = {}
    for name, said in names.items():
        for load in HIGH_LOADS:
            run = runs[name, load]
            found |= {f"tokens/s, {said}, C = {load}": run.tokens_per_s,
                      f"tokens/s per request, {said}, C = {load}": run.per_request}  # fmt: skip
    return found


def table4(subject: Subject, runs: HighLoad) -> Figures:
    """% of the rounds of requests at each block size, by category; the mean of benchmarks."""
    found: Figures = {}
    for load in TABLE4["8b"]:
        shares = block_shares(subject, runs["+ Bucketing", load])
        for category in (*CATEGORIES, "overall"):
            names = [name for name in shares if category in (BENCHMARKS[name], "overall")]
            for i, size in enumerate(BLOCK_SIZES if names else ()):
                found[f"B = {size}, C = {load}, {category}"] = mean([shares[name][i] for name in names])
    return found


def block_shares(subject: Subject, run: Served) -> dict[str, list[float]]:
    """By benchmark: % of rounds at 8, 16 and 32."""
    names = [request.dataset for request in subject.of(subject.benchmarks).requests]
    of_request = np.array(names)[run.run.request]
    drafted = run.run.emission_block_size != PREFILL_STEP
    dataset, sizes = of_request[run.run.emission_request][drafted], run.run.emission_block_size[drafted]
    return {
        name: [100 * float((sizes[dataset == name] == size).mean()) for size in BLOCK_SIZES]
        for name in subject.benchmarks
    }


def table6(runs: HighLoad) -> Figures:
    """Tokens per second, the mean over C = 2..128, with more and more of the policy, and the gain over fixed blocks."""
    names = ("Fixed Block", "+ s_t", "+ z_t", "+ Bucketing", "no padding")
    return _with_gains({name: mean([runs[name, load].tokens_per_s for load in HIGH_LOADS]) for name in names}, names[0])


def reported_ms(model: str) -> Figures:
    """The published forward times, by the names of ``figure2``."""
    return {
        f"forward ms, B = {size}, C = {count}": FORWARD_MS[model][size][place]
        for size in BLOCK_SIZES
        for place, count in enumerate(LOADS)
    }
