"""What verification gives each request: tokens, the end of its output, and the branch that it hit.

Acceptance is as in `sim/rounds.py`, branches as in `sim/overlap.py` (paper, sections 3.1 and 5.1). Each function stands
here twice: for all requests in torch, and for one of them in Triton.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.round_state import (
    BLOCK,
    BROKEN,
    ENDED,
    GOES_ON,
    LEFT,
    LIMITED,
    OUTCOME,
    PHASE,
    PLACES,
    ROUNDS,
    RUNNING,
    VERIFY,
    WRITTEN,
    Forward,
    Requests,
    RoundRules,
)

# the flags of sim/overlap.py, which kernels may not import; a test compares them
COVERED, CORRECTED, FULL, CONTINUED, DRAFTED, CUT, PREPARED = (1 << bit for bit in range(7))


class Accepted(NamedTuple):
    """What verification gave, [N] each; for requests that did not verify, nothing was emitted."""

    accept_len: Tensor
    emitted: Tensor
    finish: Tensor
    token: Tensor
    """The last accepted one, the verifier's own."""


def accepted_tokens(requests: Requests, first: Tensor, eos: Tensor) -> Accepted:
    """Matches up to the first mismatch and the verifier's own token, cut behind EOS and at the output limit.

    ``first`` ``[N, T]`` are the best tokens of the forward, those of the verifier row first.
    """
    draft, state = requests.draft, requests.state
    size = draft.shape[1]
    verified, at = first[:, :size], torch.arange(size, device=draft.device)
    hits = (draft[:, 1:] == verified[:, :-1]) & (verified[:, :-1] >= 0) & (at[1:] < state[:, BLOCK, None])
    accept_len = hits.long().cumprod(1).sum(1) + 1
    ends = torch.isin(verified, eos)
    eos_at = torch.where(ends & (at < accept_len[:, None]), at, size).amin(1)
    # as in a dense trace, draft tokens behind EOS count as mismatches
    accept_len = torch.minimum(accept_len, eos_at + 2)
    emitted = torch.minimum(torch.minimum(accept_len, eos_at + 1), state[:, LEFT])
    token = verified.gather(1, accept_len[:, None] - 1)[:, 0]
    broken = (token < 0) & (emitted == accept_len)
    emitted = torch.where(state[:, PHASE] == VERIFY, emitted - broken.int(), 0)
    limited = torch.where(emitted == state[:, LEFT], LIMITED, RUNNING)
    finish = torch.where(broken, BROKEN, torch.where(eos_at < emitted, ENDED, limited))
    return Accepted(accept_len, emitted, finish, token)


def hit_branch(
    requests: Requests, forward: Forward, first: Tensor, accepted: Accepted, rules: RoundRules
) -> tuple[Tensor, Tensor]:
    """The row whose draft is the next one, -1 for none, and the outcome flags of the round."""
    size, state = rules.block_size, requests.state
    whole = accepted.accept_len == accepted.emitted
    lives = accepted.finish == RUNNING
    source, flags = torch.full_like(accepted.accept_len, -1), state[:, OUTCOME].long()
    for n in range(rules.corrections):
        covered = whole & (state[:, PLACES + n] == accepted.accept_len)
        hit = covered & lives & (forward.ids[:, (n + 1) * size] == accepted.token)
        source = torch.where(hit, n + 1, source)
        flags |= covered * COVERED | hit * CORRECTED
    if rules.continuation != "never":
        full = whole & (state[:, GOES_ON] > 0) & (accepted.accept_len == size)
        row = 1 + (state[:, PLACES:] > 0).sum(1)
        # a shifted draft's first token is the verifier's own
        begins = accepted.token if rules.draft_shift else first.gather(1, row[:, None] * size)[:, 0]
        hit = full & lives & (begins == accepted.token)
        source = torch.where(hit, row, source)
        flags |= full * FULL | hit * CONTINUED
    return source, flags | ~whole * CUT


def write_output(
    requests: Requests, first: Tensor, entropy: Tensor, accepted: Accepted, flags: Tensor, verifying: Tensor
) -> None:
    """Emitted tokens, and what became of the round, into the rings."""
    state, size = requests.state, requests.draft.shape[1]
    at = torch.arange(size, device=first.device)
    row, column = torch.nonzero(at < accepted.emitted[:, None], as_tuple=True)
    requests.tokens[row, (state[row, WRITTEN] + column) % requests.tokens.shape[1]] = first[row, column]
    mean = torch.where(at < accepted.emitted[:, None], entropy[:, :size], 0).sum(1) / accepted.emitted.clamp(min=1)
    rows = torch.nonzero(verifying)[:, 0]
    entry = torch.stack([state[:, BLOCK], accepted.accept_len, accepted.emitted, flags], 1).int()
    place = state[rows, ROUNDS] % requests.log.shape[1]
    requests.log[rows, place], requests.entropy[rows, place] = entry[rows], mean[rows]
    state[:, ROUNDS] += verifying
    state[:, WRITTEN] += accepted.emitted


