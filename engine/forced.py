"""Acceptance forced from a trace: forwards run for real at their real shapes, and the trace says what they accept.

For models whose weights are random: what a GPU needs for a step does not depend on the weights, what is accepted does.
Tokens that the trace does not name are made up; a match is a match, whatever the token.
"""

import numpy as np

from recguide.engine.forwards import Scores
from recguide.engine.model import ModelConfig
from recguide.engine.requests import Live, Wish
from recguide.engine.serving import Engine
from recguide.sim.rounds import Ints
from recguide.traces.dense import DenseRequest, DenseTrace, unpack_bits
from recguide.traces.errors import InputError


class Forced:
    """A judge that plays the requests of a trace."""

    def __init__(self, trace: DenseTrace, config: ModelConfig, seed: int = 0) -> None:
        self.trace, self.config, self.seed = trace, config, seed
        special = {config.mask_id, *config.eos_ids}
        usable = [token for token in range(min(config.vocab_size, 64 + len(special))) if token not in special]
        if len(usable) < 3:
            raise InputError(f"vocabulary of {config.vocab_size}: allowed: at least 3 tokens that are no EOS or MASK")
        self.usable = np.array(usable, np.int64)
        self._chains: dict[int, Ints] = {}

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

    def chain(self, row: int) -> Ints:
        """The recorded output, or one of its length, and a block of tokens behind it."""
        if row not in self._chains:
            request = self.trace.requests[row]
            self._chains[row] = self._chain(request, row)
        return self._chains[row]

    def _chain(self, request: DenseRequest, row: int) -> Ints:
        behind = 2 * max(self.trace.provenance.block_sizes)
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

    def drafted(self, live: Live, view: str, position: int, found: Scores) -> Scores:
        """The recorded draft in the place of the found one."""
        size, request = len(found.first), self.trace.requests[live.row]
        drafts = request.drafts[view, size]
        first = 0 if view == "continuation" else 1
        count = size - first
        truth = self.chain(live.row)[position : position + count]
        made = Scores(*(column.copy() for column in found))  # type: ignore[arg-type]
        inside = position < request.output_tokens
        row = min(position, request.output_tokens - 1)
        wrong, other = self._wrong(truth)
        hit, second, no_eos = (
            unpack_bits(masks[row : row + 1], count)[0] & inside
            for masks in (drafts.match, drafts.second, drafts.second_no_eos)
        )
        made.first[first:] = np.where(hit, truth, wrong)
        made.second[first:] = np.where(second, truth, np.where(hit, wrong, other))
        made.second_no_eos[first:] = np.where(no_eos, truth, np.where(hit, wrong, other))
        made.margin[first:] = drafts.margin[row]
        if drafts.p1 is not None:
            made.p1[first:] = drafts.p1[row]
        return made

    def _wrong(self, truth: Ints) -> tuple[Ints, Ints]:
        """Two different tokens in the place of each that are not the right one."""
        a, b, c = self.usable[:3]
        return np.where(truth == a, b, a), np.where((truth == a) | (truth == b), c, b)

    def verified(self, live: Live, position: int, found: Scores) -> Scores:
        """The recorded output, and how uncertain the verifier was of it."""
        count, request = len(found.first), self.trace.requests[live.row]
        entropy = np.zeros(count, np.float32)
        known = request.entropy[position : position + count]
        entropy[: len(known)] = known
        tokens = self.chain(live.row)[position : position + count]
        return found._replace(first=tokens.copy(), entropy=entropy)
