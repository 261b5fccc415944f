"""Where the time of a step goes: its forwards, and the host."""

from collections.abc import Iterator

import numpy as np

from recguide.sim.costs import ROUND, CostModel
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.rounds import AR, Ints


def parts_of(run: Replay, costs: CostModel, planner: str = "") -> Iterator[dict[str, float]]:
    """Seconds of the parts of each step, in order of time, by the costs of the run; they add up to the step's own.

    ``planner`` is what :func:`recguide.sim.methods.planned_by` says of its policy.
    """
    steps = {name: column.tolist() for name, column in run.steps.items()}
    drafting, rounds, verified, context = (column.tolist() for column in _shapes(run))
    host = costs.host_of(planner)
    for i, seconds in enumerate(steps["seconds"]):
        size, tokens, drafted = steps["block_size"][i], steps["query_tokens"][i], steps["draft_tokens"][i]
        if size == PREFILL_STEP:
            yield {"prefill": seconds}
        elif not tokens:
            host_s = costs.step_host_s("rows", (steps["requests"][i], drafted), (0, 0))
            yield {"draft": seconds - host_s, "host": host_s} if host_s else {"draft": seconds}
        elif drafted:
            # where blocks are filled up, everyone's draft is paid for
            count, cached = (steps["requests"][i], steps["context_tokens"][i]) if steps["padding"][i] else (
                drafting[i], context[i]
            )  # fmt: skip
            draft_s = costs.curve(ROUND[:1], count, drafted)(cached)
            host_s = costs.host_s(steps["requests"][i], tokens, host)
            yield {"draft": draft_s, "verify": seconds - draft_s - host_s, "host": host_s}
        else:
            shape = (steps["requests"][i], tokens), (rounds[i], verified[i])
            host_s = costs.host_s(*shape[1], host) if size == AR else costs.step_host_s("rows", *shape)
            name = "decode" if size == AR else "verify" if tokens == verified[i] else "verify and draft"
            yield {name: seconds - host_s, "host": host_s}


def _shapes(run: Replay) -> tuple[Ints, Ints, Ints, Ints]:
    """[steps] Requests that emit with a draft, all that emit, their block sizes, and what the first of these cached."""
    count, step, size = len(run.steps["seconds"]), run.emission_step, run.emission_block_size
    drafts = size > AR

    def summed(weights: Ints) -> Ints:
        found: Ints = np.bincount(step, weights, minlength=count).astype(np.int64)
        return found

    cached = drafts * _cached(run)
    return summed(drafts.astype(np.int64)), summed(np.ones_like(size)), summed(size), summed(cached)


def _cached(run: Replay) -> Ints:
    """[emissions] Tokens that its request had cached before it."""
    order = np.argsort(run.emission_request, kind="stable")
    request, tokens = run.emission_request[order], run.emission_tokens[order]
    before = np.cumsum(tokens) - tokens
    first = np.flatnonzero(np.diff(request, prepend=-1))
    since = before - np.repeat(before[first], np.diff(first, append=len(request)))
    cached = np.zeros_like(since)
    cached[order] = run.prompt_tokens[request] + since - 1
    return cached
