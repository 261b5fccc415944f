"""Hugging Face directories: what transformers saves loads here, and what does not fit is refused by file and field."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from recguide.engine.attention import causal_mask
from recguide.engine.checkpoints import read_weights, weights_sha256
from recguide.engine.configs import read_config
from recguide.engine.loading import load_model, random_model
from recguide.engine.model import ModelConfig
from recguide.engine.rotary import Llama3


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
    shards, whole = (read_weights(path, config).tensors for path in (tmp_path / "shards", folder))
    assert weights_sha256(shards) == weights_sha256(whole)


def test_the_hash_tells_names_shapes_and_values_apart():
    ones = torch.ones(2, 3)
    changed = ones.clone()
    changed[1, 2] = 2
    variants = [{"a": ones}, {"b": ones}, {"a": ones.T.contiguous()}, {"a": changed}, {"a": ones.to(torch.bfloat16)}]
    assert len({weights_sha256(weights) for weights in variants}) == len(variants)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"rope_parameters": {"rope_theta": 9.0, "type": "dynamic"}},
            "rope_parameters.type: 'dynamic'; expected one of",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling: .*; expected the same as rope_parameters"),
        ({"rope_parameters": [1]}, r"rope_parameters: \[1\]; expected an object"),
        ({"model_type": "gpt2"}, "model_type: 'gpt2'; expected one of llama, mistral, ministral3"),
        ({"model_type": "mistral3", "text_config": {"model_type": "mistral4"}}, "text_config.model_type: 'mistral4'"),
        ({"model_type": "mistral3", "text_config": 4}, "text_config: 4; expected an object"),
        ({"mask_token_id": None}, "mask_token_id: None; expected a token that text never holds"),
        ({"mask_token_id": 99}, "mask_token_id: 99; expected a token below vocab_size, 99"),
        ({"mask_token_id": -1}, "mask_token_id: -1; expected a whole number"),
        ({"attention_bias": True}, "attention_bias: True; expected one of"),
        ({"sliding_window": 4096}, "sliding_window: 4096; expected one of"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5; expected one of"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: .*; expected one of"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'; expected one of"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: 'no'; expected true or false"),
        ({"hidden_size": 0}, "hidden_size: 0; expected"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000; expected .* at most 1000"),
        ({"hidden_size": True}, "hidden_size: True; expected"),
        ({"head_dim": 15}, "head_dim: 15; expected an even number"),
        ({"head_dim": 2**30}, "head_dim: 1073741824; expected an even number up to 1024"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3; expected a divisor of num_attention_heads, 4"),
        ({"dlm_type": ["x"]}, "dlm_type: .*; expected one of"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: nan; expected a positive number"),
    ],
)
def test_what_this_decoder_does_not_compute_is_refused_by_field(folder, fields, message):
    edit(folder, **fields)
    with pytest.raises(ValueError, match=rf"config\.json: {message}"):
        read_config(folder)


def test_a_left_over_weight_is_named(folder):
    edit(folder, num_hidden_layers=1)
    with pytest.raises(
        ValueError, match=r"left over \['.*model\.safetensors: model\.layers\.1\.input_layernorm\.weight'"
    ):
        load_model(str(folder), "cpu", torch.float32)


def test_a_truncated_weight_file_is_named(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a readable safetensors file"):
        load_model(str(folder), "cpu", torch.float32)


def sharded(reference, folder):
    """The same model in several files; the path of the index, and its content."""
    (folder / "model.safetensors").unlink()
    reference.save_pretrained(folder, max_shard_size="20KB")
    path = folder / "model.safetensors.index.json"
    return path, json.loads(path.read_text())


def test_a_shard_that_is_not_there_is_named(reference, folder):
    _, index = sharded(reference, folder)
    name = index["weight_map"]["model.norm.weight"]
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"{name}: not a readable safetensors file"):
        load_model(str(folder), "cpu", torch.float32)


def test_a_key_that_its_shard_lacks_is_named(reference, folder):
    _, index = sharded(reference, folder)
    name = index["weight_map"]["model.norm.weight"]
    tensors = {key: tensor.clone() for key, tensor in load_file(folder / name).items() if key != "model.norm.weight"}
    save_file(tensors, folder / "less.safetensors")
    (folder / "less.safetensors").replace(folder / name)
    with pytest.raises(ValueError, match=rf"{name}: model\.norm\.weight: not there, but the index says so"):
        load_model(str(folder), "cpu", torch.float32)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "", 7, None])
def test_an_index_that_leads_out_of_the_directory_is_refused(reference, folder, name):
    path, index = sharded(reference, folder)
    index["weight_map"]["model.norm.weight"] = name
    path.write_text(json.dumps(index))
    with pytest.raises(
        ValueError, match=r"index\.json: weight_map\.model\.norm\.weight: .*; expected the name of a safe"
    ):
        load_model(str(folder), "cpu", torch.float32)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": [1]}', "[]", "{"])
def test_an_index_of_another_form_is_refused(reference, folder, content):
    path, _ = sharded(reference, folder)
    path.write_text(content)
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json: "):
        load_model(str(folder), "cpu", torch.float32)


def test_llama_3_checkpoints_give_the_logits_of_transformers(tmp_path):
    torch.manual_seed(0)
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5e3,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    theirs = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            vocab_size=99,
            rope_parameters=dict(rope),
            initializer_range=0.3,
            max_position_embeddings=256,
            eos_token_id=2,
            mask_token_id=3,
        )
    ).eval()
    theirs.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), "cpu", torch.float32)
    assert loaded.config.rope_scaling == Llama3(8.0, 32, 1.0, 4.0)
    ids = torch.randint(99, (1, 90))
    with torch.no_grad():
        hidden = loaded.decoder.hidden(ids, torch.arange(90)[None], causal_mask(torch.tensor([0]), 90, 90))
        torch.testing.assert_close(loaded.decoder.logits(hidden), theirs(input_ids=ids).logits, atol=1e-4, rtol=0)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The local cache of huggingface_hub, empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_an_id_is_read_from_the_local_cache_and_is_the_models_name(reference, cache, folder):
    snapshot, refs = (cache / "models--someone--tiny" / part for part in ("snapshots", "refs"))
    refs.mkdir(parents=True)
    reference.save_pretrained(snapshot / "abc123")
    (refs / "main").write_text("abc123")
    loaded, same = (load_model(name, "cpu", torch.float32) for name in ("someone/tiny", str(folder)))
    assert (loaded.config.name, loaded.weights_sha256) == ("someone/tiny", same.weights_sha256)


@pytest.mark.parametrize("name", ["nvidia/Nemotron-Labs-Diffusion-8B", "not/there", "some..one/x--y"])
def test_an_id_that_is_not_cached_exits_2_and_names_the_directory_form(recguide, cache, tmp_path, name):
    done = recguide("profile", name, "--output", str(tmp_path / "x.csv"), "--device", "cpu")
    assert (done.code, done.stdout) == (2, "")
    assert f"error: model '{name}': no such directory, and not in the local Hugging Face cache" in done.stderr
    assert "name a directory that holds its config.json" in done.stderr


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="no such directory, and not one of the known names: smollm2-135m, nld-3b"):
        load_model("smollm3", "cpu", torch.float32)


def test_a_random_model_is_a_function_of_its_seed():
    config = ModelConfig("r", 32, 1, 4, 2, 8, 48, 64, 1e4, 1e-5, False, 64, 3, (2,))
    first, again, other = (random_model(config, "cpu", torch.float32, seed) for seed in (0, 0, 1))
    assert torch.equal(first.decoder.embed_tokens, again.decoder.embed_tokens)
    assert first.weights_sha256 == again.weights_sha256 != other.weights_sha256
    assert not torch.equal(first.decoder.embed_tokens, other.decoder.embed_tokens)
