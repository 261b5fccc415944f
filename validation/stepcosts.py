"""A cost model out of served steps: what simulation would say if the profile were these steps themselves.

Seconds of each kind of forward, and of the host, are a constant and shares for each request, query token and context
token, none of them negative, by least squares over every second step. The steps in between are left to be foretold.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from recguide.sim.costs import HOST, CostModel
from recguide.sim.curves import Curve, through
from recguide.sim.log import PREFILL_STEP
from recguide.sim.measurement import Measurement
from recguide.sim.oneforward import kind_of
from recguide.sim.rounds import AR
from recguide.traces.errors import InputError
from recguide.validation.budget import layout_of, planner_named
from recguide.validation.pricing import emissions_by_step, host_of

Floats = NDArray[np.float64]
Sample = tuple[str, float, float, float, float]
"""Kind, requests, query tokens and context tokens of a forward, and its seconds."""


def costs_of_steps(runs: Sequence[Measurement], name: str = "served steps") -> CostModel:
    """The cost model of the even steps of these runs, which must be of one model on one machine.

    The host's time around a prefill counts as the prefill's, for the simulator knows no other.
    """
    samples = [sample for run in runs for sample in _samples(run)]
    by_kind: dict[str, list[Sample]] = {}
    for sample in samples:
        by_kind.setdefault(sample[0], []).append(sample)
    fitted = {kind: _fitted(kind, found) for kind, found in by_kind.items()}
    origin = runs[0].about.origin
    known = [name for name, kind in HOST.items() if kind in fitted]
    about = {"model": origin.get("model", ""), "gpu": origin.get("gpu", "")}
    return CostModel(partial(_curve, fitted), name=name, steps_of=known, **about)


def _samples(measured: Measurement) -> Iterator[Sample]:
    run, layout, planner = measured.run, layout_of(measured.about.policy), planner_named(measured.about.policy)
    host_s = host_of(run, measured.forward_s)
    names = ("block_size", "requests", "query_tokens", "context_tokens", "draft_tokens")
    columns = [run.steps[name].tolist() for name in names]
    sizes, cached = emissions_by_step(run)
    for step in range(0, len(host_s), 2):
        block_size, requests, tokens, context, drafted = (column[step] for column in columns)
        forward_s, draft_s, own = float(measured.forward_s[step]), float(measured.draft_s[step]), sizes[step]
        if block_size == PREFILL_STEP:
            yield "prefill", requests, tokens, context, forward_s + float(host_s[step])
            continue
        if drafted and tokens:
            yield HOST.get(planner, "host"), requests, tokens, 0, float(host_s[step])
            drafting = own > AR
            some = (
                (requests, context) if drafted == tokens else (int(drafting.sum()), int(cached[step][drafting].sum()))
            )
            yield "draft", some[0], drafted, some[1], draft_s
            yield "verify", requests, tokens, context, forward_s - draft_s
            continue
        kind = kind_of(layout, len(own) < requests, tokens, int(own.sum()), int(own.max(initial=0)))
        yield kind, requests, tokens or drafted, context, forward_s
        own_host = HOST.get(planner, "host") if kind == "decode" else HOST[layout]
        yield own_host, requests, tokens or drafted, 0, float(host_s[step])


def _fitted(kind: str, samples: Sequence[Sample]) -> Floats:
    """Seconds for nothing, a request, a query token, a context token."""
    table = np.array([sample[1:] for sample in samples], np.float64)
    design = np.column_stack([np.ones(len(table)), table[:, :3]])
    # columns of like size, so that none is lost in rounding
    scale = np.maximum(design.max(axis=0), 1)
    coefficients: Floats = nnls(design / scale, table[:, 3])[0] / scale
    return coefficients


def _curve(fitted: Mapping[str, Floats], kind: str, requests: int, query_tokens: int) -> Curve:
    if kind not in fitted:
        raise InputError(f"served steps: no even step with a forward of kind {kind!r}; there are: {', '.join(fitted)}")
    constant, each, token, context = fitted[kind].tolist()
    start = constant + each * requests + token * query_tokens
    return replace(through({0.0: start, 1.0: start + context}), low=-math.inf, high=math.inf)
