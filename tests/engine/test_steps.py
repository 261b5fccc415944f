"""Steps of many requests give what plain decoding gives; what a model answers and asks itself becomes a corpus."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TINY, tiny_model

from recguide.engine import steps as steps_module
from recguide.engine.decode import autoregressive
from recguide.engine.distill import distil, invent_prompts, response_lengths
from recguide.engine.steps import StepDecoder, pad

tokens = st.integers(0, TINY.vocab_size - 1)
batches = st.lists(st.lists(tokens, min_size=1, max_size=9), min_size=1, max_size=4)


def on_device(*arrays):
    return (torch.from_numpy(array).long() for array in arrays)


def cut(row: list[int]) -> list[int]:
    """Tokens up to and with the first EOS."""
    return row[: next((at + 1 for at, token in enumerate(row) if token in TINY.eos_ids), len(row))]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 50), prompts=batches, num_tokens=st.integers(1, 40))
def test_steps_give_the_tokens_of_autoregressive_decoding(seed, prompts, num_tokens):
    decoder = tiny_model(seed, 0).decoder
    steps = StepDecoder(decoder, len(prompts), 9 + num_tokens)
    written = steps.run(*on_device(*pad(prompts, max(map(len, prompts)))), num_tokens).tolist()
    plain = autoregressive(decoder, prompts, num_tokens)
    assert [cut(row) for row in written] == [list(one.tokens) for one in plain]


def test_how_far_keys_are_read_does_not_matter(monkeypatch):
    decoder = tiny_model(3, 0).decoder
    inputs = list(on_device(*pad([[1, 5], [8], [4, 4, 6]], 4)))
    written = []
    for span_step in (256, 5):
        monkeypatch.setattr(steps_module, "SPAN_STEP", span_step)
        monkeypatch.setattr(steps_module, "PREFILL_ROWS", span_step)
        written.append(StepDecoder(decoder, 3, 34).run(*inputs, 30).tolist())
    assert written[0] == written[1]


def test_a_decoder_may_be_run_again():
    decoder = tiny_model(3, 0).decoder
    steps = StepDecoder(decoder, 2, 30)
    first, second = ([[1, 5], [8, 8]], [[6], [4, 4]])
    steps.run(*on_device(*pad(first, 2)), 20)
    again = steps.run(*on_device(*pad(second, 2)), 20).tolist()
    assert again == StepDecoder(decoder, 2, 30).run(*on_device(*pad(second, 2)), 20).tolist()


def test_sampled_tokens_vary_and_are_never_the_mask():
    decoder = tiny_model(0, 0).decoder
    torch.manual_seed(0)
    steps = StepDecoder(decoder, 64, 40, temperature=5.0)
    written = steps.run(*on_device(*pad([[1, 5]] * 64, 2)), 30)
    assert (written != TINY.mask_id).all()
    assert len(set(written[:, 0].tolist())) > 3


def test_a_corpus_holds_each_prompt_and_its_answer_up_to_its_end():
    decoder = tiny_model(1, 0).decoder
    prompts = [[1, 5], [8], [4, 4, 6], [9], [10, 11]]
    corpus = distil(StepDecoder(decoder, 2, 16), prompts, 4, 12, lambda done: True)
    assert corpus.tokens.shape == (5, 16)
    answers = autoregressive(decoder, prompts, 12)
    for row, prompt, answer in zip(range(5), prompts, answers, strict=True):
        assert corpus.prompt_lens[row] == len(prompt)
        assert corpus.response_lens[row] == len(answer.tokens)
        text = corpus.tokens[row, : len(prompt) + len(answer.tokens)].tolist()
        assert text == [*prompt, *answer.tokens]


def test_distilling_stops_between_batches_when_it_is_told_to():
    decoder = tiny_model(1, 0).decoder
    corpus = distil(StepDecoder(decoder, 2, 16), [[1], [2], [4], [5], [6]], 4, 12, lambda done: done < 4)
    assert len(corpus.tokens) == 4


def test_a_response_ends_with_its_first_end_token():
    rows = np.array([[5, 2, 5, 7], [5, 5, 5, 5], [7, 2, 2, 2]])
    assert response_lengths(rows, (2, 7)).tolist() == [2, 4, 1]


def test_invented_prompts_begin_with_an_opening_and_end_with_the_closing():
    decoder = tiny_model(2, 0).decoder
    decoder.config = replace(decoder.config, eos_ids=(2, 7, 4, 5))
    torch.manual_seed(0)
    steps = StepDecoder(decoder, 16, 60, temperature=3.0)
    openings = [[1, 8, 9, 10, 11, 1, 1, 1, 1, 6], [1, 8, 11, 6, 6, 6, 6, 6, 6, 6]]
    found = invent_prompts(steps, openings, 40, [9, 9], 12)
    assert len(found) == 12
    for prompt in found:
        assert prompt[:10] in openings
        assert prompt[-2:] == [9, 9]
        assert not {2, 7, 4, 5} & set(prompt[10:-2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_steps_replayed_from_graphs_give_the_tokens_of_autoregressive_decoding(model, prompts):
    decoder = copy.deepcopy(model.decoder).to("cuda")
    inputs = (array.cuda() for array in on_device(*pad(prompts, max(map(len, prompts)))))
    written = StepDecoder(decoder, len(prompts), 400).run(*inputs, 300).tolist()
    for row, one in zip(written, autoregressive(decoder, prompts, 300), strict=True):
        assert row[: len(one.tokens)] == list(one.tokens)
