"""The running requests of a replay: where each stands in its recorded answer, and what policies may see of it."""

import numpy as np
from numpy.typing import NDArray

from recguide.sim.policies import Outcomes
from recguide.sim.rounds import Ints, Rounds


class Running:
    """Requests between prefill and their last token, one column of ``state`` each."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.ids: list[int] = []
        """Sent requests, in the order of the columns."""
        self.context_tokens = 0
        """Cached tokens of all of them: everything but the last token of each."""
        self._bind(np.zeros((7, 0), np.int64))

    def _bind(self, state: Ints) -> None:
        self._state = state
        request, tokens, self.at, block_size, accept_len, self.prompt_tokens, self.ran = state
        self._progress = state[1:3]
        self.seen = Outcomes(request, tokens, block_size, accept_len, self.context_tokens)

    def join(self, ids: list[int], requests: Ints, step: int) -> None:
        """Take in freshly prefilled requests, which have their first token."""
        prompt_tokens = self.rounds.prompt_tokens[requests]
        position = self.rounds.first[requests] + 1
        joined = np.stack(np.broadcast_arrays(requests, 1, position, 0, 0, prompt_tokens, step))
        self.ids += ids
        self.context_tokens += int(prompt_tokens.sum())
        self._bind(np.concatenate([self._state, joined], axis=1))

    def advance(self, block_size: int, rows: Ints | None, step: int) -> list[int]:
        """Play one round of all requests, or of those in ``rows``; gives the tokens that each emitted."""
        table, seen = self.rounds.emitted[block_size], self.seen
        if rows is None:
            emitted = table.take(self.at)
            self._progress += emitted
            seen.block_size.fill(block_size)
            seen.accept_len[:] = emitted
            self.ran.fill(step)
        else:
            emitted = table.take(self.at.take(rows))
            self._progress[:, rows] += emitted
            seen.block_size[rows], seen.accept_len[rows], self.ran[rows] = block_size, emitted, step
        lens: list[int] = emitted.tolist()
        self.context_tokens += sum(lens)
        seen.context_tokens = self.context_tokens
        return lens

    def cached(self, rows: Ints) -> int:
        """Cached tokens of some of the requests."""
        return int((self.prompt_tokens + self.seen.tokens)[rows].sum()) - len(rows)

    def leave(self) -> list[int]:
        """Let the finished requests go; gives their ids."""
        finished = self.rounds.finished.take(self.at).tolist()
        if True not in finished:
            return []
        ended: NDArray[np.bool_] = np.array(finished)
        self.context_tokens -= self.cached(np.flatnonzero(ended))
        gone = [sent for sent, end in zip(self.ids, finished, strict=True) if end]
        self.ids = [sent for sent, end in zip(self.ids, finished, strict=True) if not end]
        self._bind(np.compress(~ended, self._state, axis=1))
        return gone
