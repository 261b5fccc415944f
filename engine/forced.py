"""Acceptance forced from a trace: forwards run for real at their real shapes, and the trace says what they accept.

For models whose weights are random: what a GPU needs for a step does not depend on the weights, what is accepted does.
Tokens that the trace does not name are made up; a match is a match, whatever the token.
"""

from collections.abc import Sequence

import numpy as np

from recguide.engine.model import ModelConfig
from recguide.engine.requests import Live, Wish
from recguide.engine.scores import Scores
from recguide.engine.serving import Engine
from recguide.sim.drafts import flat_drafts, with_ends
from recguide.sim.rounds import Ints
from recguide.traces.dense import DenseRequest, DenseTrace, unpack_bits
from recguide.traces.errors import InputError


class Forced:
    """A judge that plays the requests of a trace."""

    foretells = True

    def __init__(self, trace: DenseTrace, config: ModelConfig, seed: int = 0) -> None:
        self.trace, self.config, self.seed = trace, config, seed
        special = {config.mask_id, *config.eos_ids}
        usable = [token for token in range(min(config.vocab_size, 64 + len(special))) if token not in special]
        if len(usable) < 3:
            raise InputError(f"vocabulary of {config.vocab_size}: allowed: at least 3 tokens that are no EOS or MASK")
        self.usable = np.array(usable, np.int64)
        self._outputs = np.array([request.output_tokens for request in trace.requests])
        # behind every recorded position there is one of zeros: nothing matches there
        self._first = np.cumsum(self._outputs + 1) - self._outputs - 1
        self._drafts = flat_drafts(trace, trace.requests[0].drafts)
        self._entropy = with_ends([request.entropy for request in trace.requests])
        chains = [self._chain(request, row) for row, request in enumerate(trace.requests)]
        ends = np.cumsum([len(chain) for chain in chains])
        self._starts, self._chains = ends - [len(chain) for chain in chains], np.concatenate(chains)

    @property
    def label(self) -> str:
        """What results have to say."""
        return f"acceptance forced from a trace of {self.trace.provenance.model}"

    def send(self, engine: Engine, row: int, arrival_s: float | None = None) -> Live:
        """Let an engine serve a recorded request, which ends where the recorded one did."""
        request = self.trace.requests[row]
        wish = Wish(self.trace.provenance.max_output_tokens)
        live = engine.add(self.prompt(row), wish, row, arrival_s)
        live.tokens_left = request.output_tokens
        return live

    def prompt(self, row: int) -> list[int]:
        """The recorded prompt, or one of its length."""
        request = self.trace.requests[row]
        if request.prompt_ids is not None and int(request.prompt_ids.max()) < self.config.vocab_size:
            return [int(token) for token in request.prompt_ids]
        return [int(token) for token in self._random(row, 1, request.prompt_tokens)]

    def _chain(self, request: DenseRequest, row: int) -> Ints:
        """The recorded output, or one of its length, and blocks of tokens behind it."""
        # a draft may begin where the block before it ended, and that one at the last token
        behind = 3 * max(self.trace.provenance.block_sizes)
        chain = self._random(row, 2, request.output_tokens + behind)
        ids = request.output_ids
        if ids is not None and int(ids.max()) < self.config.vocab_size:
            chain[: len(ids)] = ids
        if request.finish_reason == "eos":
            chain[request.output_tokens - 1] = self.config.eos_ids[0]
        return chain

    def _random(self, row: int, kind: int, count: int) -> Ints:
        rng = np.random.default_rng((self.seed, row, kind))
        drawn: Ints = self.usable[rng.integers(0, len(self.usable), count)]
        return drawn

    def drafted(self, lives: Sequence[Live], view: str, positions: Ints, size: int, found: Scores) -> Scores:
        """The recorded drafts in the place of the found ones."""
        drafts = self._drafts[view, size]
        first = 0 if view == "continuation" else 1
        count = size - first
        rows = np.array([live.row for live in lives])
        truth = self._truth(rows, positions, count)
        at = self._first[rows] + np.minimum(positions, self._outputs[rows])
        wrong, other = self._wrong(truth)
        hit, second, no_eos = (
            unpack_bits(masks[at], count) for masks in (drafts.match, drafts.second, drafts.second_no_eos)
        )
        made = found.copy()
        spare = np.where(hit, wrong, other)
        made.first.reshape(-1, size)[:, first:] = np.where(hit, truth, wrong)
        made.second.reshape(-1, size)[:, first:] = np.where(second, truth, spare)
        made.second_no_eos.reshape(-1, size)[:, first:] = np.where(no_eos, truth, spare)
        made.margin.reshape(-1, size)[:, first:] = drafts.margin[at]
        if drafts.p1 is not None:
            made.p1.reshape(-1, size)[:, first:] = drafts.p1[at]
        return made

    def _truth(self, rows: Ints, positions: Ints, count: int) -> Ints:
        """[requests, count] What comes from these positions on."""
        tokens: Ints = self._chains[(self._starts[rows] + positions)[:, None] + np.arange(count)]
        return tokens

    def _wrong(self, truth: Ints) -> tuple[Ints, Ints]:
        """Two different tokens in the place of each that are not the right one."""
        a, b, c = self.usable[:3]
        return np.where(truth == a, b, a), np.where((truth == a) | (truth == b), c, b)

    def verified(self, lives: Sequence[Live], positions: Ints, size: int, found: Scores) -> Scores:
        """The recorded output, and how uncertain the verifier was of it."""
        rows = np.array([live.row for live in lives])
        at = self._first[rows][:, None] + np.minimum(positions[:, None] + np.arange(size), self._outputs[rows][:, None])
        return found._replace(first=self._truth(rows, positions, size).ravel(), entropy=self._entropy[at].ravel())
