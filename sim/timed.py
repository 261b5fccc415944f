"""A closed loop's steps with their times, as the event loop would have logged them."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from recguide.sim.batching import Batching
from recguide.sim.bound import over
from recguide.sim.closed import ClosedLoop
from recguide.sim.costs import HOST, PREFILL, ROUND, CostModel
from recguide.sim.curves import Curve
from recguide.sim.history import Floats
from recguide.sim.log import PREFILL_STEP, Replay, Step
from recguide.sim.oneforward import kind_of
from recguide.sim.overlap import Bools, places
from recguide.sim.rounds import AR, Ints

FEW = 4
"""Numbers for which a curve is called one by one."""
KINDS = (np.float64, np.int64, np.float64, *(np.int64,) * 6, np.bool_)
"""Of the fields of ``Step``."""
Columns = dict[str, Any]
"""Arrays by the field names of ``Step``."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Every entry that was played, in order of steps, and of requests within each."""

    step: Ints
    """Number of the round step."""
    request: Ints
    at: Ints
    block_size: Ints
    query_tokens: Ints
    drafts: Bools
    emitted: Ints
    outcome: Ints

    def of(self, those: Bools) -> "Played":
        """Some of the entries."""
        return Played(*(getattr(self, field.name)[those] for field in fields(self)))

    def sums(self, numbers: Ints) -> Ints:
        """Sum over the entries of each step; every step has some."""
        found: Ints = np.add.reduceat(numbers, self._starts)
        return found

    def largest(self, numbers: Ints) -> Ints:
        """The largest number among the entries of each step."""
        found: Ints = np.maximum.reduceat(numbers, self._starts)
        return found

    @property
    def _starts(self) -> Ints:
        return np.flatnonzero(np.diff(self.step, prepend=-1))


