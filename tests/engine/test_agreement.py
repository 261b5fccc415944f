"""The quick measurement of drafts agrees with the recorder, bit by bit, and its means with served rounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import TINY, recorded, tiny_model

from recguide.engine.agreement import base_agreement, mean_accept, measure
from recguide.engine.distill import Corpus
from recguide.traces.dense import unpack_bits

PROMPTS = [[1, 5], [8], [4, 4, 6, 9], [10, 11, 0]]
BLOCK = 4


def corpus_of(trace) -> Corpus:
    """The recorded requests as a corpus, and each response with room behind it."""
    width = max(request.prompt_tokens + request.output_tokens for request in trace.requests) + BLOCK
    tokens = np.zeros((len(trace.requests), width), np.int32)
    for row, request in zip(tokens, trace.requests, strict=True):
        text = [*request.prompt_ids, *request.output_ids]
        row[: len(text)] = text
    lens = [
        np.array([getattr(request, name) for request in trace.requests], np.int32)
        for name in ("prompt_tokens", "output_tokens")
    ]
    return Corpus(tokens, *lens)


@pytest.mark.parametrize("draft_shift", [0, 1])
@pytest.mark.parametrize(("rows", "slots"), [(32, 512), (3, 8)])
def test_acceptance_at_every_position_is_the_recorded_one(draft_shift, rows, slots):
    model = tiny_model(5, draft_shift)
    trace = recorded(model, PROMPTS, (BLOCK,), 20)
    corpus = corpus_of(trace)
    agreement = measure(model.decoder, corpus, BLOCK, rows, slots)
    offsets = []
    for row, request in enumerate(trace.requests):
        bits = unpack_bits(request.drafts["seeded", BLOCK].match, BLOCK - 1)
        size = request.output_tokens
        # a draft token behind the end counts as wrong here; the recorder knows what would have come
        inside = np.arange(size)[:, None] + np.arange(BLOCK - 1) < size
        expected = (bits & inside).cumprod(1).sum(1) + 1
        assert agreement.accept[row, :size].tolist() == expected.tolist()
        offsets.append(bits[: max(0, size - BLOCK + 1)])
    np.testing.assert_allclose(agreement.offsets, np.concatenate(offsets).mean(0))


def test_the_mean_is_over_the_rounds_of_each_group():
    model = tiny_model(5, 0)
    corpus = corpus_of(recorded(model, PROMPTS, (BLOCK,), 20))
    agreement = measure(model.decoder, corpus, BLOCK)
    means = mean_accept(agreement, corpus, np.array(["a", "b", "a", "b"]))
    for name, rows in (("a", (0, 2)), ("b", (1, 3))):
        rounds = []
        for row in rows:
            at = 1
            while at < corpus.response_lens[row]:
                rounds.append(min(agreement.accept[row, at], corpus.response_lens[row] - at))
                at += rounds[-1]
        assert means[name] == pytest.approx(np.mean(rounds))


def test_a_model_agrees_with_itself_and_less_with_another():
    model = tiny_model(5, 0)
    corpus = corpus_of(recorded(model, PROMPTS, (BLOCK,), 20))
    assert base_agreement(model.decoder, corpus, rows=3) == 1.0
    assert base_agreement(tiny_model(6, 0).decoder, corpus) < 0.9


def test_the_mask_is_never_the_models_choice():
    decoder = tiny_model(5, 0).decoder
    decoder.config = replace(TINY, mask_id=int(corpus_of(recorded(tiny_model(5, 0), PROMPTS, (4,), 20)).tokens[0, 2]))
    corpus = Corpus(np.full((1, 9), decoder.config.mask_id, np.int32), np.array([2]), np.array([6]))
    assert base_agreement(decoder, corpus) == 0.0
    assert (measure(decoder, corpus, 4).accept == 1).all()
    assert torch.isfinite(decoder.embed_tokens).all()
