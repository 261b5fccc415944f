"""What a round emits: one set of rules for the engine and the simulator (paper, section 3.1)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recguide.sim.drafts import FlatDrafts, Key, flat_drafts, with_ends
from recguide.traces.dense import DenseTrace, matched_lens
from recguide.traces.errors import InputError

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
    max_context: int
    """Tokens that one request may have cached, those of its block included."""
    max_output_tokens: int
    """At which recording stopped a request."""
    entropy: NDArray[np.float64]
    """[rows] Nats, of the verifier's distribution that picks the token at this position."""
    model: str
    """Whose drafts they are."""
    drafts: Mapping[Key, FlatDrafts]
    """Of the views and block sizes that someone asked for."""
    weights_sha256: str = ""
    """Of the model; empty where nobody says."""
    adapter_sha256: str = ""
    """Of the draft adapter; empty where there is none, or nobody says."""

    def within(self, max_context: int) -> "Rounds":
        """The same rounds where the cache of a request, and so its block, ends earlier."""
        if max_context >= self.max_context:
            return self
        position = np.arange(len(self.finished)) - np.repeat(self.first, self.output_tokens + 1)
        # a round at position p feeds its seed, the last output token, and that is not cached yet
        cached = np.repeat(self.prompt_tokens, self.output_tokens + 1) + position - 1
        largest = largest_fitting(self.block_sizes, cached, max_context)
        clipped = bool((largest[~self.finished] < self.block_sizes[-1]).any())
        return replace(self, largest=largest if clipped else None, max_context=max_context)

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
            self.max_context,
            self.max_output_tokens,
            np.asarray(self.entropy),
            self.model,
            {key: drafts.in_memory() for key, drafts in self.drafts.items()},
            self.weights_sha256,
            self.adapter_sha256,
        )

    def check(self, block_size: int) -> None:
        """ValueError with the recorded block sizes, unless a round can run at this one."""
        if block_size not in self.emitted:
            known = ", ".join(map(str, self.block_sizes))
            raise InputError(f"block size {block_size} was not recorded; recorded: {known}, and 1 for AR steps")


def rounds_of(trace: DenseTrace, keys: Iterable[Key] = ()) -> Rounds:
    """The rounds that a dense trace holds, every one of them from the true prefix (the seeded view).

    ``keys`` name the views and block sizes whose drafts come along, for policies that look at them.
    """
    grid = trace.provenance.block_sizes
    prompts = np.array([request.prompt_tokens for request in trace.requests])
    outputs = np.array([request.output_tokens for request in trace.requests])
    first = np.concatenate([[0], np.cumsum(outputs + 1)[:-1]])
    left = np.repeat(outputs + first, outputs + 1) - np.arange(outputs.sum() + len(outputs))
    accepted = {AR: (left > 0).astype(np.int16)}
    accepted |= {
        size: with_ends([accept_lens(r.drafts["seeded", size].match) for r in trace.requests]) for size in grid
    }
    emitted = {size: emitted_lens(lens.astype(np.int64), left) for size, lens in accepted.items()}
    unlimited = int(prompts.max() + outputs.max()) + grid[-1]
    entropy = with_ends([request.entropy.astype(np.float64) for request in trace.requests])
    origin = trace.provenance
    state = origin.weights_sha256, origin.adapter_sha256 or ""
    known = origin.max_output_tokens, entropy, origin.model, flat_drafts(trace, keys), *state
    whole = Rounds(grid, first, prompts, outputs, accepted, emitted, left == 0, None, unlimited, *known)
    return replace(whole.within(origin.max_context), max_context=origin.max_context)
