"""What the paper's results are computed for: one model's acceptance on one GPU, served one by one or many at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recguide.sim.adaptive import Adaptive, Equation3
from recguide.sim.batching import BATCHINGS
from recguide.sim.costs import CostModel
from recguide.sim.crossfit import folds_of
from recguide.sim.fitting import fit_in_sample
from recguide.sim.history import Floats
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.methods import Policy
from recguide.sim.metrics import metrics_of
from recguide.sim.overlap import Overlap
from recguide.sim.paper.published import BENCHMARKS, BLOCK_SIZES
from recguide.sim.paper.repricing import repriced
from recguide.sim.paper.serving import full_buckets, repeating_rows
from recguide.sim.replay import replay
from recguide.sim.rounds import Rounds, rounds_of
from recguide.sim.tidar import Tidar
from recguide.traces.dense import DenseTrace

ALIASES = {"aime-2025": "aime2025", "math-500": "math500", "mmlu-stem": "gpqa", "mmlu_stem": "gpqa"}
"""Names of recorded datasets; MMLU's science questions stand in the place of GPQA, whose text may not be passed on."""
APART = "mt-bench"
EACH_PLACE = 12
"""Requests served for each place in flight at least. With four, the prefills that its first requests had before the
steady window made everything 2% faster than long runs are, and full buckets 4%; with twelve both are within 1%."""
Metrics = Mapping[str, float | int | None]


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One model's acceptance on one GPU."""

    label: str
    model: str | None
    """"8b" or "14b", for which the paper has figures, or None."""
    trace: DenseTrace
    """Served; its datasets have the names of the paper's benchmarks."""
    calibration: DenseTrace
    """Fitted to; it shares no prompt with the other one."""
    costs: CostModel
    policy_costs: CostModel
    """What Equation 3 sees as T_C(B)."""
    lean_costs: CostModel | None = None
    """With the host's time of SGLang's own speculative path, where that is published."""
    unadapted: DenseTrace | None = None
    """The served requests as drafted without the adapter, where that was recorded or made."""
    _kept: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: "Callable[[Subject], Any]") -> Any:  # noqa: ANN401 - figures, runs or a policy
        """What ``make`` gives for it, computed the first time that it is asked for."""
        if name not in self._kept:
            self._kept[name] = make(self)
        return self._kept[name]

    @property
    def fitted(self) -> Adaptive:
        """The adaptive policy, fitted to the calibration requests; the paper's models at their authors' prices."""
        found: Adaptive = self.once("fitted", _fitted)
        return found

    @property
    def whole(self) -> DenseTrace:
        """Both parts of its requests, the datasets that the paper does not have included."""
        return replace(self.trace, requests=(*self.trace.requests, *self.calibration.requests))

    @property
    def benchmarks(self) -> list[str]:
        """Those of the paper that it has, in the paper's order."""
        there = {request.dataset for request in self.trace.requests}
        return [name for name in BENCHMARKS if name in there]

    def of(self, names: Sequence[str]) -> DenseTrace:
        """The served requests of these datasets."""
        return only(self.trace, names)

    def priced(self, costs: CostModel) -> "Subject":
        """The same at other costs."""
        return replace(self, costs=costs, _kept={})


def _fitted(subject: Subject) -> Adaptive:
    found = fit_in_sample(subject.calibration, subject.policy_costs)
    return repriced(found, subject.calibration) if subject.model else found


def only(trace: DenseTrace, names: Sequence[str]) -> DenseTrace:
    """The requests of these datasets."""
    return replace(trace, requests=tuple(request for request in trace.requests if request.dataset in names))


def recorded_subject(label: str, trace: DenseTrace, costs: CostModel) -> Subject:
    """Recorded requests: the first two of five folds of prompts are fitted to, the others are served."""
    renamed = tuple(
        replace(request, dataset=ALIASES.get(request.dataset, request.dataset)) for request in trace.requests
    )
    folds = folds_of(renamed)
    served, fitted = (
        replace(trace, requests=tuple(r for r, fold in zip(renamed, folds, strict=True) if (fold < 2) == first))
        for first in (False, True)
    )
    return Subject(label, None, served, fitted, costs, costs)


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """One request at a time."""

    metrics: Metrics
    seconds: Floats
    """[requests] Of each one's rounds, prefills excluded."""
    tokens: Floats
    """[requests] That these rounds gave."""

    @property
    def tokens_per_s(self) -> float:
        """Of decoding."""
        return float(self.tokens.sum() / self.seconds.sum())


def alone(trace: DenseTrace, costs: CostModel, policy: Policy, repeating: bool = False) -> Alone:
    """Serve the requests one by one; ``repeating``: branches repeat the draft tokens that they follow."""
    keys = policy.keys if isinstance(policy, Overlap | Tidar) else ()
    rounds = rounds_of(trace, keys)
    if repeating and isinstance(policy, Overlap):
        run = repeating_rows(rounds, costs, policy)
    else:
        run = replay(rounds, costs, policy, concurrency=1, order=range(len(trace.requests)))
    seconds, prefill = run.steps["seconds"], run.steps["block_size"] == PREFILL_STEP
    owner = np.cumsum(prefill) - 1
    spent = np.bincount(owner, np.where(prefill, 0.0, seconds), len(trace.requests))
    return Alone(metrics_of(run, rounds), spent.astype(np.float64), (run.output_tokens - 1).astype(np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """Many requests at a time."""

    run: Replay
    rounds: Rounds
    metrics: Metrics

    @property
    def tokens_per_s(self) -> float:
        """Of all requests, in the steady window where there is one."""
        return float(self.metrics["steady_output_throughput"] or self.metrics["output_throughput"] or 0.0)

    @property
    def per_request(self) -> float:
        """Tokens per second and request, in the same window."""
        steady = self.metrics["steady_output_throughput_per_request"]
        return float(steady or self.metrics["output_throughput_per_request"] or 0.0)


def served(
    trace: DenseTrace,
    costs: CostModel,
    policy: Policy,
    concurrency: int,
    batching: str = "bucket",
    rounds: Rounds | None = None,
    knowing: float | None = None,
) -> Served:
    """Serve shuffled requests, each as often as a steady run takes, with so many in flight.

    ``batching`` is one of :mod:`recguide.sim.batching`, or "full": executed batches of so many, with ``knowing`` by
    block sizes that know every next round, at this price of time in tokens per second.
    """
    rounds = rounds or rounds_of(trace)
    sizes = len(BLOCK_SIZES) if batching == "full" else 1
    order = shuffled(len(trace.requests), sizes * EACH_PLACE * concurrency)
    if batching == "full":
        if not isinstance(policy, Equation3):
            raise TypeError("full buckets are for the adaptive policy")
        run = full_buckets(rounds, costs, policy, concurrency, order, sizes, knowing)
    else:
        run = replay(rounds, costs, policy, concurrency=concurrency, order=order, batching=BATCHINGS[batching])
    return Served(run, rounds, metrics_of(run, rounds))


def shuffled(requests: int, least: int) -> list[int]:
    """All of the requests in random order, again and again until there are enough; each is there equally often."""
    rng = np.random.default_rng(0)
    shuffles = [rng.permutation(requests) for _ in range(max(-(-least // requests), 1))]
    order: list[int] = np.concatenate(shuffles).tolist()
    return order


def mean(values: Sequence[float]) -> float:
    """Over benchmarks."""
    return float(np.mean(values))
