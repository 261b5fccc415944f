"""Measured runs replayed in the simulator: the same requests in the same order, under the same rules."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recguide.sim.arrivals import Arrival, Clients, as_recorded
from recguide.sim.batching import batching_named
from recguide.sim.catalogue import make_policy, rounds_for
from recguide.sim.costs import CostModel
from recguide.sim.log import Replay
from recguide.sim.measurement import Measurement
from recguide.sim.memory import Limits
from recguide.sim.replay import serve
from recguide.sim.rounds import Ints, Rounds
from recguide.sim.stopped import first_steps
from recguide.traces.checks import require
from recguide.traces.dense import DenseTrace
from recguide.traces.errors import InputError
from recguide.traces.files import read_trace


class Costs(NamedTuple):
    """What simulated steps take, and what policies are told that they take."""

    steps: CostModel
    policies: CostModel
    """The profile's, which the served policies looked at."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The trace that the measured requests are of."""

    trace: DenseTrace
    rows: Mapping[str, int]
    """By the id of a request."""

    def rows_of(self, measured: Measurement) -> list[int]:
        """Rows of the requests that were served; ValueError unless they are the recorded ones."""
        about, run = measured.about, measured.run
        for name, there in about.trace.items():
            here = getattr(self.trace.provenance, name, None)
            require(here == there, f"{about.name}: trace {name}", there, f"{here!r}, that of --trace")
        unknown = [name for name in about.request_ids if name not in self.rows]
        if unknown:
            raise InputError(f"{about.name}: request {unknown[0]!r}: not in the trace")
        rows = [self.rows[name] for name in about.request_ids]
        prompts, outputs = _lengths(self.trace, rows)
        _hold(about.name, measured, "prompt_tokens", run.prompt_tokens, prompts, run.prompt_tokens == prompts)
        if about.acceptance == "forced":
            wanted = limited(outputs, measured)
            same = run.output_tokens <= wanted if measured.stopped else run.output_tokens == wanted
            _hold(about.name, measured, "output_tokens", run.output_tokens, wanted, same)
        return rows


def _hold(where: str, measured: Measurement, field: str, found: Ints, allowed: Ints, holds: NDArray[np.bool_]) -> None:
    """InputError with the first request that is wrong."""
    if not holds.all():
        at = int(np.argmin(holds))
        where = f"{where}: request {measured.about.request_ids[at]!r}: {field}"
        raise InputError(f"{where}: found {found[at]}, allowed: {allowed[at]}")


def limited(outputs: Ints, measured: Measurement) -> Ints:
    """[requests] Output tokens as far as the run let each request come, had it not been stopped."""
    return outputs if measured.limits is None else np.minimum(outputs, measured.limits)


def recorded(trace: DenseTrace) -> Recorded:
    """A trace, its requests by id."""
    return Recorded(trace, {request.request_id: row for row, request in enumerate(trace.requests)})


def own_trace(path: Path, measured: Measurement) -> DenseTrace | None:
    """The run's own trace, where there is one; InputError unless it is of the requests that were served, in order."""
    if not path.exists():
        return None
    trace, run = read_trace(path), measured.run
    count, sent = len(trace.requests), len(measured.about.request_ids)
    require(count == sent, f"{path}: requests", count, f"{sent}, as in {measured.about.name}")
    prompts, outputs = _lengths(trace, range(count))
    _hold(str(path), measured, "prompt_tokens", prompts, run.prompt_tokens, prompts == run.prompt_tokens)
    # of a run that was stopped the rest of the text may be there, too
    same = outputs >= run.output_tokens if measured.stopped else outputs == run.output_tokens
    _hold(str(path), measured, "output_tokens", outputs, run.output_tokens, same)
    return trace


def _lengths(trace: DenseTrace, rows: Iterable[int]) -> tuple[Ints, Ints]:
    """[rows] Prompt tokens and output tokens."""
    pairs = [(trace.requests[row].prompt_tokens, trace.requests[row].output_tokens) for row in rows]
    prompts, outputs = np.array(pairs, np.int64).T
    return prompts, outputs


def simulated(trace: DenseTrace, rows: list[int], measured: Measurement, costs: Costs) -> tuple[Replay, Rounds]:
    """The run as the simulator foretells it from these rows of a trace, and the rounds that it was told.

    A run that was stopped is foretold up to its last step.
    """
    about = measured.about
    rounds = rounds_for(trace, [about.policy])
    pages = None if about.kv_tokens is None else Limits().pages(about.kv_tokens)
    outputs = rounds.output_tokens[rows]
    wanted = limited(outputs, measured)
    arrivals = as_recorded(rounds, rows)
    run = serve(
        rounds,
        costs.steps,
        make_policy(about.policy, rounds, costs.policies),
        Clients(map(_shortened, arrivals, wanted.tolist()), about.concurrency),
        batching=batching_named(about.batching),
        limits=Limits(about.max_batched_tokens, max_running=about.concurrency, kv_pages=pages),
        resized=bool((wanted < outputs).any()),
        closed=True,
    )
    return first_steps(run, len(measured.run.steps["seconds"])) if measured.stopped else run, rounds


def _shortened(arrival: Arrival, output_tokens: int) -> Arrival:
    return arrival._replace(output_tokens=output_tokens)
