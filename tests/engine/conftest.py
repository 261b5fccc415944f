import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from recguide.engine import smollm2
from recguide.engine.loading import LoadedModel, load_model

PROMPTS = (
    "What is the capital of France?",
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did "
    "Natalia sell altogether in April and May?",
    "Write a Python function that returns the largest of three numbers.",
    "Count from one to twenty in words.",
)


@pytest.fixture
def one_thread():
    """Tensors of tiny models are not worth sharing out: waiting for other threads takes most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    """SmolLM2-135M-Instruct in fp32 on the CPU; fetched into the user's cache when it is not there yet."""
    return load_model(smollm2.NAME, "cpu", torch.float32)


@pytest.fixture(scope="session")
def prompts(model: LoadedModel) -> list[list[int]]:
    assert model.tokenizer is not None
    return [model.tokenizer.encode_chat(text) for text in PROMPTS]


@pytest.fixture(scope="session")
def tiny_folder(model, tmp_path_factory):
    """A model directory: random weights, real tokenizer."""
    path = tmp_path_factory.mktemp("model") / "tiny-llama"
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=24,
            vocab_size=49152,
            initializer_range=0.5,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            eos_token_id=2,
            mask_token_id=3,
        )
    ).save_pretrained(path)
    (path / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": model.tokenizer.chat_template}))
    return path
