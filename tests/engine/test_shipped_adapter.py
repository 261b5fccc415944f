"""The adapter in the repository turns SmolLM2 into a self-speculator, and its output stays that of plain decoding."""

import pytest
import torch

from recguide.engine.adapters import SHIPPED, read_info, resolve_adapter
from recguide.engine.decode import autoregressive, linear_self_speculation
from recguide.engine.loading import adapted

NEW_TOKENS = 24


@pytest.fixture(scope="module")
def speculator(model):
    return adapted(model, resolve_adapter("smollm2-135m")).decoder


@pytest.fixture(scope="module")
def plain(speculator, prompts):
    return autoregressive(speculator, prompts[1:3], NEW_TOKENS)


@pytest.mark.parametrize("block_size", [4, 16])
def test_its_self_speculation_gives_the_autoregressive_tokens_in_fewer_forwards(speculator, prompts, plain, block_size):
    spoken = linear_self_speculation(speculator, prompts[1:3], block_size, NEW_TOKENS)
    assert [one.tokens for one in spoken] == [one.tokens for one in plain]
    accepted = [each.accept_len for one in spoken for each in one.rounds]
    # without an adapter drafts are hardly ever right: a round gives little more than its own token
    assert sum(accepted) / len(accepted) > 2


def test_it_says_what_it_is_and_what_it_fits(model):
    info = read_info(SHIPPED / "smollm2-135m.safetensors")
    assert (info.base_model, info.base_weights_sha256) == ("smollm2-135m", model.weights_sha256)
    assert (info.draft_shift, info.shared_rank, info.draft_rank) == (0, 72, 96)
    assert info.training["response_tokens"] == 8_336_834


def test_it_is_small_enough_for_the_repository():
    assert (SHIPPED / "smollm2-135m.safetensors").stat().st_size <= 45e6


def test_it_keeps_the_mask_out_of_what_it_says(model, plain):
    for one in plain:
        assert model.config.mask_id not in one.tokens
        assert torch.tensor(one.tokens).max() < model.config.vocab_size
