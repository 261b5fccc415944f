"""Self-speculation gives the autoregressive output, token for token, whatever the drafts are worth."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.engine.adapters import projections
from recguide.engine.decode import BLOCK_SIZES, autoregressive, linear_self_speculation
from recguide.engine.model import Decoder, LowRank, ModelConfig
from recguide.engine.shapes import random_decoder
from recguide.sim.rounds import AR

TINY = ModelConfig("tiny", 24, 2, 6, 2, 8, 40, 12, 1e4, 1e-5, False, 96, 3, (2, 7))


def random_draft_adapter(decoder: Decoder, scale: float) -> Decoder:
    """A copy of a decoder with a random low-rank update on draft tokens: its drafts change, its own tokens do not."""
    adapted = copy.deepcopy(decoder)
    torch.manual_seed(0)
    for _, linear in projections(adapted):
        rows, columns = linear.weight.shape
        linear.updates.append(LowRank(torch.randn(4, columns) * scale, torch.randn(rows, 4) * scale, draft_only=True))
    return adapted.requires_grad_(False)


def tiny_decoder(seed: int, draft_shift: int = 0) -> Decoder:
    """A decoder of random weights large enough that its tokens depend on the whole context."""
    decoder = random_decoder(replace(TINY, draft_shift=draft_shift), "cpu", torch.float32, seed)
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            parameter.mul_(15)
    return decoder


@pytest.fixture(scope="module")
def adapted(model):
    return random_draft_adapter(model.decoder, 0.1)


@pytest.fixture(scope="module")
def answers(model, prompts):
    return autoregressive(model.decoder, prompts, 12)


tokens = st.integers(0, TINY.vocab_size - 1)
batches = st.lists(st.lists(tokens, min_size=1, max_size=12), min_size=1, max_size=4)


@pytest.mark.parametrize("draft_shift", [0, 1])
@pytest.mark.parametrize("block_size", [2, 4, 8, 16, 32])
def test_self_speculation_with_smollm2_gives_the_autoregressive_tokens(
    model, prompts, answers, block_size, draft_shift, monkeypatch
):
    monkeypatch.setattr(model.decoder, "config", replace(model.config, draft_shift=draft_shift))
    spoken = linear_self_speculation(model.decoder, prompts, block_size, 12)
    assert [(one.tokens, one.finish_reason) for one in spoken] == [(one.tokens, one.finish_reason) for one in answers]


def test_a_draft_adapter_changes_the_rounds_and_not_the_tokens(model, adapted, prompts, answers, monkeypatch):
    for decoder in (model.decoder, adapted):
        monkeypatch.setattr(decoder, "config", replace(model.config, draft_shift=1))
    plain, changed = (linear_self_speculation(decoder, prompts, 8, 12) for decoder in (model.decoder, adapted))
    assert [one.tokens for one in plain] == [one.tokens for one in changed] == [one.tokens for one in answers]
    assert [one.rounds for one in plain] != [one.rounds for one in changed]


def test_an_answer_ends_with_its_eos_token(model, answers):
    paris = answers[0]
    assert paris.finish_reason == "eos"
    assert paris.tokens[-1] in model.config.eos_ids
    assert model.tokenizer.decode(paris.tokens) == "The capital of France is Paris."


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 50),
    draft_shift=st.sampled_from([0, 1]),
    block_size=st.sampled_from([2, 4, 8, 16, 32]),
    prompts=batches,
    max_new_tokens=st.integers(1, 40),
)
def test_self_speculation_of_random_models_gives_the_autoregressive_tokens(
    seed, draft_shift, block_size, prompts, max_new_tokens
):
    decoder = tiny_decoder(seed, draft_shift)
    plain = autoregressive(decoder, prompts, max_new_tokens)
    spoken = linear_self_speculation(decoder, prompts, block_size, max_new_tokens)
    assert [(one.tokens, one.finish_reason) for one in spoken] == [(one.tokens, one.finish_reason) for one in plain]
    for one in spoken:
        # the prefill emits the first token, the rounds all others
        assert sum(each.emitted for each in one.rounds) == len(one.tokens) - 1
        assert all(1 <= each.emitted <= each.accept_len <= each.block_size == block_size for each in one.rounds)
        assert all(each.emitted == each.accept_len for each in one.rounds[:-1])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 50), prompts=batches, max_new_tokens=st.integers(1, 40))
def test_output_stops_at_the_first_eos_or_the_limit_and_never_holds_the_mask(seed, prompts, max_new_tokens):
    for one in linear_self_speculation(tiny_decoder(seed), prompts, 8, max_new_tokens):
        assert TINY.mask_id not in one.tokens
        assert not set(one.tokens[:-1]) & set(TINY.eos_ids)
        if one.finish_reason == "eos":
            assert one.tokens[-1] in TINY.eos_ids
        else:
            assert len(one.tokens) == max_new_tokens
            assert one.tokens[-1] not in TINY.eos_ids


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 50), prompts=batches, cut=st.integers(1, 30))
def test_a_lower_output_limit_gives_a_prefix(seed, prompts, cut):
    decoder = tiny_decoder(seed)
    short, long = (linear_self_speculation(decoder, prompts, 16, limit) for limit in (cut, 30))
    assert [one.tokens for one in short] == [one.tokens[:cut] for one in long]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 50), draft_shift=st.sampled_from([0, 1]), prompts=batches)
def test_batch_mates_do_not_matter(seed, draft_shift, prompts):
    decoder = tiny_decoder(seed, draft_shift)
    together = linear_self_speculation(decoder, prompts, 8, 24)
    assert together == [linear_self_speculation(decoder, [prompt], 8, 24)[0] for prompt in prompts]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 50),
    prompts=batches,
    block_size=st.sampled_from([2, 8, 32]),
    room=st.integers(1, 40),
)
def test_rounds_at_the_context_limit_take_the_largest_block_that_fits(seed, prompts, block_size, room):
    decoder = tiny_decoder(seed)
    limit = max(map(len, prompts)) + room
    spoken = linear_self_speculation(decoder, prompts, block_size, 60, max_context=limit)
    plain = autoregressive(decoder, prompts, 60, max_context=limit)
    assert [(one.tokens, one.finish_reason) for one in spoken] == [(one.tokens, one.finish_reason) for one in plain]
    grid = [size for size in (*BLOCK_SIZES, block_size) if size <= block_size]
    for prompt, one in zip(prompts, spoken, strict=True):
        assert len(one.tokens) <= limit - len(prompt)
        cached = len(prompt)
        for each in one.rounds:
            assert each.block_size == max([size for size in grid if cached + size <= limit], default=AR)
            cached += each.emitted


def test_one_token_of_output_needs_no_round(model, prompts):
    for one in linear_self_speculation(model.decoder, prompts[:2], 8, 1):
        assert one.rounds == ()
        assert len(one.tokens) == 1


def test_no_prompts_give_no_output():
    assert autoregressive(tiny_decoder(0), [], 5) == []


@pytest.mark.parametrize(
    ("prompts", "max_new_tokens", "message"),
    [
        ([[1], []], 5, "prompt 1: 0 tokens; allowed: 1 to 95"),
        ([[1] * 96], 5, "prompt 0: 96 tokens; allowed: 1 to 95"),
        ([[1]], 0, "max_new_tokens is 0"),
    ],
)
def test_prompts_and_limits_that_cannot_be_decoded_are_refused(prompts, max_new_tokens, message):
    with pytest.raises(ValueError, match=message):
        autoregressive(tiny_decoder(0), prompts, max_new_tokens)


def test_a_block_without_a_draft_is_refused():
    with pytest.raises(ValueError, match="block size 1: a block has at least 2 tokens"):
        linear_self_speculation(tiny_decoder(0), [[1]], 1, 5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_self_speculation_on_the_gpu_gives_the_autoregressive_tokens(model, prompts):
    decoder = copy.deepcopy(model.decoder).to("cuda")
    plain = autoregressive(decoder, prompts, 64)
    for block_size in BLOCK_SIZES:
        spoken = linear_self_speculation(decoder, prompts, block_size, 64)
        assert [one.tokens for one in spoken] == [one.tokens for one in plain]
