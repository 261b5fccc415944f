"""What a dense trace says about its model: acceptance, offsets, transitions, confidence (paper, section 4).

All of it is counted over rounds replayed as serving would run them: linear self-speculation at one block size, from
output position 1 on (prefill emits chain[0]), cut where the output ends. Shares of nothing are None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.traces.dense import DenseTrace, Provenance, is_risky, num_draft_tokens, unpack_bits
from recguide.traces.replays import Bools, Ints, Replay, output_tokens, positions, replay

INTERVALS = (8, 16, 32)
"""Upper ends of the acceptance intervals of the paper's Table 1: [1,8], (8,16], (16,32]."""
CONFIDENCE_BLOCK_SIZE = 16  # section 6.1
RISK_MARGIN = 0.5  # section 6.1
LEVELS = 256
Share = float | None


@dataclass(frozen=True, slots=True)
class Requests:
    """What one dataset contributes to a trace."""

    dataset: str
    requests: int
    prompt_tokens: Share
    """Mean over requests."""
    output_tokens: Share
    eos_rate: Share
    """Share of requests that ended by themselves."""
    dropped: Mapping[str, int]
    """What was left out, by reason."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance at one block size over the requests of one dataset."""

    dataset: str
    block_size: int
    requests: int
    rounds: int
    cut_rounds: int
    accept_len_by_request: Share
    """Mean over requests of each one's mean acceptance length; those without a round (one token) left out."""
    accept_len_by_round: Share
    """Tokens emitted by rounds over rounds."""
    matched_by_round: Share
    """The same without the verifier's own token."""
    full_accept_rate: Share
    """Share of rounds."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """How draft tokens fare by their place in the block: entry i is of draft token i (offset i+1 behind the seed)."""

    block_size: int
    agreement: list[Share]
    """Share that equal the chain's token, over every position of the trace, rejected prefixes included."""
    survival: list[Share]
    """Share of rounds that accepted the token."""
    conditional: list[Share]
    """Share of rounds that accepted the token, among those that accepted all tokens before it."""


@dataclass(frozen=True, slots=True)
class Transitions:
    """Acceptance intervals of adjacent rounds (paper, Table 1): ``counts[a][b]`` rounds in a with the next in b."""

    block_size: int
    counts: list[list[int]]
    rates: list[list[Share]]
    interval_rates: list[Share]
    """Share of rounds in each interval (paper, Figure 2a), cut ones left out."""
    left_out: int
    """Pairs whose second round was cut by the output's end: its acceptance length is not known."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """Draft positions by confidence and margin (paper, Figure 3): counts of positions, by steps of 1/256."""

    category: str
    block_size: int
    passed: Mapping[str, list[int]]
    """Positions that the verifier passed: "p1" and "margin" to 256 counts."""
    rejected: Mapping[str, list[int]]
    """First rejected positions."""


@dataclass(frozen=True, slots=True)
class Rejections:
    """What the draft held ready where a round ended, at one block size."""

    block_size: int
    rejections: int
    second_rate: Share
    """Share of first rejections at which the verifier's token was the draft's second candidate."""
    second_no_eos_rate: Share
    risky_rate: Share
    """Share of first rejections with a margin below 0.5."""
    passed_risky_rate: Share
    """Share of passed positions with one."""
    full_accepts: int
    continuation_rate: Share
    """Share of full acceptances at which the continuation's first token was the verifier's."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All of it, as plain data."""

    provenance: Provenance
    requests: list[Requests]
    acceptance: list[Acceptance]
    offsets: list[Offsets]
    transitions: Transitions
    confidence: list[Confidence]
    rejections: list[Rejections]


