"""What a cost model says of steps that were measured, and runs told anew with other times."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from recguide.sim.costs import PREFILL, ROUND, CostModel
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.oneforward import kind_of
from recguide.sim.rounds import AR, Ints
from recguide.sim.stopped import ended
from recguide.validation.agreement import emitted_before

Seconds = NDArray[np.float64]


def priced(run: Replay, costs: CostModel, layout: str = "rows", planner: str = "") -> tuple[Seconds, Seconds]:
    """[steps] Seconds of the forwards and of the host that a cost model gives to the steps of a run.

    As the simulator would count them. ``layout`` is the kind of the run's forwards that verify and draft at once, and
    ``planner`` what :func:`recguide.sim.methods.planned_by` says of its policy.
    """
    draft_s, forward_s, host_s = priced_apart(run, costs, layout, planner)
    return draft_s + forward_s, host_s


def priced_apart(
    run: Replay, costs: CostModel, layout: str = "rows", planner: str = ""
) -> tuple[Seconds, Seconds, Seconds]:
    """The same with a draft forward that comes before another one apart."""
    sizes, cached = emissions_by_step(run)
    host = costs.host_of(planner)
    names = ("block_size", "requests", "query_tokens", "context_tokens", "draft_tokens")
    table = zip(*(run.steps[name].tolist() for name in names), sizes, cached, strict=True)
    found = np.array([_price(costs, layout, host, *row) for row in table]).reshape(-1, 3)
    return found[:, 0], found[:, 1], found[:, 2]


def emissions_by_step(run: Replay) -> tuple[list[Ints], list[Ints]]:
    """For each step, the block sizes of the requests that emit, and their cached tokens before it."""
    bounds = np.searchsorted(run.emission_step, np.arange(1, len(run.steps["seconds"])))
    cached = run.prompt_tokens[run.emission_request] + emitted_before(run) - 1
    return np.split(run.emission_block_size, bounds), np.split(cached, bounds)


def _price(
    costs: CostModel,
    layout: str,
    host: str,
    block_size: int,
    requests: int,
    tokens: int,
    context: int,
    drafted: int,
    sizes: Ints,
    cached: Ints,
) -> tuple[float, float, float]:
    """Draft, last forward and host of one step; ``sizes`` and ``cached`` are of the requests that emit.

    ``host`` is the kind of the host's time of rounds of two forwards, and of AR steps for all.
    """
    if block_size == PREFILL_STEP:
        return 0.0, costs.curve(PREFILL, requests, tokens)(context), 0.0
    if block_size == AR and not drafted and len(sizes) == requests:
        return 0.0, costs.forward_s("decode", requests, tokens, context), costs.host_s(requests, tokens, host)
    if not drafted or not tokens:
        verified = int(sizes.sum())
        kind = kind_of(layout, len(sizes) < requests, tokens, verified, int(sizes.max(initial=0)))
        host_s = costs.step_host_s(layout, (requests, tokens or drafted), (len(sizes), verified))
        return 0.0, costs.forward_s(kind, requests, tokens or drafted, context), host_s
    if drafted == tokens:
        drafting, draft_context = requests, context
    else:
        drafting, draft_context = int((sizes > AR).sum()), int(cached[sizes > AR].sum())
    draft = costs.curve(ROUND[:1], drafting, drafted)(draft_context)
    return draft, costs.forward_s("verify", requests, tokens, context), costs.host_s(requests, tokens, host)


def host_of(run: Replay, forward_s: Sequence[float] | Seconds) -> Seconds:
    """[steps] Measured seconds that no forward ran: inside each step, and from its end to the next one's start."""
    start, seconds = run.steps["start_s"], run.steps["seconds"]
    gaps = np.append(start[1:] - (start + seconds)[:-1], 0.0)
    host: Seconds = np.maximum(seconds - np.asarray(forward_s), 0) + np.maximum(gaps, 0)
    return host


def retimed(run: Replay, seconds: Seconds) -> Replay:
    """The same run with these seconds for its steps, one right behind the other.

    What happened between two steps happens at the end of the first one.
    """
    old_start, old_s = run.steps["start_s"], run.steps["seconds"]
    ends = np.cumsum(seconds)
    old = np.stack([old_start, old_start + old_s], 1).ravel()
    new = np.stack([np.append(0.0, ends[:-1]), ends], 1).ravel()
    # a clock with rounding errors must not run backwards
    old = np.maximum.accumulate(old)
    steps = {**run.steps, "start_s": new[::2], "seconds": seconds}
    sent_s, started_s = (np.interp(times, old, new) for times in (run.sent_s, run.started_s))
    return ended(replace(run, steps=steps, sent_s=sent_s, started_s=started_s))
