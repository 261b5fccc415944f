"""Statistics that the authors' repository publishes of NLD's drafts, counted over any trace."""

from collections.abc import Sequence

import numpy as np

from recguide.sim.adaptive import ALL, adaptive, stratum
from recguide.sim.history import Floats
from recguide.sim.overlap import Bools
from recguide.sim.paper.published import (
    AFTER_REJECTION,
    BLOCK_MEANS,
    EXPLORED,
    PERSISTENCE,
    SAME_STATE,
    SHORTER_HOLDS,
)
from recguide.sim.paper.repricing import with_history
from recguide.sim.paper.subjects import Subject, mean
from recguide.sim.rounds import Ints, Rounds, rounds_of
from recguide.sim.walks import Walk
from recguide.traces.dense import DenseTrace, matched_lens
from recguide.traces.replays import replay

Figures = dict[str, float]
CANONICAL = 16
"""Block size of the rounds from whose prefixes all others are drafted."""
WORTH = {"16 over 8": (8, 16, 2), "32 over 8": (8, 32, 5), "32 over 16": (16, 32, 5)}
"""A larger block is worth it where it is accepted so many tokens further than a smaller one, from the same prefix."""


def statistics(subject: Subject) -> Figures:
    """What is published of them, in its words; means over the benchmarks that it names."""
    parts = (same_state, served_lengths, persistence, history, behind_rejections)
    return {name: value for part in parts for name, value in part(subject).items()}


def same_state(subject: Subject) -> Figures:
    """Every block size from the prefixes of rounds at B = 16: mean acceptance, full rounds, and whether shorter ones
    hold what longer ones reach."""
    each = [lens_of(subject.of([name])) for name in SAME_STATE if name in subject.benchmarks]
    found: Figures = {}
    for size in each[0] if each else ():
        found[f"mean acceptance length, B = {size}"] = mean([float(lens[size].mean()) for lens in each])
        found[f"% fully accepted, B = {size}"] = mean([float(100 * (lens[size] == size).mean()) for lens in each])
    for short, long, tokens in SHORTER_HOLDS if each else ():
        shares = [float(100 * (lens[short][lens[long] >= tokens] >= tokens).mean()) for lens in each]
        found[f"% of {tokens} tokens at B = {long} that B = {short} has"] = mean(shares)
    return found


def lens_of(trace: DenseTrace) -> dict[int, Ints]:
    """By block size: acceptance lengths from the prefixes of rounds at B = 16, those near the output's end left out."""
    rounds = replay(trace, CANONICAL)
    outputs = np.array([request.output_tokens for request in trace.requests])
    row = rounds.row[outputs[rounds.request] - rounds.position >= max(BLOCK_MEANS)]
    return {size: lens[row] for size, lens in everywhere(trace).items()}


def everywhere(trace: DenseTrace) -> dict[int, Ints]:
    """By block size: acceptance lengths from every position of every request, wherever outputs end."""
    return {
        size: matched_lens(np.concatenate([r.drafts["seeded", size].match for r in trace.requests])) + 1
        for size in BLOCK_MEANS
        if size in trace.provenance.block_sizes
    }


def served_lengths(subject: Subject) -> Figures:
    """Mean acceptance where every round is at one block size, by benchmark."""
    sizes = (8, 16, 32)
    each = {
        name: {size: float(replay(subject.of([name]), size).accept_len.mean()) for size in sizes}
        for name in subject.benchmarks
    }
    found = {f"served acceptance, B = {size}, {name}": lens[size] for name, lens in each.items() for size in sizes}
    return found | {f"served acceptance, B = {size}, overall": mean([m[size] for m in each.values()]) for size in sizes}


def persistence(subject: Subject) -> Figures:
    """How far the last rounds at B = 16 go together with the next one at any block size."""
    found: Figures = {}
    each = [subject.of([name]) for name in SAME_STATE if name in subject.benchmarks]
    for past, sizes in PERSISTENCE.items() if each else ():
        shares = [correlations(trace, past) for trace in each]
        found |= {
            f"correlation of the last {past}, B = {size}": 100 * mean([share[size] for share in shares])
            for size in sizes
        }
    return found


