"""The figures of the paper's tables that many requests at a time have: Figure 5, Tables 4 and 6."""

from collections.abc import Mapping

from recguide.sim.adaptive import adaptive
from recguide.sim.log import PREFILL_STEP
from recguide.sim.methods import Policy
from recguide.sim.paper.measures import Figures, with_gains
from recguide.sim.paper.published import BENCHMARKS, BLOCK_SIZES, CATEGORIES, HIGH_LOADS, TABLE4
from recguide.sim.paper.serving import largest_of
from recguide.sim.paper.subjects import Served, Subject, mean, served
from recguide.sim.paper.targets import FULL, NO_DRAFTS
from recguide.sim.policies import fixed, recipe
from recguide.sim.rounds import rounds_of

NO_PADDING = "no padding"
"""Blocks of all sizes in one forward: not in the paper."""
BUCKETS_FULL = f"+ Bucketing, {FULL}"
"""C is what an executed batch has: another reading of the paper."""
AS_MANY = "Fixed Block, as many in flight"
"""As many as full buckets have, three times C, in batches of them all: not in the paper."""
KNOWING = "+ Bucketing, knowing every next round"
"""Full buckets of what nobody can know: not in the paper."""
RUNS: Mapping[str, tuple[str, str]] = {
    "fixed:8": ("fixed:8", "bucket"),
    "fixed:16": ("fixed:16", "bucket"),
    "fixed:32": ("fixed:32", "bucket"),
    "Fixed Block": ("recipe", "bucket"),
    "+ s_t": ("s, largest", "pad"),
    "+ z_t": ("s, z, largest", "pad"),
    "+ Bucketing": ("s, z", "bucket"),
    f"+ s_t, {NO_DRAFTS}": ("s", "pad"),
    f"+ z_t, {NO_DRAFTS}": ("s, z", "pad"),
    BUCKETS_FULL: ("s, z", "full"),
    NO_PADDING: ("s, z", "ragged"),
    AS_MANY: ("recipe", "bucket"),
}
"""Name to policy and batching."""
HighLoad = dict[tuple[str, int], dict[str, Served]]


def high_load(subject: Subject) -> HighLoad:
    """By name and concurrency: each benchmark served by itself."""
    fitted = subject.fitted
    s, both = adaptive(fitted, strata=False), adaptive(fitted)
    policies: dict[str, Policy] = {
        "recipe": recipe,
        "s": s,
        "s, z": both,
        "s, largest": largest_of(s),
        "s, z, largest": largest_of(both),
        **{f"fixed:{size}": fixed(size) for size in BLOCK_SIZES},
    }
    traces = {name: subject.of([name]) for name in subject.benchmarks}
    rounds = {name: rounds_of(trace) for name, trace in traces.items()}
    in_flight = {name: len(BLOCK_SIZES) if name == AS_MANY else 1 for name in RUNS}
    found = {
        (name, load): {
            benchmark: served(
                trace, subject.costs, policies[policy], in_flight[name] * load, batching, rounds[benchmark]
            )
            for benchmark, trace in traces.items()
        }
        for name, (policy, batching) in RUNS.items()
        for load in HIGH_LOADS
    }
    for load in HIGH_LOADS if subject.model else ():
        found[KNOWING, load] = {
            benchmark: served(
                trace, subject.costs, both, load, "full", rounds[benchmark], _decoded_per_s(found, benchmark, load)
            )
            for benchmark, trace in traces.items()
        }
    return found


def _decoded_per_s(runs: HighLoad, benchmark: str, load: int) -> float:
    """Tokens per second of full buckets without their prefills: the price of time for those that know more."""
    run = runs[BUCKETS_FULL, load][benchmark]
    return run.tokens_per_s / (1 - float(run.metrics["prefill_share"] or 0.0))


def rate(runs: HighLoad, name: str, load: int) -> float:
    """Tokens per second, the mean of benchmarks."""
    return mean([run.tokens_per_s for run in runs[name, load].values()])


LINES = {
    "fixed:8": "B = 8",
    "fixed:16": "B = 16",
    "fixed:32": "B = 32",
    "+ Bucketing": "RecGuide",
    BUCKETS_FULL: f"RecGuide, {FULL}",
    NO_PADDING: "RecGuide without padding or buckets",
    AS_MANY: "the recipe with 3 C in flight",
}
"""Runs that Figure 5 has a line for."""


def figure5(runs: HighLoad) -> Figures:
    """Tokens per second of all requests, and per request in flight."""
    found: Figures = {}
    for name, said in LINES.items():
        for load in HIGH_LOADS:
            each = [run.per_request for run in runs[name, load].values()]
            found |= {f"tokens/s, {said}, C = {load}": rate(runs, name, load),
                      f"tokens/s per request, {said}, C = {load}": mean(each)}  # fmt: skip
    return found


def table4(runs: HighLoad) -> Figures:
    """% of the rounds of requests at each block size, by category; the mean of benchmarks."""
    found: Figures = {}
    for load in TABLE4["8b"]:
        shares = {name: block_shares(run) for name, run in runs["+ Bucketing", load].items()}
        for category in (*CATEGORIES, "overall"):
            names = [name for name in shares if category in (BENCHMARKS[name], "overall")]
            for i, size in enumerate(BLOCK_SIZES if names else ()):
                found[f"B = {size}, C = {load}, {category}"] = mean([shares[name][i] for name in names])
        full = [block_shares(run) for run in runs[BUCKETS_FULL, load].values()]
        for i, size in enumerate(BLOCK_SIZES):
            found[f"B = {size}, C = {load}, overall, {FULL}"] = mean([each[i] for each in full])
    return found


def block_shares(run: Served) -> list[float]:
    """% of rounds at 8, 16 and 32."""
    sizes = run.run.emission_block_size[run.run.emission_block_size != PREFILL_STEP]
    return [100 * float((sizes == size).mean()) for size in BLOCK_SIZES]


def table6(runs: HighLoad) -> Figures:
    """Tokens per second, the mean over C = 2..128, with more and more of the policy, and the gain over fixed blocks."""
    names = [name for name in dict.fromkeys(name for name, _ in runs) if not name.startswith("fixed:")]
    return with_gains({name: mean([rate(runs, name, load) for load in HIGH_LOADS]) for name in names}, names[0])
