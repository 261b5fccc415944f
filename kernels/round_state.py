"""Where requests stand and what their next forward is, kept on the device so that rounds need no host."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DONE, DRAFT, VERIFY = range(3)
"""What a request needs next: nothing, a draft, or the verification of the draft it holds."""
RUNNING, ENDED, LIMITED, BROKEN, STARVED = range(5)
"""How a request is finished: not, by EOS, by its limit, because the verifier gave NaN, or for want of KV pages."""
PHASE, FINISH, CACHED, LEFT, BLOCK, OUTCOME, GOES_ON, ROUNDS, WRITTEN, PLACES = range(10)
"""Columns of ``Requests.state``; the places of corrections come last."""
CONTINUATIONS = ("never", "always", "two-risky")


@dataclass(frozen=True, slots=True)
class RoundRules:
    """How requests draft and verify; the defaults are plain linear self-speculation.

    ``smaller`` are the block sizes below ``block_size`` that may run at the context limit. A position is risky when its
    margin is below ``delta_steps`` / 256. In lockstep every round begins with a draft forward, even where only one
    token fits, so that the requests of a batch stay in step; otherwise each goes on with what it needs.
    """

    block_size: int
    mask_id: int
    max_context: int
    smaller: tuple[int, ...] = ()
    corrections: int = 0
    continuation: str = "never"
    delta_steps: int = 128
    bar_eos: bool = False
    recursive: bool = True
    draft_shift: int = 0
    lockstep: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.block_size <= 64:
            raise ValueError(f"block_size is {self.block_size}; allowed: 2 to 64")
        if self.continuation not in CONTINUATIONS:
            raise ValueError(f"continuation is {self.continuation!r}; allowed: {', '.join(CONTINUATIONS)}")
        if list(self.smaller) != sorted({size for size in self.smaller if 2 <= size < self.block_size}):
            raise ValueError(f"smaller is {self.smaller}; allowed: ascending, 2 to {self.block_size - 1}")

    @property
    def rows(self) -> int:
        """Rows of a forward: the verifier's, and as many branches as there may be."""
        return 1 + self.corrections + (self.continuation != "never")

    @property
    def num_tokens(self) -> int:
        """Query tokens of a request's forward, those that are not needed included."""
        return self.rows * self.block_size


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests on the device. Output goes into rings: whoever reads them must come before they are overwritten."""

    state: Tensor
    """int32 [N, 9 + corrections] See the names of the columns."""
    draft: Tensor
    """int64 [N, B] The block being drafted or verified: its seed, the last token, is emitted but not cached. -1: no
    token could be drafted, which never matches."""
    tokens: Tensor
    """int64 [N, ring] Output token i at i modulo the ring."""
    log: Tensor
    """int32 [N, log ring, 4] Of each round: block size, acceptance length, emitted tokens, outcome flags."""
    entropy: Tensor
    """fp32 [N, log ring] Of each round: the verifier's mean entropy over the tokens it emitted, in nats."""


@dataclass(frozen=True, slots=True)
class Forward:
    """What every request's next forward reads, T query tokens each, of which the first ``num_tokens`` are needed.

    The others see the prefix alone, and nobody sees them. ``visible`` is as in ``layouts.packed``.
    """

    ids: Tensor
    """int64 [N, T]"""
    positions: Tensor
    """int64 [N, T] Of rotary embeddings; the tokens of branches share them."""
    slots: Tensor
    """int64 [N, T] Where keys and values go among the request's own: behind the cached ones, in order."""
    visible: Tensor
    """int32 [N, T] What each token sees of the forward's tokens."""
    gate: Tensor
    """bool [N, T, 1] Whether a token is a draft, for draft adapters."""
    num_tokens: Tensor
    """int32 [N]"""
    prefix_lens: Tensor
    """int32 [N] Cached tokens."""


def make_requests(
    num_requests: int, rules: RoundRules, token_ring: int, log_ring: int, device: torch.device | str
) -> Requests:
    """Requests that are all finished."""
    state = torch.zeros(num_requests, PLACES + rules.corrections, dtype=torch.int32, device=device)
    state[:, FINISH] = LIMITED
    return Requests(
        state,
        torch.full((num_requests, rules.block_size), rules.mask_id, device=device),
        torch.zeros(num_requests, token_ring, dtype=torch.long, device=device),
        torch.zeros(num_requests, log_ring, 4, dtype=torch.int32, device=device),
        torch.zeros(num_requests, log_ring, device=device),
    )


def make_forward(num_requests: int, rules: RoundRules, device: torch.device | str) -> Forward:
    """A forward in which nobody needs anything."""
    shape = (num_requests, rules.num_tokens)

    def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return Forward(
        torch.full(shape, rules.mask_id, device=device),
        zeros(torch.long, *shape),
        zeros(torch.long, *shape),
        zeros(torch.int32, *shape),
        zeros(torch.bool, *shape, 1),
        zeros(torch.int32, num_requests),
        zeros(torch.int32, num_requests),
    )


def sizes_tensor(rules: RoundRules, device: torch.device | str) -> Tensor:
    """The block sizes a round may have, int32, ascending."""
    return torch.tensor([*rules.smaller, rules.block_size], dtype=torch.int32, device=device)


def eos_tensor(eos_ids: Sequence[int], device: torch.device | str) -> Tensor:
    """EOS tokens, int64."""
    return torch.tensor(sorted(set(eos_ids)), device=device)


def tail_mask(forward: Forward, span: int) -> Tensor:
    """``visible`` as a bool mask ``[N, 1, T, span]`` over a request's slots, for attention that wants one."""
    visible, prefix = forward.visible[..., None], forward.prefix_lens[:, None, None]
    key = torch.arange(span, dtype=torch.int32, device=visible.device) - prefix
    trunk, start, length = visible & 0xFFF, (visible >> 12) & 0xFFF, (visible >> 24) & 0xFF
    return ((key < trunk) | ((key >= start) & (key < start + length)))[:, None]
