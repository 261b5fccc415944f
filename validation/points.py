"""One point of a campaign: what was measured, what the simulator says of the same requests, and the difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from recguide.sim.campaigns import PointKey
from recguide.sim.figures import Figures, percentile_name
from recguide.sim.log import Replay
from recguide.sim.measurement import Measurement
from recguide.sim.metrics import metrics_of
from recguide.sim.rounds import Rounds
from recguide.traces.dense import DenseTrace
from recguide.validation.agreement import Agreement, agreement
from recguide.validation.budget import Budget, budget
from recguide.validation.replaying import Costs, Recorded, limited, simulated

THROUGHPUT, PER_REQUEST = "throughput", "throughput_per_request"
COUNTED = ("prefill_forwards", "decode_forwards", "draft_forwards", "verify_forwards", "forwards", "num_rounds",
           "total_output_tokens")  # fmt: skip
OUTCOMES = ("correction_coverage", "correction_reuse", "continuation_coverage", "continuation_reuse", "no_hit")

Found = Mapping[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Compared:
    """Figures of a point by name; None where there is nothing to take one of."""

    key: PointKey
    repeats: int
    throughputs: tuple[float, ...]
    """Of the repeats."""
    measured: Found
    """Means over the repeats."""
    spread: Found
    """(largest - smallest) / mean of the repeats; None of a single one."""
    simulated: Found
    """Means over the repeats, where they are not foretold alike."""
    error: Found
    """Simulated over measured, less 1: positive is too fast, or too long."""
    difference: Found
    """Simulated less measured, of counts and shares."""
    agreement: Agreement
    """The mean over the repeats."""
    budget: Budget
    """Of the repeat with the median throughput."""
    other_outputs: int
    """Requests of the first repeat whose output is longer or shorter than the recorded one."""
    held_out: tuple[str, ...] = field(default=())
    """What of it neither profile nor fit has seen: "concurrency", "dataset", "policy"."""
    budget_of: int = 0
    """Which of the repeats that is, from 0."""
    cpu: tuple[float | None, ...] = field(default=())
    """Of the repeats: how many times slower the CPU was than while the profile was measured."""
    loop_us: tuple[float | None, ...] = field(default=())
    """Of the repeats: the Python loop that this rests on."""


def compare(
    runs: Sequence[Measurement],
    recorded: Recorded,
    costs: Sequence[Costs],
    percentiles: Sequence[float],
    served: Sequence[DenseTrace | None],
    slower: Sequence[float | None],
) -> Compared:
    """The repeats of one point against the simulator.

    Of each repeat, ``costs`` are what its steps are foretold by, ``served`` is its own trace, where it has one, and
    ``slower`` says how many times slower the CPU was than these costs are of, where that is known.
    """
    foretold, rounds = _foretold(runs, recorded, costs)
    theirs, ours = _both(runs, foretold, rounds, percentiles)
    measured, spread = _means(theirs), _spreads(theirs)
    middle = int(np.argsort([each[THROUGHPUT] or 0 for each in theirs])[(len(theirs) - 1) // 2])
    return Compared(
        PointKey(*runs[0].about.key),
        len(runs),
        tuple(float(each[THROUGHPUT] or 0) for each in theirs),
        measured,
        spread,
        ours,
        {name: _error(ours[name], measured[name]) for name in relative(percentiles)},
        {name: _less(ours[name], measured[name]) for name in ours if name not in relative(percentiles)},
        _agreement([agreement(mine, each.run) for mine, each in zip(foretold, runs, strict=True)]),
        budget(foretold[middle], runs[middle], costs[middle], served[middle], slower[middle] or 1.0),
        _other_outputs(recorded, runs[0]),
        budget_of=middle,
    )


def _foretold(runs: Sequence[Measurement], recorded: Recorded, costs: Sequence[Costs]) -> tuple[list[Replay], Rounds]:
    """The simulated run of each repeat; repeats with the same requests and costs, cut alike, share it."""
    known: dict[tuple[object, ...], tuple[Replay, Rounds]] = {}
    made = []
    for each, known_costs in zip(runs, costs, strict=True):
        rows = recorded.rows_of(each)
        limits = () if each.limits is None else tuple(each.limits.tolist())
        key = (*rows, limits, each.stopped and len(each.run.steps["seconds"]), known_costs)
        if key not in known:
            known[key] = simulated(recorded.trace, rows, each, known_costs)
        made.append(known[key])
    return [run for run, _ in made], made[0][1]


def _both(
    runs: Sequence[Measurement], foretold: Sequence[Replay], rounds: Rounds, percentiles: Sequence[float]
) -> tuple[list[Found], Found]:
    """The figures of each repeat, and those that are foretold: their means, where repeats are not foretold alike."""
    figures = Figures(tuple(percentiles))
    apart = foretold if len(set(map(id, foretold))) > 1 else foretold[:1]
    both = [metrics_of(run, rounds, figures) for run in (*(each.run for each in runs), *apart)]
    steady = all(each["steady_output_throughput"] is not None for each in both)
    named: list[Found] = [_named(each, steady, percentiles) for each in both]
    theirs, ours = named[: len(runs)], named[len(runs) :]
    return theirs, _means(ours) if len(ours) > 1 else ours[0]


def relative(percentiles: Sequence[float]) -> tuple[str, ...]:
    """Figures whose error is a ratio."""
    hows = ("mean", "median", *map(percentile_name, percentiles))
    latencies = (f"{how}_{name}_ms" for name in ("tpot", "ttft") for how in hows)
    return THROUGHPUT, PER_REQUEST, *latencies, "accept_length", "tpf"


def _named(found: Found, steady: bool, percentiles: Sequence[float]) -> dict[str, float | int | None]:
    window = "steady_" if steady else ""
    throughput = {
        THROUGHPUT: found[f"{window}output_throughput"],
        PER_REQUEST: found[f"{window}output_throughput_per_request"],
    }
    shares = [name for name in found if name.startswith("block_share_")]
    kept = (*relative(percentiles)[2:], *COUNTED, *shares, *OUTCOMES)
    return {**throughput, **{name: found[name] for name in kept}}


def _means(found: Sequence[Found]) -> dict[str, float | None]:
    return {name: _mean([each[name] for each in found]) for name in found[0]}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _spreads(found: Sequence[Found]) -> dict[str, float | None]:
    spreads: dict[str, float | None] = {}
    for name in found[0]:
        values = [float(value) for each in found if (value := each[name]) is not None]
        # one alone says nothing of how far they lie apart
        mean = sum(values) / len(values) if len(values) == len(found) > 1 else 0.0
        spreads[name] = (max(values) - min(values)) / mean if mean > 0 else None
    return spreads


def _error(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else ours / theirs - 1


def _less(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours - theirs


def _agreement(found: Sequence[Agreement]) -> Agreement:
    shares = (sum(getattr(each, name) for each in found) / len(found) for name in ("places", "decisions", "outcomes"))
    places, decisions, outcomes = shares
    return Agreement(found[0].rounds, places, decisions, outcomes, all(each.same_steps for each in found))


def _other_outputs(recorded: Recorded, run: Measurement) -> int:
    known = [recorded.trace.requests[recorded.rows[name]].output_tokens for name in run.about.request_ids]
    if run.stopped:
        # what it was stopped at says nothing of its length
        return 0
    return int((run.run.output_tokens != limited(np.array(known), run)).sum())
