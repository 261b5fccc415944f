"""Measured runs replayed in the simulator: the same requests in the same order, under the same rules."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recguide.sim.arrivals import Clients, as_recorded
from recguide.sim.batching import batching_named
from recguide.sim.catalogue import make_policy, rounds_for
from recguide.sim.costs import CostModel
from recguide.sim.log import Replay
from recguide.sim.measurement import Measurement
from recguide.sim.memory import Limits
from recguide.sim.replay import serve
from recguide.sim.rounds import Rounds
from recguide.traces.checks import require
from recguide.traces.dense import DenseTrace
from recguide.traces.errors import InputError


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
        for field, known in (("prompt_tokens", True), ("output_tokens", about.acceptance == "forced")):
            recorded = np.array([getattr(self.trace.requests[row], field) for row in rows])
            wrong = np.flatnonzero(recorded != getattr(run, field))
            if known and len(wrong):
                at = int(wrong[0])
                name, found, allowed = about.request_ids[at], getattr(run, field)[at], recorded[at]
                raise InputError(f"{about.name}: request {name!r}: {field}: found {found}, allowed: {allowed}")
        return rows


def recorded(trace: DenseTrace) -> Recorded:
    """A trace, its requests by id."""
    return Recorded(trace, {request.request_id: row for row, request in enumerate(trace.requests)})


def simulated(trace: DenseTrace, rows: list[int], measured: Measurement, costs: Costs) -> tuple[Replay, Rounds]:
    """The run as the simulator foretells it from these rows of a trace, and the rounds that it was told."""
    about = measured.about
    rounds = rounds_for(trace, [about.policy])
    pages = None if about.kv_tokens is None else Limits().pages(about.kv_tokens)
    run = serve(
        rounds,
        costs.steps,
        make_policy(about.policy, rounds, costs.policies),
        Clients(as_recorded(rounds, rows), about.concurrency),
        batching=batching_named(about.batching),
        limits=Limits(about.max_batched_tokens, max_running=about.concurrency, kv_pages=pages),
        closed=True,
    )
    return run, rounds
