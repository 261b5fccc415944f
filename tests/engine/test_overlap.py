"""Predictive overlap with real drafts and verifies, a row a forward, against its replay from the recorded trace."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TINY, recorded, tiny_model
from torch import Tensor

from recguide.engine.model import Decoder
from recguide.sim.costs import linear_costs
from recguide.sim.overlap import Outcome, Overlap
from recguide.sim.replay import PREFILL_STEP, replay
from recguide.sim.rounds import rounds_of
from recguide.traces.dense import DenseTrace

COSTS = linear_costs(1e-3, 2e-5, 1e-7)
MAX_NEW = 20
tokens = st.integers(0, TINY.vocab_size - 1).filter(lambda token: token != TINY.mask_id)


@dataclass
class Drafted:
    block: list[int]
    scores: Tensor
    """[B-1, vocab] Behind the draft tokens that follow the seed."""


def scores_of(decoder: Decoder, causal: list[int], tail: list[int]) -> Tensor:
    """[tail, vocab] Scores of a forward whose tail sees all of itself, or without a tail [causal, vocab]."""
    ids = torch.tensor([causal + tail])
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    mask[len(causal) :] = True
    draft = torch.arange(ids.shape[1])[None, :, None] >= len(causal)
    positions = torch.arange(ids.shape[1])[None]
    hidden = decoder.hidden(ids, positions, mask[None, None], draft=draft)
    scores = decoder.logits(hidden)[0, len(causal) if tail else 0 :]
    scores[:, decoder.config.mask_id] = float("-inf")
    return scores


def seeded(decoder: Decoder, prefix: list[int], seed: int, size: int) -> Drafted:
    scores = scores_of(decoder, prefix, [seed] + [decoder.config.mask_id] * (size - 1))[1:]
    return Drafted([seed, *scores.argmax(-1).tolist()], scores)


def continued(decoder: Decoder, prefix: list[int], size: int) -> Drafted:
    scores = scores_of(decoder, prefix, [decoder.config.mask_id] * size)
    return Drafted(scores.argmax(-1).tolist(), scores[1:])


def risky_positions(drafted: Drafted, delta: float) -> list[int]:
    best = drafted.scores.softmax(-1).topk(2).values
    return [i + 1 for i, (p1, p2) in enumerate(best.tolist()) if int((p1 - p2) * 256) < 256 * delta]


def alternative(drafted: Drafted, position: int, barred: tuple[int, ...]) -> int:
    scores = drafted.scores[position - 1].clone()
    scores[[drafted.block[position], *barred]] = float("-inf")
    return int(scores.argmax())


def overlapped(decoder: Decoder, prompt: list[int], rules: Overlap) -> list[tuple[int, int]]:
    """Emitted tokens and outcome flags of every round behind the prefill."""
    size, room = rules.block_size, decoder.config.max_context
    out = [int(scores_of(decoder, prompt, [])[-1].argmax())]
    told: list[tuple[int, int]] = []
    held: Drafted | None = None
    while out[-1] not in decoder.config.eos_ids and len(out) < MAX_NEW:
        prefix = prompt + out[:-1]
        drafted = held or seeded(decoder, prefix, out[-1], size)
        flags = 0 if held else Outcome.DRAFTED.value
        assert drafted.block[0] == out[-1]
        risky = risky_positions(drafted, rules.delta) if held is None or rules.recursive else []
        barred = decoder.config.eos_ids if rules.eos == "barred" else ()
        prepared = {}
        for position in risky[: rules.corrections]:
            if len(out) + position < MAX_NEW and len(prefix) + position + size <= room:
                token = alternative(drafted, position, barred)
                trunk = prefix + drafted.block[:position]
                prepared[position] = (token, seeded(decoder, trunk, token, size))
        goes_on = None
        wanted = {"two-risky": len(risky) <= 2, "always": True, "never": False}[rules.continuation]
        wanted = wanted and (held is None or rules.recursive)
        if wanted and len(out) + size < MAX_NEW and len(prefix) + 2 * size <= room:
            goes_on = continued(decoder, prefix + drafted.block, size)

        verified = scores_of(decoder, prefix + drafted.block, [])[len(prefix) :].argmax(-1).tolist()
        matched = 0
        while matched < size - 1 and verified[matched] == drafted.block[matched + 1]:
            matched += 1
        accepted = verified[: matched + 1]
        ends = [i + 1 for i, token in enumerate(accepted) if token in decoder.config.eos_ids]
        emitted = accepted[: min([MAX_NEW - len(out), *ends])]
        cut = len(emitted) < len(accepted)
        out += emitted
        over = out[-1] in decoder.config.eos_ids or len(out) >= MAX_NEW

        held = None
        if not cut and len(accepted) in prepared:
            token, draft = prepared[len(accepted)]
            flags |= Outcome.CORRECTION_COVERED.value
            if token == accepted[-1] and not over:
                flags |= Outcome.CORRECTION_REUSED.value
                held = draft
        if not cut and len(accepted) == size and goes_on is not None:
            flags |= Outcome.CONTINUATION_COVERED.value
            if goes_on.block[0] == accepted[-1] and not over:
                flags |= Outcome.CONTINUATION_REUSED.value
                held = goes_on
        told.append((len(emitted), flags))
    return told


KNOWN = (
    Outcome.CORRECTION_COVERED.value
    | Outcome.CORRECTION_REUSED.value
    | Outcome.CONTINUATION_COVERED.value
    | Outcome.CONTINUATION_REUSED.value
    | Outcome.DRAFTED.value
)


def replayed(trace: DenseTrace, rules: Overlap, row: int) -> list[tuple[int, int]]:
    run = replay(rounds_of(trace, rules.keys), COSTS, rules, concurrency=1, order=[row])
    assert run.emission_outcome is not None
    mine = run.emission_block_size != PREFILL_STEP
    return list(zip(run.emission_tokens[mine].tolist(), (run.emission_outcome[mine] & KNOWN).tolist(), strict=True))


@pytest.mark.parametrize("size", [2, 4])
@settings(max_examples=4, deadline=None)
@given(
    seed=st.integers(0, 50),
    prompts=st.lists(st.lists(tokens, min_size=1, max_size=6), min_size=1, max_size=3),
    continuation=st.sampled_from(["two-risky", "always"]),
    eos=st.sampled_from(["allowed", "barred"]),
    recursive=st.booleans(),
)
@torch.inference_mode()
def test_replayed_overlap_is_what_a_model_does_round_by_round(
    size: int, seed: int, prompts: list[list[int]], continuation: str, eos: str, recursive: bool
) -> None:
    model = tiny_model(seed, 0)
    trace = recorded(model, prompts, (2, 4), MAX_NEW)
    rules = Overlap(size, 0.75, 2, continuation, eos, recursive)
    for request in trace.requests:
        row = int(request.request_id.split("/")[1])
        where = trace.requests.index(request)
        assert replayed(trace, rules, where) == overlapped(model.decoder, prompts[row], rules)