def summarise(trace: DenseTrace) -> Summary:
    """Everything this module counts: Table 1 at the largest block size, Figure 3 at 16 or else the largest."""
    grid = trace.provenance.block_sizes
    replays = {size: replay(trace, size) for size in grid}
    return Summary(
        trace.provenance,
        requests(trace),
        acceptance(trace, list(replays.values())),
        [offsets(trace, rounds) for rounds in replays.values()],
        transitions(replays[grid[-1]]),
        confidence(trace, replays[CONFIDENCE_BLOCK_SIZE if CONFIDENCE_BLOCK_SIZE in grid else grid[-1]]),
        [rejections(trace, rounds) for rounds in replays.values()],
    )


def requests(trace: DenseTrace) -> list[Requests]:
    """Counts per dataset, those of which every request was dropped included."""
    dropped = trace.provenance.dropped
    found = []
    for name in sorted({request.dataset for request in trace.requests} | set(dropped)):
        part = [request for request in trace.requests if request.dataset == name]
        sizes = [np.array([getattr(each, field) for each in part]) for field in ("prompt_tokens", "output_tokens")]
        ended = np.array([each.finish_reason == "eos" for each in part])
        found.append(Requests(name, len(part), _mean(sizes[0]), _mean(sizes[1]), _mean(ended), dropped.get(name, {})))
    return found


def acceptance(trace: DenseTrace, replays: Sequence[Replay]) -> list[Acceptance]:
    """Acceptance per dataset and block size; the dataset "all" pools every request."""
    datasets = np.array([request.dataset for request in trace.requests])
    groups = [(name, datasets == name) for name in sorted(set(datasets))] + [("all", np.full(len(datasets), True))]
    return [_acceptance(str(name), rounds.of(chosen), chosen) for name, chosen in groups for rounds in replays]


def offsets(trace: DenseTrace, rounds: Replay) -> Offsets:
    """The curves over the places of a block, for the block size of the rounds."""
    num_tokens = rounds.block_size - 1
    bits, inside = _chain_bits(trace, rounds.block_size)
    agreement = [_share(bits[inside[:, i], i].sum(), inside[:, i].sum()) for i in range(num_tokens)]
    left = output_tokens(trace)[rounds.request] - rounds.position
    passed = [int((rounds.matched > i).sum()) for i in range(num_tokens)]
    offered = [int((left > i).sum()) for i in range(num_tokens)]
    tried = [int(((rounds.matched >= i) & (left > i)).sum()) for i in range(num_tokens)]
    survival = [_share(*pair) for pair in zip(passed, offered, strict=True)]
    return Offsets(rounds.block_size, agreement, survival, [_share(*pair) for pair in zip(passed, tried, strict=True)])


def transitions(rounds: Replay) -> Transitions:
    """Table 1 of the paper over the rounds of a replay, which should be at the largest block size."""
    interval = np.searchsorted(INTERVALS, rounds.accept_len)
    adjacent = rounds.request[1:] == rounds.request[:-1]
    known = adjacent & ~rounds.cut[1:]
    counts = np.zeros((3, 3), dtype=np.int64)
    np.add.at(counts, (interval[:-1][known], interval[1:][known]), 1)
    whole = np.bincount(interval[~rounds.cut], minlength=3)
    return Transitions(
        rounds.block_size,
        counts.tolist(),
        [[_share(count, row.sum()) for count in row] for row in counts],
        [_share(count, whole.sum()) for count in whole],
        int((adjacent & ~known).sum()),
    )


def confidence(trace: DenseTrace, rounds: Replay) -> list[Confidence]:
    """Figure 3 of the paper per category, and for "all" of them."""
    p1, margin = _levels(trace, "p1", rounds.block_size), _levels(trace, "margin", rounds.block_size)
    categories = np.array([request.category for request in trace.requests])
    groups = [(name, categories == name) for name in sorted(set(categories))]
    groups.append(("all", np.full(len(categories), True)))
    found = []
    for name, chosen in groups:
        part = rounds.of(chosen)
        passed, rejected = part.passed, part.first_rejected
        counts = [{"p1": _histogram(p1[at]), "margin": _histogram(margin[at])} for at in (passed, rejected)]
        found.append(Confidence(str(name), rounds.block_size, *counts))
    return found


