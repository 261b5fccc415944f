"""The error budget: how much of the gap between simulated and measured throughput each ingredient carries.

From the simulated run to the measured one in five moves, each of which puts a measured ingredient in the place of a
simulated one and leaves those before it measured. The parts add up to the whole gap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

from recguide.sim.log import Replay
from recguide.sim.measurement import Measurement
from recguide.sim.ownpolicies import is_own
from recguide.sim.windows import steady_window
from recguide.traces.dense import DenseTrace
from recguide.validation.pricing import host_of, priced, retimed
from recguide.validation.replaying import Costs, simulated

PLANNER_OF = {
    **dict.fromkeys(("adaptive", "adaptive-s", "goodput", "bandit", "own"), "adaptive"),
    "allocation": "allocation",
}
"""By the policy's name without options, "own" for users' own; what is not here looks at nothing."""
INGREDIENTS = ACCEPTANCE, COMPOSITION, FORWARDS, CPU, HOST = (
    "acceptance",
    "batch composition",
    "step cost",
    "CPU speed",
    "host time",
)


@dataclass(frozen=True, slots=True)
class Budget:
    """Logarithms of throughputs, so that parts add up: 0.01 is one percent too fast."""

    gap: float
    """Simulated over measured."""
    parts: Mapping[str, float]
    """By ingredient."""
    acceptance_known: bool
    """Whether the run says what was accepted; where it does not, that is part of the batch composition."""


def budget(
    foretold: Replay, measured: Measurement, costs: Costs, served: DenseTrace | None, slower: float = 1.0
) -> Budget:
    """The budget of one run; ``served`` is its own trace, where the model said what is accepted.

    Its CPU was ``slower`` times slower than that of the costs.
    """
    runs = [foretold]
    forced = measured.about.acceptance == "forced"
    # a request of the served trace is one that was sent, in that order
    accepted = None if served is None else simulated(served, list(range(len(served.requests))), measured, costs)[0]
    runs.append(accepted or foretold)
    policy = measured.about.policy
    forward_s, host_s = priced(measured.run, costs.steps, layout_of(policy), planner_named(policy))
    runs += [
        retimed(measured.run, forward_s + host_s),
        retimed(measured.run, measured.forward_s + host_s),
        retimed(measured.run, measured.forward_s + host_s * slower),
        retimed(measured.run, measured.forward_s + host_of(measured.run, measured.forward_s)),
    ]
    return _of(throughputs(runs), forced or accepted is not None)


def layout_of(policy: str) -> str:
    """The kind of its forwards that verify and draft at once, if it has some."""
    return "quadratic" if policy.partition(":")[0] == "tidar" else "rows"


def planner_named(policy: str) -> str:
    """What :func:`recguide.sim.methods.planned_by` says of the policy with this name."""
    head, _, options = policy.partition(":")
    if head == "regime":
        return "allocation" if "above=allocation" in options.split(",") else "adaptive"
    return PLANNER_OF.get("own" if is_own(policy) else head, "")


def _of(speeds: Sequence[float], known: bool) -> Budget:
    steps = [log(before / after) for before, after in pairwise(speeds)]
    return Budget(log(speeds[0] / speeds[-1]), dict(zip(INGREDIENTS, steps, strict=True)), known)


def throughputs(runs: Sequence[Replay]) -> list[float]:
    """Tokens per second of all requests: in the steady windows, or of whole runs where one of them has none."""
    windows = [steady_window(run) for run in runs]
    if None in windows:
        windows = [(float(run.sent_s.min()), float(run.finished_s.max())) for run in runs]
    return [_speed(run, *window) for run, window in zip(runs, windows, strict=True) if window]


def _speed(run: Replay, start: float, end: float) -> float:
    ends = (run.steps["start_s"] + run.steps["seconds"])[run.emission_step]
    return float(run.emission_tokens[(ends > start) & (ends <= end)].sum()) / (end - start)
