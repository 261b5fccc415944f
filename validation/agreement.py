"""Decisions round by round: what the simulated policy chose where the served one stood."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.rounds import Ints

FAR = 1 << 32
"""More than any output has tokens."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares of the measured rounds."""

    rounds: int
    """Measured."""
    places: float
    """With a simulated round of the same request at the same output position."""
    decisions: float
    """With one that has the same block size, too."""
    outcomes: float
    """With one that emits as many tokens, too."""
    same_steps: bool
    """Whether both runs are the same steps of the same requests at the same shapes, one by one."""


def agreement(simulated: Replay, measured: Replay) -> Agreement:
    """Compare rounds of the same sent requests."""
    ours, theirs = _rounds(simulated), _rounds(measured)
    where, mine, other = np.intersect1d(ours[0], theirs[0], assume_unique=True, return_indices=True)
    size = ours[1][mine] == theirs[1][other]
    tokens = size & (ours[2][mine] == theirs[2][other])
    count = max(len(theirs[0]), 1)
    return Agreement(
        len(theirs[0]),
        len(where) / count,
        int(size.sum()) / count,
        int(tokens.sum()) / count,
        same_steps(simulated, measured),
    )


def _rounds(run: Replay) -> tuple[Ints, Ints, Ints]:
    """Place (request and output position), block size and tokens of every round."""
    decoding = np.flatnonzero(run.emission_block_size != PREFILL_STEP)
    before = emitted_before(run)
    place = run.emission_request * FAR + before
    return place[decoding], run.emission_block_size[decoding], run.emission_tokens[decoding]


def emitted_before(run: Replay) -> Ints:
    """[emissions] Output tokens of the request before each emission."""
    order = np.argsort(run.emission_request, kind="stable")
    request, tokens = run.emission_request[order], run.emission_tokens[order]
    total = np.cumsum(tokens) - tokens
    starts = np.append(True, request[1:] != request[:-1]) if len(request) else np.zeros(0, np.bool_)
    first = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    before = np.empty(len(order), np.int64)
    before[order] = total - total[first]
    return before


def same_steps(one: Replay, other: Replay) -> bool:
    """Whether two runs differ in nothing but their times."""
    shapes = ("in_flight", "block_size", "requests", "query_tokens", "context_tokens", "draft_tokens")
    emissions = ("emission_request", "emission_tokens", "emission_step", "emission_block_size")
    pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = [
        *((one.steps[name], other.steps[name]) for name in shapes),
        *((getattr(one, name), getattr(other, name)) for name in emissions),
    ]
    return all(np.array_equal(a, b) for a, b in pairs)
