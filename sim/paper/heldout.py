"""What policies gain on datasets that they were not fitted to, with 95% intervals over datasets, beside the paper's.

Each dataset is served by itself, with policies that were fitted to all other ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import joblib
import numpy as np
from scipy.stats import t as student

from recguide.sim.adaptive import Adaptive, Equation3, adaptive
from recguide.sim.batching import BATCHINGS
from recguide.sim.chances import keys_for
from recguide.sim.costs import CostModel
from recguide.sim.fitting import fit_in_sample
from recguide.sim.joint import Joint
from recguide.sim.joint_fit import decode_rate, fit_joint
from recguide.sim.lowload import with_low_load
from recguide.sim.methods import Policy
from recguide.sim.overlap import Overlap
from recguide.sim.paper.published import BLOCK_SIZES, LOADS
from recguide.sim.paper.serving import full_buckets, largest_of
from recguide.sim.policies import ar, fixed, recipe
from recguide.sim.regime import Regime, low_load_rules, switch_of
from recguide.sim.replay import replay
from recguide.sim.rounds import Rounds, rounds_of
from recguide.sim.sharing import Allocation
from recguide.sim.walks import always, walk
from recguide.traces.dense import DenseTrace

LEAST, EACH_PLACE = 24, 3
"""Requests served: at least so many, and so many for each place in flight; each one of a dataset equally often."""
READINGS = ("overlap", "buckets", "full buckets", "padded", "no padding")
"""What the paper's rule may be taken for at any load; the fastest one on the very requests that are served counts."""
Rates = Mapping[tuple[str, int], float]
"""Tokens per second of decoding, by way and concurrency."""


@dataclass(frozen=True, slots=True)
class Gain:
    """One way over another one at a load."""

    load: int
    gain: float
    low: float
    high: float
    """95% interval of the mean over datasets (Student's t, of logarithms)."""
    of_dataset: Mapping[str, float]


def held_out(trace: DenseTrace, costs: CostModel, loads: Sequence[int] = LOADS, jobs: int = -1) -> dict[str, Rates]:
    """By dataset: every way's rates at every load."""
    names = sorted({request.dataset for request in trace.requests})
    if len(names) < 2:
        return {}
    run = joblib.delayed(rates_of)
    found = joblib.Parallel(n_jobs=jobs)(run(trace, costs, name, loads) for name in names)
    return dict(zip(names, found, strict=True))


def rates_of(trace: DenseTrace, costs: CostModel, name: str, loads: Sequence[int]) -> Rates:
    """One dataset served under policies that were fitted to the others."""
    others = replace(trace, requests=tuple(request for request in trace.requests if request.dataset != name))
    mine = replace(trace, requests=tuple(request for request in trace.requests if request.dataset == name))
    fitted = with_low_load(others, costs, fit_in_sample(others, costs, concurrencies=loads))
    joint = fit_joint(others, costs, fitted)
    rounds = rounds_of(mine, keys_for(BLOCK_SIZES))
    best = _best_fixed(rounds_of(others), fitted)
    found: dict[tuple[str, int], float] = {}
    ways, blocks = _ways(fitted, joint.over(rounds), costs), adaptive(fitted)
    for load in loads:
        here = {**ways, "best fixed": (fixed(best[load]), "bucket")}
        found |= {(way, load): _rate(rounds, costs, policy, load, batching) for way, (policy, batching) in here.items()}
        found["full buckets", load] = _full_rate(rounds, costs, blocks, load)
        found["in all", load] = found["overlap" if load == 1 else "buckets", load]
        found["full", load] = found["overlap" if load == 1 else "full buckets", load]
        found["paper", load] = max(found[way, load] for way in READINGS)
        found["best plain", load] = max(found[way, load] for way in ("best fixed", "overlap"))
    return found


