import pytest
import torch

from recguide.engine import smollm2
from recguide.engine.loading import LoadedModel, load_model

PROMPTS = (
    "What is the capital of France?",
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did "
    "Natalia sell altogether in April and May?",
    "Write a Python function that returns the largest of three numbers.",
    "Count from one to twenty in words.",
)


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    """SmolLM2-135M-Instruct in fp32 on the CPU; fetched into the user's cache when it is not there yet."""
    return load_model(smollm2.NAME, "cpu", torch.float32)


@pytest.fixture(scope="session")
def prompts(model: LoadedModel) -> list[list[int]]:
    assert model.tokenizer is not None
    return [model.tokenizer.encode_chat(text) for text in PROMPTS]