def correlations(trace: DenseTrace, past: int) -> dict[int, float]:
    """By block size: Pearson's, of the mean acceptance length of so many rounds with that of the next one."""
    rounds, outputs = replay(trace, CANONICAL), np.array([request.output_tokens for request in trace.requests])
    lens = everywhere(trace)
    before = np.convolve(lens[CANONICAL][rounds.row], np.full(past, 1 / past))[: len(rounds.row)]
    next_ones = np.arange(past, len(rounds.row))
    same = rounds.request[next_ones] == rounds.request[next_ones - past]
    next_ones = next_ones[same & (outputs[rounds.request] - rounds.position >= max(BLOCK_MEANS))[next_ones]]
    return {
        size: float(np.corrcoef(before[next_ones - 1], lens[size][rounds.row[next_ones]])[0, 1])
        for size in lens
        if size in PERSISTENCE[past]
    }


def history(subject: Subject) -> Figures:
    """How often larger blocks are worth it on a random walk over block sizes, and how well history tells them: the
    area under the ROC curve of the fitted V_B's difference."""
    found: Figures = {}
    each = {name: explored(subject, [name]) for name in subject.benchmarks}
    for what, (small, large, tokens) in WORTH.items():
        worth = {name: _worth(rounds, steps, small, large, tokens) for name, (rounds, steps, _) in each.items()}
        found[f"% of rounds in which B = {what} is worth it"] = mean([float(100 * w.mean()) for w in worth.values()])
        weight = np.concatenate([np.full(len(w), 1 / len(w)) for w in worth.values()])
        gain = np.concatenate([value[large] - value[small] for _, _, value in each.values()])
        area = roc_area(gain, np.concatenate(list(worth.values())), weight)
        found[f"AUROC of history, B = {what}"] = 100 * area
    return found


def explored(subject: Subject, names: Sequence[str]) -> tuple[Rounds, Walk, dict[int, Floats]]:
    """Rounds with a history on a walk where the next block size is drawn by the last one, and V_B of each of them."""
    policy, rounds = subject.fitted, rounds_of(subject.of(names))
    steps = with_history(rounds, policy, np.random.default_rng(0))
    left = (rounds.output_tokens + rounds.first)[steps.request] - steps.at
    steps = steps.of(left >= max(EXPLORED))
    bins = np.searchsorted(np.array(policy.edges), steps.s, side="right")
    where = adaptive(policy).place[steps.last, steps.full.astype(np.int64)]
    strata = [ALL, *(stratum(size, full) for size in policy.candidates for full in (False, True))]
    values = [policy.values.get(name, policy.values[ALL]) for name in strata]
    return rounds, steps, {size: np.array([v[size] for v in values])[where, bins] for size in policy.candidates}


def _worth(rounds: Rounds, steps: Walk, small: int, large: int, tokens: int) -> Bools:
    found: Bools = rounds.accept_len[large][steps.at] - rounds.accept_len[small][steps.at] >= tokens
    return found


def roc_area(score: Floats, positive: Bools, weight: Floats) -> float:
    """The chance that a positive has a higher score than a negative, ties as half; entries have weights."""
    levels, place = np.unique(score, return_inverse=True)
    ups, downs = (np.bincount(place, weight * which, len(levels)) for which in (positive, ~positive))
    below = np.cumsum(downs) - downs / 2
    return float((ups * below).sum() / (ups.sum() * downs.sum()))


def behind_rejections(subject: Subject) -> Figures:
    """% of draft tokens so many places behind the first rejected one that are right all the same, B = 16."""
    trace = subject.of(subject.benchmarks)
    rounds = replay(trace, CANONICAL)
    row, at = rounds.first_rejected
    match = np.concatenate([r.drafts["seeded", CANONICAL].match for r in trace.requests])[row].astype(np.int64)
    found: Figures = {}
    for behind in AFTER_REJECTION:
        there = at + behind < CANONICAL - 1
        found[f"% right {behind} behind a rejection"] = float(100 * (match[there] >> (at + behind)[there] & 1).mean())
    return found
