"""What a round emits: one set of rules for the engine and the simulator (paper, section 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.traces.dense import DenseTrace, matched_lens

AR = 1
"""The block size of a round without a draft: one decode forward emits one token."""

Ints = NDArray[np.int64]


def largest_fitting(block_sizes: Sequence[int], cached_tokens: Ints | int, max_context: int) -> Ints:
    """The largest of the ascending ``block_sizes`` whose tokens fit behind the cached ones, and AR where none does.

    A round feeds B tokens, seed included, at the positions behind the cache. Shape as ``cached_tokens``.
    """
    sizes = np.array([AR, *block_sizes])
    room = max_context - np.asarray(cached_tokens)
    return sizes[np.searchsorted(sizes[1:], room, side="right")]


def emitted_lens(accept_lens: Ints, tokens_left: Ints | int, eos_at: Ints | int | None = None) -> Ints:
    """Tokens that a round emits out of the ones it accepted: none behind the output limit, none behind EOS.

    ``tokens_left`` is what the output limit still permits (at least 1), and ``eos_at`` the offset of the first EOS
    among the accepted tokens, or anything from the acceptance length up where there is none. A round is cut where it
    emits fewer tokens than it accepted.
    """
    emitted = np.minimum(accept_lens, tokens_left)
    return emitted if eos_at is None else np.minimum(emitted, np.asarray(eos_at) + 1)


def accept_lens(match: NDArray[np.uint32]) -> NDArray[np.int16]:
    """The acceptance length of every draft of the seeded view: its matched tokens, and the verifier's own."""
    return (matched_lens(match) + 1).astype(np.int16)


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """The outcome of a round at every position of every recorded request, flat: row ``first[r] + p``.

    Every request has P + 1 rows: p = P is where it is finished, and its outcomes there are 0.
    """

    block_sizes: tuple[int, ...]
    """The recorded ones, ascending, without AR."""
    first: Ints
    """[requests] The row of a request's position 0."""
    prompt_tokens: Ints
    output_tokens: Ints
    accept_len: dict[int, NDArray[np.int16]]
    """By block size, AR included: [rows] acceptance lengths before any cut."""
    emitted: dict[int, Ints]
    """By block size, AR included: [rows] tokens emitted."""
    finished: NDArray[np.bool_]
    """[rows] Whether this is the position behind the last token."""
    largest: Ints | None
    """[rows] The largest block size that fits in the context; None when all do everywhere."""

    def in_memory(self) -> "Rounds":
        """The same as plain arrays, whatever kind of array it was made of."""
        return Rounds(
            self.block_sizes,
            np.asarray(self.first),
            np.asarray(self.prompt_tokens),
            np.asarray(self.output_tokens),
            {size: np.asarray(lens) for size, lens in self.accept_len.items()},
            {size: np.asarray(lens) for size, lens in self.emitted.items()},
            np.asarray(self.finished),
            None if self.largest is None else np.asarray(self.largest),
        )

    def check(self, block_size: int) -> None:
        """ValueError with the recorded block sizes, unless a round can run at this one."""
        if block_size not in self.emitted:
            known = ", ".join(map(str, self.block_sizes))
            raise ValueError(f"block size {block_size} was not recorded; recorded: {known}, and 1 for AR steps")


def rounds_of(trace: DenseTrace) -> Rounds:
    """The rounds that a dense trace holds, every one of them from the true prefix (the seeded view)."""
    grid = trace.provenance.block_sizes
    prompts = np.array([request.prompt_tokens for request in trace.requests])
    outputs = np.array([request.output_tokens for request in trace.requests])
    first = np.concatenate([[0], np.cumsum(outputs + 1)[:-1]])
    position = np.arange(outputs.sum() + len(outputs)) - np.repeat(first, outputs + 1)
    left = np.repeat(outputs, outputs + 1) - position
    accepted = {AR: (left > 0).astype(np.int16)}
    accepted |= {size: _padded([accept_lens(r.drafts["seeded", size].match) for r in trace.requests]) for size in grid}
    emitted = {size: emitted_lens(lens.astype(np.int64), left) for size, lens in accepted.items()}
    # a round at position p feeds its seed, the last output token, and that is not cached yet
    cached = np.repeat(prompts, outputs + 1) + position - 1
    largest = largest_fitting(grid, cached, trace.provenance.max_context)
    clipped = bool((largest[left > 0] < grid[-1]).any())
    return Rounds(grid, first, prompts, outputs, accepted, emitted, left == 0, largest if clipped else None)


def _padded(requests: Sequence[NDArray[np.int16]]) -> NDArray[np.int16]:
    """One row more for every request, and zero there."""
    end = np.zeros(1, np.int16)
    return np.concatenate([part for lens in requests for part in (lens, end)])
