"""What a fitted policy gains on requests that it has seen, and on those that it has not (by prompt and by dataset)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from recguide.sim.adaptive import Adaptive, adaptive
from recguide.sim.costs import CostModel
from recguide.sim.fitting import Calibration, Settings, fit_rows
from recguide.sim.history import Floats
from recguide.sim.overlap import Bools
from recguide.sim.rounds import Ints, Rounds
from recguide.sim.walks import Walk, always, plan_of, walk
from recguide.traces.dense import DenseRequest, DenseTrace

FOLDS = 5
RESAMPLES = 1000
WAYS = ("in_sample", "by_prompt", "by_dataset")
"""Fitted to the requests themselves, to other prompts, to other datasets."""


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """[loads, requests] Seconds of each request's rounds at full batches: under the policy, and at the fixed block
    size that is fastest on the requests that the policy was fitted to. NaN where nothing was tried."""

    policy: Floats
    fixed: Floats

    def gain(self, chosen: Bools, seed: int = 0) -> list[dict[str, float]]:
        """By load: how much faster the policy is, and its 95% interval by bootstrap over the chosen requests."""
        count = int(chosen.sum())
        draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), RESAMPLES)
        found = []
        for policy, fixed in zip(self.policy[:, chosen], self.fixed[:, chosen], strict=True):
            gains = draws @ fixed / np.maximum(draws @ policy, 1e-300) - 1
            low, high = np.percentile(gains, (2.5, 97.5)).tolist()
            found.append({"gain": float(fixed.sum() / policy.sum() - 1), "low": low, "high": high})
        return found


def crossfit(
    trace: DenseTrace, rounds: Rounds, costs: CostModel, rows: Calibration, settings: Settings
) -> dict[str, Times]:
    """The times of every request by each of the ``WAYS`` that can be tried: one dataset alone leaves out the last."""
    fixed = {size: walk(rounds, partial(always, size), settings.signal) for size in sorted(set(settings.candidates))}
    found: dict[str, Times] = {}
    for way in WAYS:
        splits = list(splits_of(trace.requests, way))
        if splits:
            found[way] = _times(trace, rounds, costs, rows, settings, splits, fixed)
    return found


def splits_of(requests: Sequence[DenseRequest], way: str) -> Iterator[tuple[Bools, Bools]]:
    """The requests to fit to, and those to try the policy on: [requests] each."""
    if way == "in_sample":
        groups, names = np.zeros(len(requests), np.int64), [0]
        yield groups == 0, groups == 0
        return
    groups = folds_of(requests) if way == "by_prompt" else _datasets(requests)
    names = np.unique(groups).tolist()
    for name in names if len(names) > 1 else []:
        yield groups != name, groups == name


def folds_of(requests: Sequence[DenseRequest]) -> Ints:
    """[requests] A fold by prompt: the same prompt is in the same one, whatever else is in the trace."""
    return np.array([int(request.prompt_sha256[:15], 16) % FOLDS for request in requests])


def _datasets(requests: Sequence[DenseRequest]) -> Ints:
    groups: Ints = np.unique([request.dataset for request in requests], return_inverse=True)[1]
    return groups


def _times(
    trace: DenseTrace,
    rounds: Rounds,
    costs: CostModel,
    rows: Calibration,
    settings: Settings,
    splits: Sequence[tuple[Bools, Bools]],
    fixed: Mapping[int, Walk],
) -> Times:
    loads, count = sorted(set(settings.concurrencies)), len(trace.requests)
    times = np.full((2, len(loads), count), np.nan)
    for train, test in splits:
        fitted = fit_rows(trace, rounds, costs, rows, train, settings)
        for i, load in enumerate(fitted.loads):
            own = walk(rounds, plan_of(adaptive(fitted), i), settings.signal, np.flatnonzero(test))
            times[0, i, test] = own.seconds(load.cost_s, count)[test]
            each = [walked.seconds(load.cost_s, count) for walked in fixed.values()]
            best = min(each, key=lambda seconds: float(seconds[train].sum()))
            times[1, i, test] = best[test]
    return Times(*times)


def gains(fitted: Adaptive, requests: Sequence[DenseRequest], times: Mapping[str, Times]) -> dict[str, Any]:
    """Gains over the best fixed block size by way and load, those held out by dataset for each dataset too."""
    loads = [load.concurrency for load in fitted.loads]
    everyone = np.ones(len(requests), bool)
    found: dict[str, Any] = {way: _by_load(loads, each.gain(everyone)) for way, each in times.items()}
    if "by_dataset" in times:
        names = np.array([request.dataset for request in requests])
        found["of_dataset"] = {
            str(name): _by_load(loads, times["by_dataset"].gain(names == name)) for name in np.unique(names)
        }
    return found


def _by_load(loads: Sequence[int], found: Sequence[Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    return {str(load): gain for load, gain in zip(loads, found, strict=True)}
