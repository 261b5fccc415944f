"""A model written as a Hugging Face directory is read as the same model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from running import Recguide
from tiny import TINY

from recguide.engine.configs import read_config
from recguide.engine.export import export, export_shape
from recguide.engine.loading import LoadedModel, load_model
from recguide.engine.rotary import Llama3, QueryScaling, Yarn
from recguide.engine.shapes import SHAPES, random_decoder
from recguide.engine.smollm2 import NAME
from recguide.traces.errors import InputError


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"rope_scaling": Llama3(8.0, 32, 1.0, 4.0), "draft_shift": 1},
        {"rope_scaling": Yarn(4.0, 16, attention_factor=1.2, truncate=False)},
        {"rope_scaling": Yarn(4.0, 16), "query_scaling": QueryScaling(0.1, 16)},
        {"tie_word_embeddings": True},
    ],
)
def test_a_directory_says_what_the_model_was(tmp_path: Path, changed: dict[str, object]) -> None:
    config = replace(TINY, **changed)  # type: ignore[arg-type]
    decoder = random_decoder(config, "cpu", torch.float32, 0)
    export(LoadedModel(decoder, None, "", None), tmp_path / "model")
    found = load_model(str(tmp_path / "model"), "cpu", torch.float32)
    assert replace(found.config, name=config.name) == config
    assert all(torch.equal(a, b) for a, b in zip(found.decoder.parameters(), decoder.parameters(), strict=True))


def test_a_shape_has_no_weights_and_a_draft_adapter_to_be_drawn(tmp_path: Path) -> None:
    export_shape(SHAPES["nld-8b"], tmp_path / "nld-8b")
    assert read_config(tmp_path / "nld-8b") == SHAPES["nld-8b"]
    assert json.loads((tmp_path / "nld-8b/linear_spec_lora/adapter_config.json").read_text())["r"] == 128
    assert not list(tmp_path.rglob("*.safetensors"))


def test_another_model_is_not_written_over(tmp_path: Path) -> None:
    export_shape(SHAPES["nld-3b"], tmp_path)
    with pytest.raises(InputError, match=r"config\.json: there already"):
        export_shape(SHAPES["nld-8b"], tmp_path)


def test_smollm2_keeps_its_weights_and_its_words(
    tmp_path: Path, recguide: Recguide, model: LoadedModel, prompts: list[list[int]]
) -> None:
    done = recguide("export", NAME, str(tmp_path / "smollm2"))
    assert json.loads(done.stdout)["weights_sha256"] == model.weights_sha256
    found = load_model(str(tmp_path / "smollm2"), "cpu", torch.float32)
    assert found.weights_sha256 == model.weights_sha256
    assert found.tokenizer is not None
    assert model.tokenizer is not None
    text = "What is the capital of France?"
    assert found.tokenizer.encode_chat(text) == prompts[0] == model.tokenizer.encode_chat(text)
