"""What a step changes. Forwards only find out; `apply` is the one place where a request changes by it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from recguide.engine.requests import Held, Live
from recguide.sim.history import PAPER, Signal, tell
from recguide.sim.overlap import Outcome
from recguide.sim.rounds import AR, emitted_lens


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What became of one request in a step; without tokens it only holds a new draft."""

    live: Live
    block_size: int = 0
    """Of the round; 0 for a prefill."""
    accept_len: int = 0
    """Before any cut."""
    tokens: Sequence[int] = ()
    """Emitted."""
    entropies: Sequence[float] = ()
    """Of the verifier's distributions that gave them."""
    outcome: int = 0
    """``Outcome`` flags."""
    held: Held | None = None
    """The draft that it holds from now on."""
    verified: Held | None = None
    """The draft that the round verified."""
    error: str | None = None


def accepted(
    drafted: Sequence[int], verified: Sequence[int], eos_ids: Collection[int], tokens_left: int
) -> tuple[int, int]:
    """The acceptance length of a block before any cut, and what of it is emitted.

    ``drafted`` are the B-1 tokens behind the seed, ``verified`` the B tokens of the verifier. As in a dense trace,
    draft tokens behind EOS count as mismatches.
    """
    matched = next((i for i, (a, b) in enumerate(zip(drafted, verified, strict=False)) if a != b), len(drafted))
    whole = matched + 1
    eos_at = next((at for at, token in enumerate(verified[:whole]) if token in eos_ids), whole)
    accept_len = min(whole, eos_at + 2)
    return accept_len, int(emitted_lens(np.array(accept_len), tokens_left, eos_at))


def outcome_of(accept_len: int, emitted: int, drafted: bool) -> int:
    """The flags of a round without branches."""
    cut = Outcome.CUT.value if emitted < accept_len else 0
    return cut | (Outcome.DRAFTED.value if drafted else 0)


def apply(change: Change, signal: Signal = PAPER) -> None:
    """Let a request be what a step made of it; sets why it is finished, where it is."""
    live = change.live
    live.held = change.held
    if change.error is not None:
        live.finish_reason, live.error = "error", change.error
        return
    if not change.tokens:
        return
    live.tokens += change.tokens
    live.entropies += change.entropies
    live.tokens_left -= len(change.tokens)
    if change.block_size >= AR:
        _tell(change, signal)
    if live.tokens[-1] in live.eos_ids:
        live.finish_reason = "eos"
    elif live.tokens_left == 0:
        live.finish_reason = "length"


def _tell(change: Change, signal: Signal) -> None:
    live, emitted = change.live, np.array([len(change.tokens)])
    live.block_size, live.accept_len = change.block_size, len(change.tokens)
    count = signal.decisions(emitted, change.block_size)
    mean = np.array(change.entropies[: int(count[0])], np.float64).sum(keepdims=True) / count
    tell(live.figures[:, None], None, mean, change.block_size, emitted)
