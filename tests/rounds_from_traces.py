"""Statistics that a model would have to give for its rounds to be those of a dense trace, forward after forward."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from recguide.kernels import round_state as rs
from recguide.kernels.accept import start
from recguide.kernels.logit_statistics import LogitStatistics
from recguide.sim.overlap import Overlap
from recguide.traces.dense import DenseRequest, DenseTrace

EOS, WRONG, OTHER, MASK, BEHIND = range(5)
CHAIN = 1000
"""The first token of every chain; the others count up."""


def limited(trace: DenseTrace, room: int) -> DenseTrace:
    """The trace with an output limit that its longest request meets, and a context its requests just fit into."""
    longest = max(request.output_tokens for request in trace.requests)
    context = max(request.prompt_tokens + request.output_tokens for request in trace.requests) + room
    return replace(trace, provenance=replace(trace.provenance, max_output_tokens=longest, max_context=context))


def scrambled(trace: DenseTrace, seed: int) -> DenseTrace:
    """The trace with random outcomes, so that whatever may happen in a round does."""
    rng = np.random.default_rng(seed)
    ease = rng.uniform(0.5, 1)
    for request in trace.requests:
        for drafts in request.drafts.values():
            shape = drafts.margin.shape
            weights = np.uint32(1) << np.arange(shape[1], dtype=np.uint32)
            bits = [rng.random(shape) < share for share in (ease, 0.6, 0.9)]
            match, second = bits[0], bits[1] & ~bits[0]
            for mask, found in zip(
                (drafts.match, drafts.second, drafts.second_no_eos), (match, second, second & bits[2]), strict=True
            ):
                mask[:] = (found * weights).sum(1)
            drafts.margin[:] = rng.integers(0, 256, shape)
    return trace


def sure_continuations(trace: DenseTrace) -> DenseTrace:
    """The trace of a shifted draft, whose continuation begins with the verifier's own token."""
    for request in trace.requests:
        for (view, _), drafts in request.drafts.items():
            if view == "continuation":
                drafts.match[:] |= np.uint32(1)
    return trace


def round_rules(trace: DenseTrace, rules: Overlap, shift: int, lockstep: bool) -> rs.RoundRules:
    smaller = tuple(size for size in trace.provenance.block_sizes if size < rules.block_size)
    return rs.RoundRules(
        rules.block_size,
        MASK,
        trace.provenance.max_context,
        smaller,
        rules.corrections,
        rules.continuation,
        int(rules.delta * 256),
        rules.eos == "barred",
        rules.recursive,
        shift,
        lockstep,
    )


@dataclass
class Player:
    """All requests of a trace at once, each from behind its first token."""

    trace: DenseTrace
    rules: rs.RoundRules

    def __post_init__(self) -> None:
        count = len(self.trace.requests)
        self.requests = rs.make_requests(count, self.rules, 256, 128, "cpu")
        self.forward = rs.make_forward(count, self.rules, "cpu")
        lens = torch.tensor([request.prompt_tokens for request in self.trace.requests])
        tokens = torch.tensor([self.token(request, 0) for request in self.trace.requests])
        limits = torch.full_like(lens, self.trace.provenance.max_output_tokens)
        eos, sizes = rs.eos_tensor((EOS,), "cpu"), rs.sizes_tensor(self.rules, "cpu")
        start(self.requests, self.forward, lens, limits, tokens, eos, sizes, self.rules)

    def token(self, request: DenseRequest, at: int) -> int:
        """The chain's token; every chain ends with EOS, but the one that meets the limit."""
        if at >= request.output_tokens:
            return BEHIND
        meets_limit = request.finish_reason == "length" and (
            request.output_tokens == self.trace.provenance.max_output_tokens
        )
        return EOS if at == request.output_tokens - 1 and not meets_limit else CHAIN + at

    def statistics(self) -> LogitStatistics:
        """What the forward that was asked for gives."""
        shape = self.forward.ids.shape
        ids = torch.full((3, *shape), WRONG)
        numbers = torch.ones(3, *shape)
        for row, request in enumerate(self.trace.requests):
            self._answer(row, request, ids[:, row], numbers[:, row])
        return LogitStatistics(*ids.flatten(1), *numbers.flatten(1))

    def _answer(self, row: int, request: DenseRequest, ids: Tensor, numbers: Tensor) -> None:
        state, size = self.requests.state[row].tolist(), self.rules.block_size
        position = state[rs.WRITTEN]
        if state[rs.PHASE] == rs.DRAFT and state[rs.BLOCK] > 1:
            self._draft(request, "seeded", state[rs.BLOCK], position, 0, ids, numbers)
        if state[rs.PHASE] != rs.VERIFY:
            return
        draft = self.requests.draft[row].tolist()
        for i in range(state[rs.BLOCK]):
            ids[0, i] = self.token(request, position + i)
            if i + 1 < state[rs.BLOCK] and draft[i + 1] != ids[0, i]:
                break
        corrections = [place for place in state[rs.PLACES :] if place > 0]
        for n, place in enumerate(corrections):
            self._draft(request, "seeded", size, position + place, (n + 1) * size, ids, numbers)
        if state[rs.GOES_ON]:
            start = (len(corrections) + 1) * size
            self._draft(request, "continuation", size, position + size - 1, start, ids, numbers)

    def _draft(
        self, request: DenseRequest, view: str, size: int, position: int, start: int, ids: Tensor, numbers: Tensor
    ) -> None:
        """Draft tokens into the row that begins at ``start``; a continuation's token 0 belongs to its first mask."""
        if position >= request.output_tokens:
            return
        drafts, first = request.drafts[view, size], int(view == "seeded")
        for i, level in enumerate(drafts.margin[position].tolist()):
            at = start + i + first - self.rules.draft_shift
            if at < start:
                continue
            masks = (drafts.match, drafts.second, drafts.second_no_eos)
            for column, (mask, wrong) in enumerate(zip(masks, (WRONG, OTHER, OTHER), strict=True)):
                right = int(mask[position]) >> i & 1
                ids[column, at] = self.token(request, position + i) if right else wrong
            numbers[1, at] = level / 256
