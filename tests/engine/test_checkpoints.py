"""Hugging Face directories: what transformers saves loads here, and what does not fit is refused by file and field."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from recguide.engine.attention import causal_mask
from recguide.engine.checkpoints import read_config, read_weights, weights_sha256
from recguide.engine.loading import load_model, random_model
from recguide.engine.model import ModelConfig


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def reference(request):
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=64,
            vocab_size=99,
            rope_parameters={"rope_type": "default", "rope_theta": 5e3},
            max_position_embeddings=256,
            tie_word_embeddings=request.param,
            eos_token_id=[2, 7],
            mask_token_id=3,
        )
    ).eval()


@pytest.fixture
def folder(reference, tmp_path):
    reference.save_pretrained(tmp_path)
    return tmp_path


def edit(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_directory_gives_the_logits_of_the_model_that_was_saved(reference, folder):
    decoder = load_model(str(folder), "cpu", torch.float32).decoder
    ids = torch.randint(99, (1, 30))
    with torch.no_grad():
        ours = decoder.logits(decoder.hidden(ids, torch.arange(30)[None], causal_mask(torch.tensor([0]), 30, 30)))
        torch.testing.assert_close(ours, reference(input_ids=ids).logits, atol=1e-5, rtol=0)


def test_the_configuration_is_read_from_the_files(folder):
    config = read_config(folder)
    assert (config.num_layers, config.num_kv_heads, config.head_dim, config.max_context) == (2, 2, 16, 256)
    assert (config.rope_theta, config.mask_id, config.eos_ids, config.name) == (5e3, 3, (2, 7), folder.name)


def test_the_older_spelling_of_the_rotary_settings_is_read_too(folder):
    edit(folder, rope_parameters=None, rope_theta=7e3, rope_scaling=None)
    assert read_config(folder).rope_theta == 7e3


def test_shards_are_one_model_with_the_same_hash(reference, folder, tmp_path):
    reference.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    config = read_config(tmp_path / "shards")
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    assert weights_sha256(read_weights(tmp_path / "shards", config)) == weights_sha256(read_weights(folder, config))


def test_the_hash_tells_names_shapes_and_values_apart():
    ones = torch.ones(2, 3)
    changed = ones.clone()
    changed[1, 2] = 2
    variants = [{"a": ones}, {"b": ones}, {"a": ones.T.contiguous()}, {"a": changed}, {"a": ones.to(torch.bfloat16)}]
    assert len({weights_sha256(weights) for weights in variants}) == len(variants)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters: .*'yarn' are not supported"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling: .*'linear' are not supported"),
        ({"model_type": "gpt2"}, "model_type: 'gpt2'; allowed: llama, mistral"),
        ({"mask_token_id": None}, "mask_token_id: None; expected a whole number"),
        ({"attention_bias": True}, "attention_bias: True is not supported"),
        ({"sliding_window": 4096}, "sliding_window: 4096 is not supported"),
        ({"hidden_size": 0}, "hidden_size: 0; expected"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: nan; expected a positive number"),
    ],
)
def test_what_this_decoder_does_not_compute_is_refused_by_field(folder, fields, message):
    edit(folder, **fields)
    with pytest.raises(ValueError, match=rf"config\.json: {message}"):
        read_config(folder)


def test_a_left_over_weight_is_named(folder):
    edit(folder, num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"left over \['layers\.1\.input_layernorm\.weight'"):
        load_model(str(folder), "cpu", torch.float32)


def test_a_truncated_weight_file_is_named(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a readable safetensors file"):
        load_model(str(folder), "cpu", torch.float32)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="no such directory, and not one of the known names: smollm2-135m, nld-3b"):
        load_model("smollm3", "cpu", torch.float32)


def test_a_random_model_is_a_function_of_its_seed():
    config = ModelConfig("r", 32, 1, 4, 2, 8, 48, 64, 1e4, 1e-5, False, 64, 3, (2,))
    first, again, other = (random_model(config, "cpu", torch.float32, seed) for seed in (0, 0, 1))
    assert torch.equal(first.decoder.embed_tokens, again.decoder.embed_tokens)
    assert first.weights_sha256 == again.weights_sha256 != other.weights_sha256
    assert not torch.equal(first.decoder.embed_tokens, other.decoder.embed_tokens)
