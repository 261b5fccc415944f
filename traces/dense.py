"""Dense traces: what a draft from every output position would achieve, for every block size (paper, section 3.1).

Under greedy decoding a prompt has one output chain, so the outcome of a draft is a function of the number of output
tokens committed before it. Written down once for every position, block size and view, it replays any policy exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.traces.errors import InputError

SCHEMA_VERSION = 1
VIEWS = ("seeded", "continuation")
FINISH_REASONS = ("eos", "length")
BLOCK_SIZE_RANGE = (2, 32)
MASKS = ("match", "second", "second_no_eos")
UNKNOWN = ("", "none", "unknown")
SAME = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """Every draft of one request in one view and at one block size B.

    Row p is the draft made when p output tokens are committed (0 <= p < P); it has n draft tokens, n = B-1 in the
    seeded view and n = B in the continuation view, and draft token i is scored against chain[p+i].
    """

    match: NDArray[np.uint32]
    """[P] Bit i: draft token i equals chain[p+i]."""
    second: NDArray[np.uint32]
    """[P] Bit i: the draft's second candidate equals chain[p+i]; EOS may be a candidate, MASK never."""
    second_no_eos: NDArray[np.uint32]
    """[P] Bit i: as ``second``, with EOS barred as well."""
    margin: NDArray[np.uint8]
    """[P, n] min(255, floor(256 * (p1 - p2))), MASK removed before the softmax."""
    p1: NDArray[np.uint8] | None = None
    """[P, n] min(255, floor(256 * p1)); the seeded view alone has it."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseRequest:
    """One recorded request: P = ``output_tokens`` positions, EOS counted among them."""

    request_id: str
    dataset: str
    category: str
    prompt_sha256: str
    """Of the prompt's token ids or text, as the recorder says; 64 hexadecimal digits."""
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    """"eos", or "length" where an output or context limit stopped the chain."""
    entropy: NDArray[np.float32]
    """[P] Nats, of the verifier's distribution that picks chain[p], MASK removed."""
    drafts: Mapping[tuple[str, int], Drafts]
    """By view and block size."""
    prompt_ids: NDArray[np.int32] | None = None
    output_ids: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a trace comes from, and what was left out of it."""

    model: str
    weights_sha256: str
    adapter_sha256: str | None
    dtype: str
    engine_commit: str
    gpu: str
    driver: str
    torch: str
    prompt_set_sha256: str
    block_sizes: tuple[int, ...]
    draft_shift: int
    """0: draft logit i scores position i. 1: it scores position i+1, and the first draft token is the seed's own."""
    max_output_tokens: int
    max_context: int
    command: str
    created: str
    """ISO 8601."""
    dropped: Mapping[str, Mapping[str, int]]
    """What was left out: dataset, then reason, which says what is counted, then count."""
    base_agreement: float | None
    """Share of chain tokens that equal the argmax of the model without its adapter; None when nobody measured it."""
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class DenseTrace:
    """Recorded requests of one model, all over the same block sizes."""

    provenance: Provenance
    requests: tuple[DenseRequest, ...]


def num_draft_tokens(view: str, block_size: int) -> int:
    """Draft tokens of a block: the seed takes one of its B positions, and a continuation has no seed."""
    return block_size if view == "continuation" else block_size - 1


def matched_lens(match: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Draft tokens accepted: the ones of a match bitmask before its first zero, same shape as ``match``.

    In the seeded view the acceptance length is this plus one, the verifier's own token.
    """
    bits = np.asarray(match, dtype=np.uint32)
    return np.bitwise_count(bits & ~(bits + np.ones_like(bits))).astype(np.int64)


def unpack_bits(masks: NDArray[np.uint32], num_bits: int) -> NDArray[np.bool_]:
    """The first ``num_bits`` bits of each mask, bit 0 first: [..., num_bits]."""
    bits: NDArray[np.bool_] = (masks[..., None] >> np.arange(num_bits, dtype=np.uint32)) & np.uint32(1) != 0
    return bits


def is_risky(margin: NDArray[np.uint8], delta: float) -> NDArray[np.bool_]:
    """Whether each margin lies below ``delta`` (paper, section 5.1), as engine and simulator both decide it.

    Margins are stored in steps of 1/256, so ``delta`` must be a whole number of them in (0, 1).
    """
    steps = delta * 256
    if not 0 < steps < 256 or steps != int(steps):
        raise InputError(f"delta is {delta}; allowed: multiples of 1/256 between 0 and 1")
    return margin < np.uint8(steps)


def differ(one: str, other: str) -> bool:
    """Whether both of two hashes or dtypes say something, and not the same."""
    silent = one.lower() in UNKNOWN or other.lower() in UNKNOWN
    return not silent and SAME.get(one, one) != SAME.get(other, other)
