"""Accept and plan on the device: what a forward's statistics make of every request, and what its next forward is.

One call after each forward does what `sim/rounds.py` and `sim/overlap.py` say a round does (paper, sections 3.1, 5.1):
matches, acceptance length, EOS and output limit, the branch that was hit, the next draft, its risky positions and
their branches, or a draft forward where none is held. Plain linear self-speculation is the case without branches.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.branches import choose_branches, fitting_block, risky_tokens, store_branches, take_draft
from recguide.kernels.logit_statistics import LogitStatistics
from recguide.kernels.next_forward import lay_out, store_row
from recguide.kernels.round_state import (
    BLOCK,
    CACHED,
    CONTINUATIONS,
    DONE,
    DRAFT,
    ENDED,
    FINISH,
    GOES_ON,
    LEFT,
    LIMITED,
    OUTCOME,
    PHASE,
    PLACES,
    RUNNING,
    VERIFY,
    WRITTEN,
    Forward,
    Requests,
    RoundRules,
)
from recguide.kernels.verification import (
    DRAFTED,
    PREPARED,
    accept_one,
    accepted_tokens,
    hit_branch,
    hit_branch_one,
    write_output,
    write_output_one,
)


def advance_reference(
    requests: Requests, forward: Forward, found: LogitStatistics, eos: Tensor, sizes: Tensor, rules: RoundRules
) -> None:
    """Take the statistics ``[N * T]`` of a forward, and change ``requests`` and ``forward`` to what comes next.

    ``eos`` and ``sizes`` are from ``eos_tensor`` and ``sizes_tensor``.
    """
    shape = forward.ids.shape
    first, margin, entropy = (column.view(shape) for column in (found.first, found.margin, found.entropy))
    second = (found.second_no_eos if rules.bar_eos else found.second).view(shape)
    state = requests.state
    verifying = state[:, PHASE] == VERIFY
    accepted = accepted_tokens(requests, first, eos)
    source, flags = hit_branch(requests, forward, first, accepted, rules)
    write_output(requests, first, entropy, accepted, flags, verifying)
    seed = first.gather(1, (accepted.emitted - 1).clamp(min=0)[:, None].long())[:, 0]
    seed = torch.where(verifying & (accepted.emitted > 0), seed, requests.draft[:, 0])
    source = torch.where(state[:, PHASE] == DRAFT, 0, torch.where(verifying, source, -1))
    state[:, CACHED] += accepted.emitted
    state[:, LEFT] -= accepted.emitted
    state[:, FINISH] = torch.where(verifying, accepted.finish, state[:, FINISH])
    take_draft(requests, first, seed, source, sizes, rules)
    alternatives = choose_branches(requests, margin, second, source, rules)
    lay_out(requests, forward, alternatives, rules)


def start(
    requests: Requests,
    forward: Forward,
    prompt_lens: Tensor,
    limits: Tensor,
    tokens: Tensor,
    eos: Tensor,
    sizes: Tensor,
    rules: RoundRules,
) -> None:
    """Begin all requests anew: prompts of ``prompt_lens`` are cached, ``tokens`` came of them, ``limits`` may come."""
    state = requests.state.zero_()
    state[:, CACHED], state[:, LEFT], state[:, WRITTEN] = prompt_lens, limits - 1, 1
    state[:, FINISH] = torch.where(torch.isin(tokens, eos), ENDED, torch.where(limits == 1, LIMITED, RUNNING))
    state[:, PHASE] = VERIFY
    requests.tokens[:, 0] = tokens
    requests.draft.fill_(rules.mask_id)
    take_draft(requests, requests.draft.clone(), tokens, torch.full_like(tokens, -1), sizes, rules)
    lay_out(requests, forward, [tokens] * rules.corrections, rules)


_PHASE, _FINISH, _CACHED, _LEFT, _BLOCK, _OUTCOME, _GOES_ON, _PLACES = map(
    tl.constexpr, (PHASE, FINISH, CACHED, LEFT, BLOCK, OUTCOME, GOES_ON, PLACES)
)
_DONE, _DRAFT, _VERIFY, _RUNNING = map(tl.constexpr, (DONE, DRAFT, VERIFY, RUNNING))
_DRAFTED, _PREPARED = map(tl.constexpr, (DRAFTED, PREPARED))


@triton.jit
def _plan(
    row, mine, ids, positions, slots, visible, gate, first, second, margin, tail, at, seed, source, finish, cached,
    left, sizes, mask_id, max_context,
    NUM_SIZES: tl.constexpr, SIZE: tl.constexpr, CORRECTIONS: tl.constexpr, CONTINUATION: tl.constexpr,
    STEPS: tl.constexpr, RECURSIVE: tl.constexpr, SHIFT: tl.constexpr, LOCKSTEP: tl.constexpr,
):  # fmt: skip
    """The next draft and forward of a request; gives its phase, block, continuation, outcome so far and branches."""
    room = max_context - cached
    block = fitting_block(room, sizes, NUM_SIZES)
    held = (source >= 0) | ((block == 1) & (not LOCKSTEP))
    phase = tl.where(finish != _RUNNING, _DONE, tl.where(held, _VERIFY, _DRAFT))
    # where the statistics of each draft token are
    base = tail + tl.maximum(source, 0) * SIZE - SHIFT
    index = tl.maximum(base + at, tail)
    draft = tl.where(at == 0, seed, tl.load(first + index, mask=at < SIZE, other=-1))
    tl.store(mine + at, draft, mask=at < SIZE)
    drafting = phase == _DRAFT
    store_row(
        ids, positions, slots, visible, gate, tail, 0, at, tl.where(drafting & (at > 0), mask_id, draft),
        (phase != _DONE) & (at < block), drafting, tl.where(drafting, block << 24, at + 1), 0, cached, mask_id, SIZE,
    )  # fmt: skip
    risky, rank, count = risky_tokens(margin, index, at, SIZE, STEPS)
    allowed = (source >= 0) & (block == SIZE) & (phase == _VERIFY) & (RECURSIVE | (source == 0))
    goes_on = (
        allowed & (left > SIZE) & (room >= 2 * SIZE) & ((CONTINUATION == 1) | ((CONTINUATION == 2) & (count <= 2)))
    )
    corrections = store_branches(
        row, ids, positions, slots, visible, gate, second, tail, base, at, risky, rank, allowed, goes_on, left, room,
        cached, mask_id, SIZE, CORRECTIONS, CONTINUATION,
    )  # fmt: skip
    branches = corrections + goes_on.to(tl.int32)
    outcome = tl.where((source == 0) & (block > 1), _DRAFTED, 0) | tl.where(branches > 0, _PREPARED, 0)
    return phase, block, goes_on, outcome, branches


@triton.jit
def _advance_kernel(
    state, draft, tokens, log, entropies, ids, positions, slots, visible, gate, num_tokens, prefix_lens,
    first, second, margin, entropy, eos, sizes, mask_id, max_context, token_ring, log_ring,
    NUM_EOS: tl.constexpr, NUM_SIZES: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr,
    CORRECTIONS: tl.constexpr, CONTINUATION: tl.constexpr, STEPS: tl.constexpr, RECURSIVE: tl.constexpr,
    SHIFT: tl.constexpr, LOCKSTEP: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    at = tl.arange(0, LANES)
    row, tail, mine = state + request * (_PLACES + CORRECTIONS), request * (ROWS * SIZE), draft + request * SIZE
    phase, left, cached = tl.load(row + _PHASE), tl.load(row + _LEFT), tl.load(row + _CACHED)
    block, finish = tl.load(row + _BLOCK), tl.load(row + _FINISH)
    verifying = phase == _VERIFY
    verified = tl.load(first + tail + at, mask=at < SIZE, other=-1)
    drafted = tl.load(mine + at + 1, mask=at + 1 < SIZE, other=-2)
    entropy_row = tl.load(entropy + tail + at, mask=at < SIZE, other=0.0)
    accept_len, emitted, now, token = accept_one(verified, drafted, at, block, left, verifying, eos, NUM_EOS, SIZE)
    source, flags = hit_branch_one(
        row, ids, first, tail, accept_len, emitted, now, token, SIZE, CORRECTIONS, CONTINUATION, SHIFT
    )
    finish = tl.where(verifying, now, finish)
    seed = tl.where(emitted > 0, tl.sum(tl.where(at == emitted - 1, verified, 0), 0), tl.load(mine))
    source = tl.where(phase == _DRAFT, 0, tl.where(verifying, source, -1))
    # what is read above is written below, by other threads
    tl.debug_barrier()
    write_output_one(
        row, request, tokens, log, entropies, verified, entropy_row, at, block, accept_len, emitted, flags, verifying,
        token_ring, log_ring,
    )  # fmt: skip
    cached += emitted
    left -= emitted
    phase, block, goes_on, outcome, branches = _plan(
        row, mine, ids, positions, slots, visible, gate, first, second, margin, tail, at, seed, source, finish, cached,
        left, sizes, mask_id, max_context,
        NUM_SIZES, SIZE, CORRECTIONS, CONTINUATION, STEPS, RECURSIVE, SHIFT, LOCKSTEP,
    )  # fmt: skip
    whole = (phase == _VERIFY) & (block == SIZE)
    live = tl.where(whole, SIZE * (1 + branches), tl.where(phase == _DONE, 0, block))
    tl.store(num_tokens + request, live)
    tl.store(prefix_lens + request, cached)
    tl.store(row + _PHASE, phase)
    tl.store(row + _FINISH, finish)
    tl.store(row + _CACHED, cached)
    tl.store(row + _LEFT, left)
    tl.store(row + _BLOCK, block)
    tl.store(row + _OUTCOME, outcome)
    tl.store(row + _GOES_ON, goes_on.to(tl.int32))


def advance(
    requests: Requests, forward: Forward, found: LogitStatistics, eos: Tensor, sizes: Tensor, rules: RoundRules
) -> None:
    """:func:`advance_reference` in one launch, a program a request."""
    second = found.second_no_eos if rules.bar_eos else found.second
    _advance_kernel[(len(requests.state),)](
        requests.state, requests.draft, requests.tokens, requests.log, requests.entropy,
        forward.ids, forward.positions, forward.slots, forward.visible, forward.gate, forward.num_tokens,
        forward.prefix_lens, found.first, second, found.margin, found.entropy, eos, sizes,
        rules.mask_id, rules.max_context, requests.tokens.shape[1], requests.log.shape[1],
        NUM_EOS=len(eos), NUM_SIZES=len(sizes), SIZE=rules.block_size, LANES=triton.next_power_of_2(rules.block_size),
        ROWS=rules.rows, CORRECTIONS=rules.corrections, CONTINUATION=CONTINUATIONS.index(rules.continuation),
        STEPS=rules.delta_steps, RECURSIVE=rules.recursive, SHIFT=rules.draft_shift, LOCKSTEP=rules.lockstep,
        num_warps=1,
    )  # fmt: skip
