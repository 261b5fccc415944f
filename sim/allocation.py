"""Sharing a step's query tokens out among requests, for the most tokens per second (after DSpark, arXiv 2607.05147)."""

from typing import NamedTuple

import numpy as np

from recguide.sim.costs import ROUND, CostModel
from recguide.sim.history import Floats
from recguide.sim.policies import BlockPolicy, Outcomes
from recguide.sim.rounds import AR, Ints, Rounds


def verify_lengths(p1: Floats, seconds: Floats) -> Ints:
    """How many tokens of each drafted block to verify, seed included: [requests], 1 to B.

    ``p1`` is [requests, B-1], the draft's probability of each of its tokens; a token survives with the product up to
    it. ``seconds`` are those of the step by the number of admitted tokens, from 0 to all. Tokens are admitted in order
    of survival, so every request's are a prefix of its draft, and of all numbers of admitted tokens the one with the
    most expected tokens per second is taken.
    """
    survival = np.cumprod(p1, axis=1)
    order = np.argsort(-survival, axis=None, kind="stable")
    expected = len(p1) + np.concatenate([[0.0], np.cumsum(survival.ravel()[order])])
    admitted = order[: int((expected / seconds).argmax())]
    return 1 + np.bincount(admitted // p1.shape[1], minlength=len(p1))


def optimum(rounds: Rounds, costs: CostModel) -> BlockPolicy:
    """The block sizes that emit the most tokens per second of this step, knowing what each would emit.

    Every request's choices are made concave: only those stay that no mixture of two others beats. Steps from one to
    the next are taken in order of tokens per query token, and of all prefixes of that order the best one is kept. For
    a step without padding this is the optimum over those choices; with buckets it is no bound.
    """
    sizes = np.array(sorted(rounds.emitted))
    emitted = np.stack([rounds.emitted[int(size)] for size in sizes], axis=1)

    def choose(seen: Outcomes) -> Ints:
        progress = emitted[rounds.first[seen.request] + seen.tokens]
        return sizes[best_choices(progress, sizes, costs, seen.context_tokens)]

    return choose


def best_choices(progress: Ints, sizes: Ints, costs: CostModel, context_tokens: int) -> Ints:
    """[requests] The index of each one's block size; ``progress`` is [requests, sizes], of which the first is AR."""
    count = len(progress)
    steps = concave_steps(progress, sizes)
    order = np.argsort(-steps.slope, kind="stable")
    request, to = steps.request[order], steps.to[order]
    choice = np.zeros(count, np.int64)
    drafting, drafted, tokens, gained = 0, 0, count, int(progress[:, 0].sum())
    best, best_rate = 0, gained / _seconds(costs, count, tokens, 0, 0, context_tokens)
    for taken, (who, what) in enumerate(zip(request.tolist(), to.tolist(), strict=True), 1):
        before, now = int(sizes[choice[who]]), int(sizes[what])
        drafting += before == AR
        drafted += now - (before if before > AR else 0)
        tokens += now - before
        gained += int(progress[who, what] - progress[who, choice[who]])
        choice[who] = what
        rate = gained / _seconds(costs, count, tokens, drafting, drafted, context_tokens)
        if rate > best_rate:
            best, best_rate = taken, rate
    kept = np.zeros(count, np.int64)
    np.maximum.at(kept, request[:best], to[:best])
    return kept


class Steps(NamedTuple):
    """Steps from one block size to a larger one, those of each request in order."""

    request: Ints
    start: Ints
    """Index of the block size before."""
    to: Ints
    """And behind."""
    slope: Floats
    """Tokens per query token of a round: a draft and a verify, or at 1 one forward."""


def concave_steps(progress: Ints | Floats, sizes: Ints) -> Steps:
    """The steps along every request's concave choices; ``progress`` is [requests, sizes]."""
    paid = np.where(sizes > AR, 2 * sizes, 1)
    at = np.zeros(len(progress), np.int64)
    found: list[Steps] = []
    while True:
        gain = progress - np.take_along_axis(progress, at[:, None], 1)
        more = paid - paid[at][:, None]
        slope = np.where((more > 0) & (gain > 0), gain / np.maximum(more, 1), 0.0)
        # the farthest of equal slopes, so that the choices in between are passed over
        to = slope.shape[1] - 1 - slope[:, ::-1].argmax(axis=1)
        steepest = slope[np.arange(len(at)), to]
        moving = np.flatnonzero(steepest > 0)
        found.append(Steps(moving, at[moving], to[moving], steepest[moving]))
        if not len(moving):
            return Steps(*map(np.concatenate, zip(*found, strict=True)))
        at[moving] = to[moving]


def _seconds(costs: CostModel, count: int, tokens: int, drafting: int, drafted: int, context: int) -> float:
    if drafting == 0:
        return costs.round_curve(AR, count)(context) or 1e-12
    draft = costs.curve(ROUND[:1], drafting, drafted)(context * drafting / count)
    return draft + costs.curve(ROUND[1:], count, tokens)(context) or 1e-12
