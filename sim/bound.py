"""What choosing block sizes could achieve at best, knowing the whole trace, and how much of that a policy achieves.

With one request at a time the bound is exact: a dynamic programme over the positions of each request finds the block
sizes with the least time. With C requests in flight no round of a request can cost less of the GPU's time than the
cheapest share that a step of 1 to C such requests gives it; the same programme over these shares bounds the time of
all requests together from below. Where time is linear in context tokens and never falls as blocks grow, this holds
for every mixture of requests, in buckets or padded.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np

from recguide.sim.costs import PREFILL, CostModel
from recguide.sim.curves import Curve
from recguide.sim.history import Floats
from recguide.sim.memory import MAX_BATCHED_TOKENS
from recguide.sim.overlap import places
from recguide.sim.rounds import Ints, Rounds


def bound_tokens_per_s(
    rounds: Rounds, costs: CostModel, concurrency: int, order: Sequence[int], max_prefill: int = MAX_BATCHED_TOKENS
) -> float:
    """Output tokens per second of the requests in ``order`` that no choice of block sizes exceeds (closed loop)."""
    seconds = least_seconds(rounds, costs, concurrency) + _prefill_seconds(rounds, costs, concurrency, max_prefill)
    rows = np.asarray(order, np.int64)
    return float(rounds.output_tokens[rows].sum() / max(seconds[rows].sum(), 1e-12))


def least_seconds(rounds: Rounds, costs: CostModel, concurrency: int) -> Floats:
    """[requests] The GPU's least time for the rounds of each, in the best possible company of up to C requests."""
    cached = places(rounds)[2]
    shares = {size: _share(costs, size, concurrency, cached) for size in rounds.emitted}
    if rounds.largest is not None:
        shares = {size: np.where(size <= rounds.largest, share, np.inf) for size, share in shares.items()}
    left = np.zeros(len(cached))
    for position in range(int(rounds.output_tokens.max()) - 1, 0, -1):
        at = rounds.first[rounds.output_tokens > position] + position
        options = [shares[size][at] + left[at + rounds.emitted[size][at]] for size in shares]
        left[at] = np.min(options, axis=0)
    least: Floats = np.where(rounds.output_tokens > 1, left[np.minimum(rounds.first + 1, len(left) - 1)], 0.0)
    return least


def _share(costs: CostModel, block_size: int, concurrency: int, cached: Ints) -> Floats:
    """[rows] The least seconds of a step for each of its requests, over 1 to C requests like this one.

    Step time is interpolated linearly between profiled numbers of requests, so its share is least at one of those.
    """
    shares = [over(costs.round_curve(block_size, n), n * cached) / n for n in _companies(concurrency)]
    least: Floats = np.min(shares, axis=0)
    return least


def _companies(concurrency: int) -> list[int]:
    small, doubled = range(1, min(concurrency, 8) + 1), (2**i for i in range(4, 64))
    return sorted({*small, *takewhile(lambda n: n <= concurrency, doubled), concurrency})


def _prefill_seconds(rounds: Rounds, costs: CostModel, concurrency: int, max_prefill: int) -> Floats:
    """[requests] The least seconds of its prefill, its share where prompts go together."""
    prompts = rounds.prompt_tokens
    alone = np.array([costs.curve(PREFILL, 1, tokens)(0) for tokens in prompts.tolist()])
    if concurrency == 1:
        return alone
    totals = sorted({max_prefill, *(2**i for i in range(4, 32) if 2**i < max_prefill)})
    rates = np.array([costs.curve(PREFILL, 1, tokens)(0) / tokens for tokens in totals])
    together = [rates[np.array(totals) >= tokens].min(initial=np.inf) * tokens for tokens in prompts.tolist()]
    least: Floats = np.minimum(alone, together)
    return least


def over(curve: Curve, context_tokens: Ints) -> Floats:
    """The curve at many context tokens at once."""
    piece = np.searchsorted(np.array(curve.breaks), context_tokens, side="right")
    start, slope = np.array(curve.seconds)[piece], np.array(curve.slopes)[piece]
    seconds: Floats = np.maximum(start + slope * (context_tokens - np.array(curve.knots)[piece]), curve.floor_s)
    return seconds


def headroom(point: Mapping[str, object], fixed: Sequence[Mapping[str, object]], bound: float) -> float | None:
    """The share of the way from the best fixed block size to the bound: 0 is the one, 1 the other, by whole runs.

    None without a fixed block size to compare with, or where the best one reaches the bound.
    """
    rates = [float(str(other["output_throughput"])) for other in fixed if other["output_throughput"] is not None]
    if not rates or point["output_throughput"] is None or bound <= max(rates) * (1 + 1e-9):
        return None
    best = max(rates)
    return (float(str(point["output_throughput"])) - best) / (bound - best)