def rejections(trace: DenseTrace, rounds: Replay) -> Rejections:
    """Second candidates and margins where drafts were rejected, continuations where they were not."""
    block_size, at = rounds.block_size, rounds.first_rejected
    margin = _levels(trace, "margin", block_size)
    full = rounds.row[rounds.full]
    # the continuation starts behind the block's drafts, where the verifier's own token stands
    follows = full + block_size - 1, np.zeros_like(full)
    return Rejections(
        block_size,
        rejections=len(at[0]),
        second_rate=_mean(_bits_at(_masks(trace, "seeded", block_size, "second"), at)),
        second_no_eos_rate=_mean(_bits_at(_masks(trace, "seeded", block_size, "second_no_eos"), at)),
        risky_rate=_mean(is_risky(margin[at], RISK_MARGIN)),
        passed_risky_rate=_mean(is_risky(margin[rounds.passed], RISK_MARGIN)),
        full_accepts=len(full),
        continuation_rate=_mean(_bits_at(_masks(trace, "continuation", block_size, "match"), follows)),
    )


def cumulative(counts: Sequence[int]) -> list[Share]:
    """The distribution function of a histogram in steps of 1/256: entry k is the share below k/256, 0 <= k <= 256."""
    total = sum(counts)
    return [_share(below, total) for below in np.concatenate([[0], np.cumsum(counts)])]


def _acceptance(dataset: str, rounds: Replay, chosen: Bools) -> Acceptance:
    num_rounds = np.bincount(rounds.request, minlength=len(chosen))
    tokens = np.bincount(rounds.request, rounds.accept_len, minlength=len(chosen))
    ran = num_rounds > 0
    return Acceptance(
        dataset,
        rounds.block_size,
        int(chosen.sum()),
        len(rounds.row),
        int(rounds.cut.sum()),
        _mean(tokens[ran] / num_rounds[ran]),
        _mean(rounds.accept_len),
        _mean(rounds.matched),
        _mean(rounds.full),
    )


def _chain_bits(trace: DenseTrace, block_size: int) -> tuple[Bools, Bools]:
    """[rows, n] twice: which draft tokens equal the chain's, and which have a token of the output to equal."""
    num_tokens = num_draft_tokens("seeded", block_size)
    bits = unpack_bits(_masks(trace, "seeded", block_size, "match"), num_tokens)
    outputs, position = output_tokens(trace), positions(trace)
    left = np.repeat(outputs, outputs) - position
    # no draft starts at position 0 when serving: prefill emits that token
    return bits, (np.arange(num_tokens) < left[:, None]) & (position > 0)[:, None]


def _masks(trace: DenseTrace, view: str, block_size: int, name: str) -> NDArray[np.uint32]:
    """[rows] A bitmask of every position."""
    return np.concatenate([getattr(request.drafts[view, block_size], name) for request in trace.requests])


def _levels(trace: DenseTrace, name: str, block_size: int) -> NDArray[np.uint8]:
    """[rows, n] Margin or p1 of every draft token of the seeded view."""
    return np.concatenate([getattr(request.drafts["seeded", block_size], name) for request in trace.requests])


def _bits_at(masks: NDArray[np.uint32], at: tuple[Ints, Ints]) -> Bools:
    """Bits by row and offset."""
    rows, offset = at
    bits: Bools = (masks[rows] >> offset.astype(np.uint32)) & np.uint32(1) != 0
    return bits


def _histogram(levels: NDArray[np.uint8]) -> list[int]:
    counts: list[int] = np.bincount(levels, minlength=LEVELS).tolist()
    return counts


def _share(part: float | np.number, whole: float | np.number) -> Share:
    return float(part / whole) if whole else None


def _mean(values: NDArray[np.generic]) -> Share:
    return float(values.mean()) if len(values) else None
