"""The engine's own run as a trace that the simulator replays: what was drafted where, and what came of it.

At every position where a round was served, its draft is there at the block size and in the view that it had: matches,
second candidates, margins, confidences; the verifier's entropy is there for every token. So the policy that was served
replays exactly, all of its decisions included. Everything else is a mismatch, and the trace's note says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recguide.engine.outcomes import Change
from recguide.engine.requests import Held, Live
from recguide.engine.scores import Unmade
from recguide.sim.overlap import CONTINUED
from recguide.traces.dense import VIEWS, DenseRequest, DenseTrace, Drafts, Provenance, num_draft_tokens
from recguide.traces.sparse import REDUCED, SparseRequest, SparseTrace

NOTE = f"{REDUCED}: drafts of a served run where they were served, and none elsewhere"


@dataclass(slots=True)
class Story:
    """One request and its rounds: the output position of each, and what changed."""

    live: Live
    rounds: list[tuple[int, Change]] = field(default_factory=list)


class ServedRun:
    """Collects what steps changed; only requests that got their whole answer go into a trace."""

    def __init__(self) -> None:
        self.stories: dict[int, Story] = {}

    def see(self, changes: Sequence[Change]) -> None:
        """Take note of a step, as soon as it is over."""
        for change in changes:
            story = self.stories.setdefault(change.live.number, Story(change.live))
            if change.block_size and change.tokens:
                story.rounds.append((len(change.live.tokens) - len(change.tokens), change))

    def answered(self) -> list[Story]:
        """Those with a whole answer, in order of arrival."""
        ended = (story for story in self.stories.values() if story.live.finish_reason in ("eos", "length"))
        return sorted(ended, key=lambda story: story.live.number)

    def trace(self, provenance: Provenance) -> DenseTrace:
        """The run as a dense trace of reduced fidelity; request i is the i-th that was answered."""
        stories = self.answered()
        return DenseTrace(provenance, tuple(_request(story, provenance.block_sizes) for story in stories))

    def sparse(self, model: str, block_size: int, source: str) -> SparseTrace:
        """Acceptance lengths alone, as for any other system's run."""
        stories, dropped = self.answered(), len(self.stories)
        requests = tuple(
            SparseRequest(
                f"served/{story.live.number}",
                "served",
                "unknown",
                len(story.live.prompt),
                len(story.live.tokens),
                tuple(change.accept_len for _, change in story.rounds),
            )
            for story in stories
        )
        return SparseTrace(model, block_size, source, {"unfinished": dropped - len(stories)}, requests)


def _request(story: Story, block_sizes: Sequence[int]) -> DenseRequest:
    live = story.live
    positions = len(live.tokens)
    drafts = {(view, size): _nothing(view, size, positions) for view in VIEWS for size in block_sizes}
    for position, change in story.rounds:
        if change.verified is not None:
            draft = change.verified.made(change.place) if isinstance(change.verified, Unmade) else change.verified
            _put(drafts, live.tokens, position, change.accept_len, draft)
        if change.held is not None and change.held.source == CONTINUED:
            # its first token was right, even where the request lost it for want of pages and it was never verified
            drafts["continuation", len(change.held)].match[position + len(change.tokens) - 1] |= 1
    entropy = np.maximum(np.array(live.entropies, np.float32), 0)
    name = f"served/{live.number:06d}"
    reason = str(live.finish_reason)
    return DenseRequest(name, "served", "unknown", "0" * 64, len(live.prompt), positions, reason, entropy, drafts)


def _put(
    drafts: dict[tuple[str, int], Drafts], chain: Sequence[int], position: int, accept_len: int, held: Held
) -> None:
    """Enter the draft that a round verified."""
    size, continued = len(held), held.source == CONTINUED
    found = drafts["continuation" if continued else "seeded", size]
    # a continuation was drafted one position earlier, and its first token turned out to be the seed
    row, first = (position - 1, 0) if continued else (position, 1)
    truth = np.full(size - 1, -1, np.int64)
    known = chain[position : position + size - 1]
    truth[: len(known)] = known
    match = held.tokens[1:] == truth
    # what was accepted and then cut lies behind the chain's end
    match[: accept_len - 1] = True
    match[accept_len - 1 : accept_len] = False
    shift = 1 if continued else 0
    found.match[row] = _bits(match) << shift | shift
    found.second[row] = _bits((held.second[1:] == truth) & ~match) << shift
    found.second_no_eos[row] = _bits((held.second_no_eos[1:] == truth) & ~match) << shift
    found.margin[row, shift:] = held.margin[1:]
    if found.p1 is not None:
        found.p1[row] = np.maximum(held.p1, held.margin)[first:]


def _bits(flags: NDArray[np.bool_]) -> int:
    return sum(1 << int(place) for place in np.flatnonzero(flags))


def _nothing(view: str, size: int, positions: int) -> Drafts:
    masks = [np.zeros(positions, np.uint32) for _ in range(3)]
    levels = [np.zeros((positions, num_draft_tokens(view, size)), np.uint8) for _ in range(2)]
    return Drafts(masks[0], masks[1], masks[2], levels[0], levels[1] if view == "seeded" else None)