def _ways(fitted: Adaptive, joint: Joint, costs: CostModel) -> dict[str, tuple[Policy, str]]:
    """Policies that are the same at every load, and how their steps are batched."""
    blocks, shared, below = adaptive(fitted), Allocation(fitted, costs), low_load_rules(fitted)
    return {
        "AR": (ar, "bucket"),
        "LinearSS": (fixed(16), "bucket"),
        "recipe": (recipe, "bucket"),
        "overlap": (Overlap(), "bucket"),
        "buckets": (blocks, "bucket"),
        "padded": (largest_of(blocks), "pad"),
        "no padding": (blocks, "ragged"),
        "allocation": (shared, "ragged"),
        "regime": (Regime(below, shared, switch_of(fitted, costs, below.block_size)), "ragged"),
        "joint": (joint, "bucket"),
        "joint knows": (replace(joint, clairvoyant=True), "bucket"),
        "joint, no branches": (replace(joint, corrections=0, continuation=False), "bucket"),
        "joint, one correction": (replace(joint, corrections=1), "bucket"),
        "joint, two corrections": (replace(joint, corrections=2), "bucket"),
    }


def _best_fixed(rounds: Rounds, fitted: Adaptive) -> dict[int, int]:
    """By load: the block size with the least time in full batches over these requests."""
    walks = {size: walk(rounds, partial(always, size), fitted.signal) for size in BLOCK_SIZES}
    best = {}
    for load in fitted.loads:
        seconds = {size: float(each.seconds(load.cost_s, len(rounds.first)).sum()) for size, each in walks.items()}
        best[load.concurrency] = min(seconds, key=lambda size: seconds[size])
    return best


def _rate(rounds: Rounds, costs: CostModel, policy: Policy, load: int, batching: str) -> float:
    order = _order(rounds, load)
    return decode_rate(replay(rounds, costs, policy, concurrency=load, order=order, batching=BATCHINGS[batching]))


def _full_rate(rounds: Rounds, costs: CostModel, policy: Equation3, load: int) -> float:
    """Of executed batches of so many requests, three times as many in flight."""
    sizes = len(BLOCK_SIZES)
    return decode_rate(full_buckets(rounds, costs, policy, load, _order(rounds, sizes * load), sizes))


def _order(rounds: Rounds, in_flight: int) -> list[int]:
    count = len(rounds.first)
    times = -(-max(LEAST, EACH_PLACE * in_flight) // count)
    return list(range(count)) * times


COMPARED: Mapping[str, tuple[str, str]] = {
    "overlap (B = 16) over LinearSS (B = 16)": ("overlap", "LinearSS"),
    "adaptive buckets over the best fixed block": ("buckets", "best fixed"),
    "adaptive full buckets over the best fixed block": ("full buckets", "best fixed"),
    "adaptive blocks without padding over the best fixed block": ("no padding", "best fixed"),
    "allocation over AR": ("allocation", "AR"),
    "allocation over the recipe": ("allocation", "recipe"),
    "allocation over the best fixed block": ("allocation", "best fixed"),
    "allocation over adaptive in buckets": ("allocation", "buckets"),
    "allocation over adaptive blocks without padding": ("allocation", "no padding"),
    "regime with allocation over the paper's rule at its best": ("regime", "paper"),
    "joint over the paper's rule at its best": ("joint", "paper"),
    "joint over the paper's rule, full buckets": ("joint", "full"),
    "joint over the paper's rule, C in flight in all": ("joint", "in all"),
    "joint over the better of overlap and the best fixed block": ("joint", "best plain"),
    "branches: joint over joint without them": ("joint", "joint, no branches"),
    "more than one correction: joint over joint with one": ("joint", "joint, one correction"),
    "a third correction: joint over joint with two": ("joint", "joint, two corrections"),
    "what knowing the next round would add to joint": ("joint knows", "joint"),
}


def gains_of(rates: Mapping[str, Rates]) -> dict[str, list[Gain]]:
    """Every comparison at every load, means of logarithms over datasets."""
    loads = sorted({load for found in rates.values() for _, load in found})
    return {
        name: [
            _gain({dataset: found[one, load] / found[other, load] for dataset, found in rates.items()}, load)
            for load in loads
        ]
        for name, (one, other) in COMPARED.items()
    }


def _gain(ratios: Mapping[str, float], load: int) -> Gain:
    logs = np.log(np.array(list(ratios.values())))
    half = float(student.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5) if len(logs) > 1 else 0.0
    mean, low, high = (float(np.expm1(logs.mean() + sign * half)) for sign in (0, -1, 1))
    return Gain(load, mean, low, high, {name: ratio - 1 for name, ratio in ratios.items()})


def beaten_everywhere(gains: Sequence[Gain]) -> bool:
    """Whether the whole interval lies above 0 at every load."""
    return all(gain.low > 0 for gain in gains)
