"""The running requests of a replay: where each stands in its recorded answer, and what policies may see of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.sim.arrivals import Arrival
from recguide.sim.history import NOTHING, Floats, History
from recguide.sim.memory import Column
from recguide.sim.policies import Outcomes, Tally
from recguide.sim.rounds import Ints, Rounds, largest_fitting


class Running:
    """Requests between prefill and their last token, one column of ``state`` each."""

    def __init__(self, rounds: Rounds, resized: bool = False) -> None:
        self.rounds = rounds
        self.resized = resized
        """Whether lengths may differ from the recorded ones."""
        self.going_on: dict[int, list[int]] = {}
        """By sent request: recorded requests that it goes on with, the next one last."""
        self.seams = 0
        self.cut_rounds = 0
        """Rounds of resized requests that emitted less than they accepted."""
        self.ids: list[int] = []
        """Sent requests, in the order of the columns."""
        self.history: History | None = None
        """For policies that look back."""
        self.tallies: dict[int, Tally] = {}
        self.context_tokens = 0
        """Cached tokens of all of them: everything but the last token of each."""
        self._bind(np.zeros((9, 0), np.int64), np.zeros((len(NOTHING), 0)))

    def _bind(self, state: Ints, figures: Floats) -> None:
        self._state, self._figures = state, figures
        request, tokens, self.at, block_size, accept_len, self.prompt_tokens, self.ran, self.left, self.held = state
        self._progress = state[1:3]
        self.seen = Outcomes(request, tokens, block_size, accept_len, self.context_tokens)

    def join(self, ids: list[int], columns: Sequence[Column], step: int) -> None:
        """Take in freshly prefilled requests, at the ``column`` that each stood at before its prefill's token."""
        joined = np.array([column.state for column in columns]).T
        _, tokens, at, _, _, prompt_tokens, ran, left, _ = joined
        tokens += 1
        at += 1
        left -= 1
        ran.fill(step)
        self.ids += ids
        self.context_tokens += int((prompt_tokens + tokens - 1).sum())
        figures = np.array([column.figures for column in columns]).T
        self._bind(np.concatenate([self._state, joined], axis=1), np.concatenate([self._figures, figures], axis=1))
        self._go_on()

    def column(self, arrival: Arrival) -> Column:
        """Where a request stands before its prefill."""
        first = int(self.rounds.first[arrival.row])
        return Column((arrival.row, 0, first, 0, 0, arrival.prompt_tokens, 0, arrival.output_tokens, -1), NOTHING)

    def evict(self, place: int) -> tuple[int, Column]:
        """Take a request out of the batch with where it stands; gives its id and column."""
        column = Column(tuple(self._state[:, place].tolist()), tuple(self._figures[:, place].tolist()))
        self.context_tokens -= self.cached(np.array([place]))
        sent = self.ids.pop(place)
        self._bind(np.delete(self._state, place, axis=1), np.delete(self._figures, place, axis=1))
        return sent, column

    def advance(self, block_size: int | Ints, rows: Ints | None, step: int) -> list[int]:
        """Play one round of all requests, or of those in ``rows``; gives the tokens that each emitted.

        ``block_size`` is one for all of these requests, or one for each.
        """
        at = self.at_of(rows)
        accepted = _look_up(self.rounds.accept_len, block_size, at) if self.resized else None
        return self.emit(_look_up(self.rounds.emitted, block_size, at), accepted, block_size, rows, step)

    def look(self) -> Outcomes:
        """What policies may see."""
        seen = self.seen
        if self.history is not None:
            seen.entropy, seen.entropy_before, seen.matched, seen.checked = self._figures
            seen.tallies = self.tallies
        return seen

    def at_of(self, rows: Ints | None) -> Ints:
        """The rows of ``Rounds`` where all requests stand, or those in ``rows``."""
        at: Ints = self.at if rows is None else self.at.take(rows)
        return at

    def emit(
        self, emitted: Ints, accepted: Ints | None, block_size: int | Ints, rows: Ints | None, step: int
    ) -> list[int]:
        """Book what a round of these requests emitted as recorded, and give it cut to the lengths that they have.

        The accepted tokens are needed where these may differ from the recorded ones.
        """
        seen = self.seen
        if accepted is not None:
            emitted = self._cut(emitted, accepted, rows)
        if self.history is not None:
            self.history.tell(self._figures, rows, self.at_of(rows), block_size, emitted)
        if rows is None:
            self._progress += emitted
            seen.block_size[:] = block_size
            seen.accept_len[:] = emitted
            self.ran.fill(step)
        else:
            self._progress[:, rows] += emitted
            seen.block_size[rows], seen.accept_len[rows], self.ran[rows] = block_size, emitted, step
        lens: list[int] = emitted.tolist()
        self.context_tokens += sum(lens)
        seen.context_tokens = self.context_tokens
        self._go_on()
        return lens

    def _cut(self, emitted: Ints, accepted: Ints, rows: Ints | None) -> Ints:
        places = slice(None) if rows is None else rows
        emitted = np.minimum(emitted, self.left[places])
        self.cut_rounds += int((accepted > emitted).sum())
        self.left[places] -= emitted
        return emitted

    def _go_on(self) -> None:
        """Put requests at the end of a recorded one, but not of their own output, at the start of the next one."""
        if not self.resized:
            return
        for place in np.flatnonzero(self.rounds.finished[self.at] & (self.left > 0)).tolist():
            row = self.going_on[self.ids[place]].pop()
            self.prompt_tokens[place] += self.seen.tokens[place]
            self.seen.request[place], self.at[place] = row, self.rounds.first[row]
            # nothing is known yet of the text that starts here, and all that came before is its prompt
            self.seen.tokens[place] = self.seen.block_size[place] = self.seen.accept_len[place] = 0
            self._figures[:, place] = NOTHING
            self.seams += 1

    @property
    def largest(self) -> Ints | None:
        """The largest block size for which each request has room; None when all fit."""
        if not self.resized:
            return None if self.rounds.largest is None else self.rounds.largest.take(self.at)
        cached = self.cached_each
        if not len(cached) or int(cached.max()) + self.rounds.block_sizes[-1] <= self.rounds.max_context:
            return None
        return largest_fitting(self.rounds.block_sizes, cached, self.rounds.max_context)

    @property
    def cached_each(self) -> Ints:
        """Cached tokens of each request."""
        cached: Ints = self.prompt_tokens + self.seen.tokens - 1
        return cached

    def cached(self, rows: Ints) -> int:
        """Cached tokens of some of the requests."""
        return int((self.prompt_tokens + self.seen.tokens)[rows].sum()) - len(rows)

    def leave(self) -> list[int]:
        """Let the finished requests go; gives their ids."""
        finished = (self.left == 0 if self.resized else self.rounds.finished.take(self.at)).tolist()
        if True not in finished:
            return []
        ended: NDArray[np.bool_] = np.array(finished)
        self.context_tokens -= self.cached(np.flatnonzero(ended))
        gone = [sent for sent, end in zip(self.ids, finished, strict=True) if end]
        self.ids = [sent for sent, end in zip(self.ids, finished, strict=True) if not end]
        self._bind(self._state[:, ~ended], self._figures[:, ~ended])
        return gone


def _look_up(tables: Mapping[int, NDArray[np.integer[Any]]], block_size: int | Ints, at: Ints) -> Ints:
    """Entries of the table of one block size, or of each row's own."""
    if isinstance(block_size, int):
        return tables[block_size].take(at).astype(np.int64, copy=False)
    found = np.zeros(len(at), np.int64)
    for size in set(block_size.tolist()):
        here = block_size == size
        found[here] = tables[size][at[here]]
    return found
