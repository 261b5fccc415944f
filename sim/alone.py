"""The replay of one request after the other without the event loop, equal to it in every number.

With one request in flight nothing waits for anything, so a request's rounds follow from the tables of its positions,
and all times from a running sum. It stands in for the event loop where the policy's choices depend on positions alone.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recguide.sim.adaptive import Equation3
from recguide.sim.arrivals import Arrival
from recguide.sim.bound import over
from recguide.sim.costs import PREFILL, CostModel
from recguide.sim.curves import Curve
from recguide.sim.history import Floats, Signal
from recguide.sim.log import PREFILL_STEP, Replay, Step
from recguide.sim.methods import Policy
from recguide.sim.oneforward import OneForward
from recguide.sim.overlap import Bools, Outcome, places
from recguide.sim.policies import Fixed
from recguide.sim.rounds import AR, Ints, Rounds
from recguide.sim.steps import Method

DRAFT_STEP, ROUND_STEP = 1, 2
CurvesOf = Callable[[int, int, int], tuple[Curve, float]]
"""From a step's kind, block size and query tokens: seconds over its context, and the host's on top."""


@dataclass(frozen=True, slots=True, eq=False)
class Walked:
    """Every step of all requests, in order: each array is [steps]."""

    request: Ints
    """Number of the request."""
    kind: Ints
    """``PREFILL_STEP``, ``DRAFT_STEP`` (a draft forward by itself) or ``ROUND_STEP``, which emits."""
    context_tokens: Ints
    block_size: Ints
    query_tokens: Ints
    draft_tokens: Ints
    emitted: Ints
    outcome: Ints


def follows_positions(policy: Policy, method: Method) -> bool:
    """Whether what a request does follows from where it stands."""
    return isinstance(policy, Fixed | Equation3) or isinstance(method, OneForward)


def replay_alone(
    rounds: Rounds, costs: CostModel, policy: Policy, method: Method, arrivals: Iterable[Arrival]
) -> Replay:
    """The replay of these requests, all there at time 0, one by one, at the recorded lengths."""
    order = np.array([arrival.row for arrival in arrivals], np.int64)
    if isinstance(method, OneForward):
        steps, curves = _one_forward(rounds, method, order), _one_forward_curves(costs, method)
    elif isinstance(policy, Fixed):
        rounds.check(policy.block_size)
        steps, curves = _linear(rounds, order, _fixed(rounds, policy.block_size, order)), _linear_curves(costs)
    elif isinstance(policy, Equation3):
        steps, curves = _linear(rounds, order, _adaptive(rounds, policy, order)), _linear_curves(costs)
    else:
        raise TypeError(f"{policy}: its choices do not follow from positions alone")
    seconds, outside = _timed(steps, curves)
    return _replay(rounds, order, steps, seconds, outside, isinstance(method, OneForward))


Chain = list[tuple[int, int]]
"""Row and block size of each round of a request, behind the row and ``PREFILL_STEP`` of its prefill."""


def _linear(rounds: Rounds, order: Ints, chains: Sequence[Chain]) -> Walked:
    pairs, request, kind = _joined(chains)
    at, size = pairs.T
    prompt = kind == PREFILL_STEP
    emitted = np.ones(len(at), np.int64)
    for one in set(size.tolist()) - {PREFILL_STEP}:
        emitted[size == one] = rounds.emitted[one][at[size == one]]
    tokens = np.where(prompt, rounds.prompt_tokens[order[request]], size)
    context = np.where(prompt, 0, places(rounds)[2][at])
    return Walked(request, kind, context, size, tokens, np.where(size > AR, size, 0), emitted, np.zeros_like(at))


def _fixed(rounds: Rounds, size: int, order: Ints) -> list[Chain]:
    block = np.full(len(rounds.finished), size)
    if rounds.largest is not None:
        block = np.minimum(block, rounds.largest)
    emitted = np.zeros(len(block), np.int64)
    for one in set(block.tolist()):
        emitted[block == one] = rounds.emitted[one][block == one]
    sizes: list[int] = block.tolist()
    following: list[int] = (np.arange(len(block)) + emitted).tolist()
    return [_fixed_chain(following, sizes, *ends) for ends in _ends(rounds, order)]


def _fixed_chain(following: Sequence[int], sizes: Sequence[int], at: int, end: int) -> Chain:
    found = [(at - 1, PREFILL_STEP)]
    while at < end:
        found.append((at, sizes[at]))
        at = following[at]
    return found


def _ends(rounds: Rounds, order: Ints) -> list[tuple[int, int]]:
    """Row of the first round of each request, and the row behind its last token."""
    first, output = rounds.first[order], rounds.output_tokens[order]
    return list(zip((first + 1).tolist(), (first + output).tolist(), strict=True))


def _adaptive(rounds: Rounds, policy: Equation3, order: Ints) -> list[Chain]:
    sums: list[float] = np.concatenate([[0.0], np.cumsum(rounds.entropy)]).tolist()
    emitted = {size: lens.tolist() for size, lens in rounds.emitted.items()}
    largest: list[int] | None = None if rounds.largest is None else rounds.largest.tolist()
    load = policy.load_of(1)
    tables: tuple[Any, ...] = (policy.tables[load].tolist(), policy.edges.tolist(), policy.place.tolist())
    start = int(policy.cold_start[load])
    return [
        _adaptive_chain(sums, emitted, largest, policy.signal, tables, start, *ends) for ends in _ends(rounds, order)
    ]


def _adaptive_chain(
    sums: Sequence[float],
    emitted: Mapping[int, Sequence[int]],
    largest: Sequence[int] | None,
    signal: Signal,
    tables: tuple[Any, ...],
    size: int,
    at: int,
    end: int,
) -> Chain:
    """``Equation3`` for one request, number by number: the same arithmetic in the same order."""
    table, edges, place = tables
    head, full_less = signal.head or 64, not signal.bonus
    found = [(at - 1, PREFILL_STEP)]
    before = entropy = None
    while at < end:
        if largest is not None:
            size = min(size, largest[at])
        found.append((at, size))
        tokens = emitted[size][at]
        count = min(tokens - (full_less and tokens == size and tokens > 1), head)
        before, entropy = entropy, (sums[at + count] - sums[at]) / count
        s = -entropy if before is None else -(entropy + before) / 2
        at += tokens
        size = table[place[size][tokens == size]][bisect_right(edges, s)]
    return found


def _joined(chains: Sequence[Sequence[int] | Chain]) -> tuple[Ints, Ints, Ints]:
    """Entry, number of the request, and kind of every step."""
    counts = np.array([len(chain) for chain in chains])
    entry = np.array([entry for chain in chains for entry in chain], np.int64)
    kind = np.full(len(entry), ROUND_STEP)
    kind[np.cumsum(counts) - counts] = PREFILL_STEP
    return entry, np.repeat(np.arange(len(chains)), counts), kind


def _one_forward(rounds: Rounds, method: OneForward, order: Ints) -> Walked:
    rows, block = method.num_rows, np.array(method.block_size)
    given, outcome = method.emitted, np.array(method.outcome)
    at = np.tile(np.arange(rows), len(given) // rows)
    source = np.array(method.next_source)
    # whoever holds no draft takes that of the first source, after a draft forward or without one
    following: list[int] = (np.maximum(source, 0) * rows + at + given).tolist()
    chains = [_chain_of(following, rounds, rows, row) for row in order.tolist()]
    entry, request, kind = _joined(chains)
    drafts = (kind == ROUND_STEP) & (outcome[entry] & Outcome.DRAFTED.value != 0)
    place = np.repeat(np.arange(len(entry)), 1 + drafts)
    first = np.append(True, place[1:] != place[:-1])
    entry, request, kind = entry[place], request[place], np.where(drafts[place] & first, DRAFT_STEP, kind[place])
    prompt, draft = kind == PREFILL_STEP, kind == DRAFT_STEP
    row = entry % rows
    tokens = np.where(prompt, rounds.prompt_tokens[order[request]], np.array(method.query_tokens)[entry])
    return Walked(
        request,
        kind,
        np.where(prompt, 0, places(rounds)[2][row]),
        np.where(prompt, PREFILL_STEP, block[row]),
        np.where(draft, 0, tokens),
        np.where(draft, block[row], 0),
        np.where(prompt, 1, given[entry]),
        np.where(prompt, 0, outcome[entry]),
    )


def _chain_of(following: Sequence[int], rounds: Rounds, rows: int, row: int) -> list[int]:
    entry = int(rounds.first[row]) + 1
    end, found = entry - 1 + int(rounds.output_tokens[row]), [entry - 1]
    while entry % rows < end:
        found.append(entry)
        entry = following[entry]
    return found


def _linear_curves(costs: CostModel) -> CurvesOf:
    def curves(kind: int, block_size: int, query_tokens: int) -> tuple[Curve, float]:
        if kind == PREFILL_STEP:
            return costs.curve(PREFILL, 1, query_tokens), 0.0
        return costs.round_curve(block_size, 1), 0.0

    return curves


def _one_forward_curves(costs: CostModel, method: OneForward) -> CurvesOf:
    def curves(kind: int, block_size: int, query_tokens: int) -> tuple[Curve, float]:
        if kind == PREFILL_STEP:
            return costs.curve(PREFILL, 1, query_tokens), 0.0
        if kind == DRAFT_STEP:
            return costs.curve(("draft",), 1, block_size), 0.0
        plain = "decode" if block_size == AR else "verify"
        name = method.kind if query_tokens > block_size else plain
        return costs.curve((name,), 1, query_tokens), costs.host_s(1, block_size)

    return curves


def _timed(steps: Walked, curves: CurvesOf) -> tuple[Floats, Bools]:
    """[steps] Seconds, and whether they were extrapolated."""
    seconds, outside = np.zeros(len(steps.kind)), np.zeros(len(steps.kind), bool)
    shapes = np.stack([steps.kind, steps.block_size, steps.query_tokens], axis=1)
    unique, shape = np.unique(shapes, axis=0, return_inverse=True)
    order = np.argsort(shape.ravel(), kind="stable")
    starts = np.searchsorted(shape.ravel()[order], np.arange(len(unique) + 1))
    for i, (kind, block_size, tokens) in enumerate(unique.tolist()):
        here = order[starts[i] : starts[i + 1]]
        curve, host_s = curves(kind, block_size, tokens)
        context = steps.context_tokens[here]
        seconds[here] = over(curve, context) + host_s
        outside[here] = (context < curve.low) | (context > curve.high)
    return seconds, outside


def _replay(rounds: Rounds, order: Ints, steps: Walked, seconds: Floats, outside: Bools, branches: bool) -> Replay:
    end_s = np.cumsum(seconds)
    start_s = np.concatenate([[0.0], end_s[:-1]])
    prefill = np.flatnonzero(steps.kind == PREFILL_STEP)
    last = np.append(prefill[1:], len(seconds)) - 1
    ones = np.ones(len(seconds), np.int64)
    columns = dict(
        zip(
            Step._fields,
            (
                start_s,
                ones,
                seconds,
                steps.block_size,
                ones,
                steps.query_tokens,
                steps.context_tokens,
                steps.draft_tokens,
                ones * 0,
                outside,
            ),
            strict=True,
        )
    )
    emits = np.flatnonzero(steps.kind != DRAFT_STEP)
    return Replay(
        concurrency=1,
        closed=True,
        request=order,
        prompt_tokens=rounds.prompt_tokens[order],
        output_tokens=rounds.output_tokens[order],
        arrival_s=np.zeros(len(order)),
        sent_s=start_s[prefill],
        started_s=start_s[prefill],
        first_token_s=end_s[prefill],
        finished_s=end_s[last],
        steps=columns,
        emission_request=steps.request[emits],
        emission_tokens=steps.emitted[emits],
        emission_step=emits,
        emission_block_size=steps.block_size[emits],
        emission_outcome=steps.outcome[emits] if branches else None,
        kv_pages=None,
        preemptions=0,
        recomputed_tokens=0,
        seams=0,
        cut_rounds=None,
    )
