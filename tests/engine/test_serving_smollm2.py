"""A real model with its adapter on the engine: the text of one-token decoding, in fewer forwards."""

import pytest
import torch

from recguide.engine.adapters import resolve_adapter
from recguide.engine.decode import autoregressive
from recguide.engine.loading import LoadedModel, adapted
from recguide.engine.requests import Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.sim.memory import Limits
from recguide.sim.overlap import Outcome, Overlap

MAX_NEW = 12


@pytest.fixture(scope="module")
def speculator(model: LoadedModel) -> LoadedModel:
    return adapted(model, resolve_adapter("smollm2-135m"))


@pytest.fixture(scope="module")
def wanted(speculator: LoadedModel, prompts: list[list[int]]) -> list[list[int]]:
    return [list(one.tokens) for one in autoregressive(speculator.decoder, prompts[2:], MAX_NEW)]


@torch.inference_mode()
def test_smollm2_with_its_adapter_answers_as_by_one_token_steps(speculator, prompts, wanted) -> None:
    limits = Limits(max_running=4, kv_pages=40)
    engine = Engine(speculator.decoder, Overlap(8), EngineConfig((4, 8), limits, max_context=256))
    assert engine.adapter.present
    lives = [engine.add(prompt, Wish(MAX_NEW)) for prompt in prompts[2:]]
    engine.drain()
    assert [live.tokens for live in lives] == wanted
    engine.check()
    run = engine.replay()
    rounds = run.emission_block_size > 1
    assert run.emission_tokens[rounds].mean() > 1.5
    reused = Outcome.CORRECTION_REUSED.value | Outcome.CONTINUATION_REUSED.value
    assert (run.emission_outcome & reused).any()