def played_in(loop: ClosedLoop) -> Played:
    """What was played in a loop that ran."""
    empty = np.zeros(0, np.int64)
    parts = [(empty, empty, empty, empty, empty, empty > 0, empty, empty)]
    for layout, lane in loop.stretches:
        place, step = lane.played()
        chains, entry = layout.chains, layout.entry[place]
        emits = chains.query_tokens[entry], chains.drafts[entry], chains.emitted[entry], chains.outcome[entry]
        parts.append((step, layout.request[place], layout.at[place], layout.block_size[place], *emits))
    return Played(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def replay_of(loop: ClosedLoop, costs: CostModel, batching: Batching) -> Replay:
    """The replay of a closed loop."""
    rounds, played = loop.rounds, played_in(loop)
    step_of = _steps_of(loop)
    steps = _steps(loop, step_of, _round_steps(loop, played, costs, batching), costs)
    end_s = steps["start_s"] + steps["seconds"]
    sent, started, ended = (np.array(which) for which in (loop.sent_step, loop.start_step, loop.end_step))
    return Replay(
        concurrency=loop.concurrency,
        closed=True,
        request=loop.order,
        prompt_tokens=rounds.prompt_tokens[loop.order],
        output_tokens=rounds.output_tokens[loop.order],
        arrival_s=np.zeros(len(sent)),
        sent_s=steps["start_s"][sent],
        started_s=steps["start_s"][started],
        first_token_s=end_s[started],
        finished_s=end_s[ended],
        steps=steps,
        **_emissions(loop, played, step_of, loop.plan.layout is not None),
        kv_pages=None,
        preemptions=0,
        recomputed_tokens=0,
        seams=0,
        cut_rounds=None,
    )


def _steps_of(loop: ClosedLoop) -> Ints:
    """[round steps] Their numbers among all steps."""
    first, count = (np.array([block[i] for block in loop.blocks], np.int64) for i in (0, 1))
    found: Ints = np.repeat(first - np.cumsum(count) + count, count) + np.arange(loop.num_rounds)
    return found


def _steps(loop: ClosedLoop, step_of: Ints, of_rounds: Columns, costs: CostModel) -> Columns:
    """All steps, prefills among the round steps."""
    of_prefills = _prefill_steps(loop, costs)
    at = np.array([prefill.step for prefill in loop.prefills])
    steps: Columns = {}
    for name in Step._fields[1:]:
        column = np.zeros(loop.num_steps, of_prefills[name].dtype)
        column[at], column[step_of] = of_prefills[name], of_rounds[name]
        steps[name] = column
    # added up in order, as a clock does
    ends = np.cumsum(steps["seconds"])
    return {"start_s": np.concatenate([[0.0], ends[:-1]]), **steps}


def _prefill_steps(loop: ClosedLoop, costs: CostModel) -> Columns:
    tokens = [int(loop.rounds.prompt_tokens[loop.order[prefill.requests]].sum()) for prefill in loop.prefills]
    prompts = [len(prefill.requests) for prefill in loop.prefills]
    curves = [costs.curve(PREFILL, *each) for each in zip(prompts, tokens, strict=True)]
    count = len(tokens)
    nothing = np.zeros(count, np.int64)
    return {
        "in_flight": np.array([prefill.in_flight for prefill in loop.prefills]),
        "seconds": np.array([curve(0) for curve in curves]),
        "block_size": np.full(count, PREFILL_STEP),
        "requests": np.array(prompts),
        "query_tokens": np.array(tokens),
        "context_tokens": nothing,
        "draft_tokens": nothing,
        "padding": nothing,
        "outside": np.array([not curve.covers(0) for curve in curves]),
    }


def _round_steps(loop: ClosedLoop, played: Played, costs: CostModel, batching: Batching) -> Columns:
    counts = [block.steps for block in loop.blocks]
    one_forward = np.repeat(np.array([block.one_forward for block in loop.blocks], np.bool_), counts)
    steps: Columns = {name: np.zeros(loop.num_rounds, kind) for name, kind in zip(Step._fields, KINDS, strict=True)}
    steps["in_flight"] += np.repeat(np.array([block.in_flight for block in loop.blocks], np.int64), counts)
    cached = places(loop.rounds)[2][played.at]
    steps["requests"], steps["context_tokens"] = played.sums(np.ones_like(cached)), played.sums(cached)
    for those, columns in (
        (~one_forward, partial(_linear, batching, loop.plan.planner)),
        (one_forward, partial(_one_forward, str(loop.plan.layout))),
    ):
        if those.any():
            here = those[played.step]
            shared = steps["requests"][those], steps["context_tokens"][those]
            for name, column in columns(costs, played.of(here), cached[here], *shared).items():
                steps[name][those] = column
    return steps


def _linear(
    batching: Batching, planner: str, costs: CostModel, played: Played, cached: Ints, requests: Ints, context: Ints
) -> Columns:
    """Steps that draft, then verify."""
    sizes = played.block_size
    largest, tokens = played.largest(sizes), played.sums(sizes)
    whole = requests * largest
    host = costs.host_of(planner)
    seconds, outside = over_shapes(partial(costs.round_curve, host=host), context, largest, requests)
    apart = (tokens < whole) & (not batching.padded)
    drafted = np.where(largest > AR, whole, 0)
    if apart.any():
        drafts = sizes > AR
        own = played.sums(sizes * drafts)[apart], played.sums(cached * drafts)[apart]
        drafting = played.sums(drafts.astype(np.int64))[apart]
        made, beyond = over_shapes(partial(costs.curve, ROUND[:1]), own[1], drafting, own[0])
        shape = context[apart], requests[apart], tokens[apart]
        checked, too = over_shapes(partial(costs.curve, (*ROUND[1:-1], host)), *shape)
        seconds[apart], outside[apart], drafted[apart] = made + checked, beyond | too, own[0]
    paid = np.where(apart, tokens, whole)
    padding = np.where(drafted > 0, 2 * (paid - tokens), 0)
    found = (seconds, largest, paid, drafted, padding, outside)
    return dict(
        zip(("seconds", "block_size", "query_tokens", "draft_tokens", "padding", "outside"), found, strict=True)
    )


def _one_forward(layout: str, costs: CostModel, played: Played, cached: Ints, requests: Ints, context: Ints) -> Columns:
    """Steps whose forward verifies and drafts."""
    rounds = ~played.drafts
    verified, largest = played.sums(played.block_size * rounds), played.largest(played.block_size * rounds)
    drafted = played.sums(played.query_tokens * played.drafts)
    tokens = played.sums(played.query_tokens * rounds)
    kinds = [kind_of(layout, *each) for each in zip(drafted > 0, tokens, verified, largest, strict=True)]
    names, kind = np.unique(kinds, return_inverse=True)
    seconds, outside = over_shapes(
        lambda which, *shape: costs.curve((str(names[which]),), *shape), context, kind, requests, drafted + tokens
    )
    some = tokens > 0
    if layout in costs.steps_of:
        seconds += over_shapes(partial(costs.curve, (HOST[layout],)), 0 * context, requests, drafted + tokens)[0]
    else:
        count = played.sums(rounds.astype(np.int64))[some]
        seconds[some] += over_shapes(partial(costs.curve, ("host",)), 0 * context[some], count, verified[some])[0]
    return {
        "seconds": seconds,
        "block_size": np.where(some, largest, played.largest(played.block_size)),
        "query_tokens": np.where(some, drafted + tokens, 0),
        "draft_tokens": np.where(some, 0, drafted),
        "outside": outside,
    }


def over_shapes(curve_of: Callable[..., Curve], context: Ints, *shape: Ints) -> tuple[Floats, Bools]:
    """[steps] Seconds at each step's context, and whether they were extrapolated; each shape's curve is made once."""
    seconds, outside = np.zeros(len(context)), np.zeros(len(context), np.bool_)
    if not len(context):
        return seconds, outside
    sizes = [int(column.max()) + 1 for column in shape]
    shapes, which = np.unique(np.ravel_multi_index(shape, sizes), return_inverse=True)
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], np.arange(len(shapes) + 1))
    for i, each in enumerate(zip(*(column.tolist() for column in np.unravel_index(shapes, sizes)), strict=True)):
        here = order[starts[i] : starts[i + 1]]
        curve, at = curve_of(*each), context[here]
        seconds[here] = over(curve, at) if len(at) > FEW else [curve(tokens) for tokens in at.tolist()]
        outside[here] = (at < curve.low) | (at > curve.high)
    return seconds, outside


def _emissions(loop: ClosedLoop, played: Played, step_of: Ints, flagged: bool) -> Columns:
    """Those of prefills and rounds, in order of time."""
    emits = ~played.drafts
    prefills = [len(prefill.requests) for prefill in loop.prefills]
    requests = np.array([sent for prefill in loop.prefills for sent in prefill.requests], np.int64)
    steps = np.repeat(np.array([prefill.step for prefill in loop.prefills]), prefills)
    none = np.zeros(len(requests), np.int64)
    step = np.concatenate([steps, step_of[played.step[emits]]])
    order = np.argsort(step, kind="stable")

    def merged(of_prefills: Ints, of_rounds: Ints) -> Ints:
        found: Ints = np.concatenate([of_prefills, of_rounds[emits]])[order]
        return found

    return {
        "emission_request": merged(requests, played.request),
        "emission_tokens": merged(none + 1, played.emitted),
        "emission_step": step[order],
        "emission_block_size": merged(none + PREFILL_STEP, played.block_size),
        "emission_outcome": merged(none, played.outcome) if flagged else None,
    }
