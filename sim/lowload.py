"""Fitting overlap for few requests: its block size, the margin that counts as risky, and up to how many it is used."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import isqrt

from recguide.sim.adaptive import Adaptive, Load, LowLoad, adaptive
from recguide.sim.costs import CostModel
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.metrics import metrics_of
from recguide.sim.overlap import Overlap
from recguide.sim.replay import replay
from recguide.sim.rounds import Rounds, rounds_of
from recguide.sim.walks import plan_of, walk
from recguide.traces.dense import DenseTrace

DELTAS = (0.25, 0.375, 0.5, 0.625, 0.75)
SAMPLE = 256
"""Requests that are played, evenly spaced, where there are more."""


@dataclass(frozen=True, slots=True)
class Played:
    """Overlap with one request at a time."""

    rules: Overlap
    seconds: float
    """Of all rounds together, prefills excluded."""
    accept_len: float
    reuse: float
    """Share of rounds whose draft came out of a branch."""
    query_tokens: float
    """Mean of a round's forward, branches included."""
    context: float
    """Mean cached tokens."""


def fit_low_load(
    trace: DenseTrace, costs: CostModel, fitted: Adaptive, deltas: Sequence[float] = DELTAS
) -> LowLoad | None:
    """The fastest overlap of one request at a time, and the switch point; None where branches were not profiled.

    The block size is found at the paper's delta, and then delta. Up to the switch point its rounds give more tokens
    per second than those of the adaptive policy, in full batches.
    """
    try:
        costs.curve(("rows",), 1, 16)
    except ValueError:
        return None
    part = replace(trace, requests=trace.requests[:: -(-len(trace.requests) // SAMPLE)])
    sizes = [play(part, costs, Overlap(size)) for size in fitted.candidates]
    size = min(sizes, key=lambda each: each.seconds).rules.block_size
    played = [play(part, costs, Overlap(size, delta)) for delta in deltas]
    best = min(played, key=lambda each: each.seconds)
    rounds = rounds_of(trace)
    faster = list(takewhile(lambda load: _beats(rounds, costs, fitted, load, best), fitted.loads))
    return LowLoad(best.rules.block_size, best.rules.delta, _switch(fitted.loads, len(faster)))


def play(trace: DenseTrace, costs: CostModel, rules: Overlap) -> Played:
    """Replay the trace, one request at a time."""
    rounds = rounds_of(trace, rules.keys)
    run = replay(rounds, costs, rules, concurrency=1, order=range(len(trace.requests)))
    figures = {name: float(value or 0) for name, value in metrics_of(run, rounds).items()}
    decoding = run.steps["block_size"] != PREFILL_STEP
    return Played(
        rules,
        float(run.steps["seconds"][decoding].sum()),
        figures["accept_length"],
        figures["correction_reuse"] + figures["continuation_reuse"],
        _mean_query_tokens(run),
        float(run.steps["context_tokens"][decoding].mean()) if decoding.any() else 0.0,
    )


def _mean_query_tokens(run: Replay) -> float:
    sizes, tokens = run.steps["block_size"], run.steps["query_tokens"]
    verifying = (sizes != PREFILL_STEP) & (tokens > 0)
    return float(tokens[verifying].mean()) if verifying.any() else 1.0


def _beats(rounds: Rounds, costs: CostModel, fitted: Adaptive, load: Load, best: Played) -> bool:
    """Whether a full batch of overlapped rounds gives more tokens per second than one of adaptive ones."""
    count, size = load.concurrency, best.rules.block_size
    context, tokens = best.context * count, round(best.query_tokens * count)
    rows_s = costs.forward_s("rows", count, max(tokens, count), context)
    drafts_s = costs.forward_s("draft", count, count * size, context)
    seconds = rows_s + (1 - best.reuse) * drafts_s + costs.host_s(count, count * size)
    own = walk(rounds, plan_of(adaptive(fitted), fitted.loads.index(load)), fitted.signal)
    theirs = own.seconds(load.cost_s, len(rounds.first)).sum() / own.emitted.sum()
    return bool(seconds / best.accept_len < theirs)


def _switch(loads: Sequence[Load], faster: int) -> int:
    """Half way, as a ratio, from the last load at which it is faster to the next one."""
    if not faster:
        return 0
    here = loads[faster - 1].concurrency
    return here if faster == len(loads) else isqrt(here * loads[faster].concurrency)


def with_low_load(trace: DenseTrace, costs: CostModel, fitted: Adaptive) -> Adaptive:
    """The same policy with what was found for few requests."""
    return replace(fitted, low_load=fit_low_load(trace, costs, fitted))
