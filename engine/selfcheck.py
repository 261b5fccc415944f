"""Proof at start-up that drafts use the draft adapter and that verification does not.

A draft adapter that is lost on the way costs a fifth of the tokens per forward, and nothing else tells: the output
stays right. One that leaks into verification changes the output.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from recguide.engine.adapters import projections
from recguide.engine.batches import batch_of
from recguide.engine.forwards import CAPTURE_AFTER, Forwards
from recguide.engine.inputs import shape_of
from recguide.engine.model import Decoder, Draft, LowRank
from recguide.engine.pages import PagedCache
from recguide.engine.planning import Piece, branched_piece
from recguide.engine.requests import Held, Live, Wish

SIZE = 4
LEAVES = (2, SIZE)
DraftOf = Callable[[Tensor], Draft]
"""Which tokens of a forward are drafts, from those that its piece says are."""


@dataclass(frozen=True, slots=True)
class AdapterCheck:
    """What was found; the largest differences of hidden states with the adapter from those without."""

    present: bool
    """Whether the model has updates for draft tokens alone."""
    draft_difference: float
    verify_difference: float
    """Of the verifier's tokens in a forward that drafts beside them; 0, or the check failed."""
    routed_difference: float
    """Of the verifier's tokens, had they been drafts: the adapter would change them."""
    drafting_difference: float
    """Of all tokens in a forward that only drafts, from those without the adapter."""


@torch.no_grad()
def check_adapter(decoder: Decoder, page_size: int) -> AdapterCheck:
    """Run a verifier row with branches: as it is, without the adapter, and all of it with it.

    RuntimeError where the adapter is there and drafts do not change by it, or where verification does.
    """
    piece = _piece(decoder)
    forwards = Forwards(decoder, PagedCache(decoder.config, 0, page_size, 1, len(piece.layout), *_where(decoder)))
    kinds: tuple[DraftOf, ...] = (lambda own: own, torch.zeros_like, torch.ones_like, lambda own: True)
    routed, without, everywhere, drafting = (_hidden(forwards, piece, kind) for kind in kinds)
    verifier = slice(0, SIZE)
    found = AdapterCheck(
        any(update.draft_only for update in _updates(decoder)),
        _difference(routed[SIZE:], without[SIZE:]),
        _difference(routed[verifier], without[verifier]),
        _difference(everywhere[verifier], without[verifier]),
        _difference(drafting, without),
    )
    _judge(found)
    _check_graph(forwards, [piece, _piece(decoder, 1)])
    return found


def _check_graph(forwards: Forwards, pieces: Sequence[Piece]) -> None:
    """RuntimeError where a replayed graph finds anything else than the same forward did without one."""
    assert len(pieces) == CAPTURE_AFTER
    before, after = ([forwards.read(forwards.run([piece])) for piece in pieces] for _ in range(2))
    for one, other in zip(before, after, strict=True):
        if not all(map(partial(np.array_equal, equal_nan=True), one, other)):
            raise RuntimeError("a forward gives something else when it is replayed as a CUDA graph")


def _judge(found: AdapterCheck) -> None:
    if found.verify_difference > 0:
        raise RuntimeError(f"the draft adapter changes what is verified, by up to {found.verify_difference:g}")
    if found.present and not min(found.draft_difference, found.routed_difference, found.drafting_difference) > 0:
        raise RuntimeError("the model has a draft adapter, and drafts are the same without it")
    if not found.present and max(found.draft_difference, found.drafting_difference) > 0:
        raise RuntimeError("drafts differ from what the same tokens give, and the model has no draft adapter")


def _piece(decoder: Decoder, first: int = 0) -> Piece:
    tokens = 1 + (first + np.arange(SIZE, dtype=np.int64)) % (decoder.config.vocab_size - 1)
    nothing = np.zeros(SIZE, np.uint8)
    live = Live(0, [0], Wish(1), frozenset(), 1, tokens=[int(tokens[0])])
    held = Held(tokens, tokens, tokens, nothing, nothing, 0, 0)
    piece = branched_piece(live, held, LEAVES, SIZE, tokens, decoder.config.mask_id, decoder.config.draft_shift)
    return piece._replace(cached=0)


def _hidden(forwards: Forwards, piece: Piece, draft: DraftOf) -> Tensor:
    """Hidden states ``[tokens, hidden]``, with the adapter where that says."""
    inputs = forwards.inputs(shape_of(batch_of([piece]), forwards.cache.page_size, False))
    inputs.put([piece], forwards.cache, None)
    inputs.send()
    own = inputs["gate"].bool()[None, :, None]
    return forwards.hidden(inputs, {"some": draft(own)})[0].float()


def _difference(found: Tensor, other: Tensor) -> float:
    return float((found - other).abs().max())


def _updates(decoder: Decoder) -> list[LowRank]:
    return [update for _, linear in projections(decoder) for update in linear.updates if isinstance(update, LowRank)]


def _where(decoder: Decoder) -> tuple[torch.device, torch.dtype]:
    return decoder.device, decoder.dtype