_OUTCOME, _GOES_ON, _ROUNDS, _WRITTEN, _PLACES = map(tl.constexpr, (OUTCOME, GOES_ON, ROUNDS, WRITTEN, PLACES))
_RUNNING, _ENDED, _LIMITED, _BROKEN = map(tl.constexpr, (RUNNING, ENDED, LIMITED, BROKEN))
_COVERED, _CORRECTED, _FULL, _CONTINUED, _CUT = map(tl.constexpr, (COVERED, CORRECTED, FULL, CONTINUED, CUT))


@triton.jit
def accept_one(verified, drafted, at, block, left, verifying, eos, NUM_EOS: tl.constexpr, SIZE: tl.constexpr):
    """:func:`accepted_tokens` of one request; ``drafted`` is what each verifier token should be."""
    hit = (drafted == verified) & (verified >= 0) & (at + 1 < block)
    accept_len = tl.min(tl.where(hit, SIZE, at), 0) + 1
    ends = at < 0
    for i in tl.static_range(NUM_EOS):
        ends = ends | (verified == tl.load(eos + i))
    eos_at = tl.min(tl.where(ends & (at < accept_len), at, SIZE), 0)
    accept_len = tl.minimum(accept_len, eos_at + 2)
    emitted = tl.minimum(tl.minimum(accept_len, eos_at + 1), left)
    token = tl.sum(tl.where(at == accept_len - 1, verified, 0), 0)
    broken = (token < 0) & (emitted == accept_len)
    emitted = tl.where(verifying, emitted - broken.to(tl.int32), 0)
    finish = tl.where(emitted == left, _LIMITED, _RUNNING)
    finish = tl.where(broken, _BROKEN, tl.where(eos_at < emitted, _ENDED, finish))
    return accept_len, emitted, finish, token


@triton.jit
def hit_branch_one(
    row, ids, first, tail, accept_len, emitted, finish, token,
    SIZE: tl.constexpr, CORRECTIONS: tl.constexpr, CONTINUATION: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """:func:`hit_branch` of one request."""
    whole, lives = accept_len == emitted, finish == _RUNNING
    source, corrections = accept_len * 0 - 1, accept_len * 0
    flags = tl.load(row + _OUTCOME) | tl.where(whole, 0, _CUT)
    for n in tl.static_range(CORRECTIONS):
        place = tl.load(row + _PLACES + n)
        covered = whole & (place == accept_len)
        hit = covered & lives & (tl.load(ids + tail + (n + 1) * SIZE) == token)
        source = tl.where(hit, n + 1, source)
        flags |= tl.where(covered, _COVERED, 0) | tl.where(hit, _CORRECTED, 0)
        corrections += (place > 0).to(tl.int32)
    if CONTINUATION != 0:
        full = whole & (tl.load(row + _GOES_ON) > 0) & (accept_len == SIZE)
        hit = full & lives
        if not SHIFT:
            hit = hit & (tl.load(first + tail + (1 + corrections) * SIZE) == token)
        source = tl.where(hit, 1 + corrections, source)
        flags |= tl.where(full, _FULL, 0) | tl.where(hit, _CONTINUED, 0)
    return source, flags


@triton.jit
def write_output_one(
    row, request, tokens, log, entropies, verified, entropy, at, block, accept_len, emitted, flags, verifying,
    token_ring, log_ring,
):  # fmt: skip
    """:func:`write_output` of one request."""
    written, rounds = tl.load(row + _WRITTEN), tl.load(row + _ROUNDS)
    tl.store(tokens + request * token_ring + (written + at) % token_ring, verified, mask=at < emitted)
    mean = tl.sum(tl.where(at < emitted, entropy, 0.0), 0) / tl.maximum(emitted, 1).to(tl.float32)
    place = request * log_ring + rounds % log_ring
    tl.store(entropies + place, mean, mask=verifying)
    tl.store(log + 4 * place, block, mask=verifying)
    tl.store(log + 4 * place + 1, accept_len, mask=verifying)
    tl.store(log + 4 * place + 2, emitted, mask=verifying)
    tl.store(log + 4 * place + 3, flags, mask=verifying)
    tl.store(row + _WRITTEN, written + emitted)
    tl.store(row + _ROUNDS, rounds + verifying.to(tl.int32))
