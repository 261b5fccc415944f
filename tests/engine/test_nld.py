"""Nemotron-Labs-Diffusion: verifying, drafting and the released adapter, against transformers' own backbone."""

import json
import logging

import nld
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F  # noqa: N812
from transformers import Ministral3Config, Mistral3Config, Mistral3ForConditionalGeneration, PixtralVisionConfig

from recguide.engine.adapters import draft_only_decoder
from recguide.engine.attention import causal_mask, draft_mask
from recguide.engine.checkpoints import read_weights, weights_sha256
from recguide.engine.configs import read_config
from recguide.engine.decode import linear_self_speculation
from recguide.engine.loading import adapter_ranks, find_adapter, load_model
from recguide.engine.lora import lora_sha256
from recguide.engine.model import KVCache
from recguide.traces.files import read_trace

MASK = nld.CONFIG["mask_token_id"]
PREFIX, BLOCK = 37, 9
DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "empty": lambda path: path.write_bytes(b""),
    "not safetensors": lambda path: path.write_bytes(b"\x00" * 64),
    "not there": lambda path: path.unlink(),
}


def load(folder, adapter=None, dtype=torch.float32):
    return load_model(str(folder), "cpu", dtype, adapter)


@pytest.fixture(scope="module")
def reference():
    return nld.reference()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    """A directory as released, with the adapter inside."""
    folder = nld.write(tmp_path_factory.mktemp("nld") / "Nemotron-Tiny", nld.stored(reference))
    nld.write_lora(folder / "linear_spec_lora", nld.lora())
    return folder


@pytest.fixture
def copied(reference, tmp_path):
    """A directory to be damaged."""
    nld.write(tmp_path / "model", nld.stored(reference))
    nld.write_lora(tmp_path / "model" / "linear_spec_lora", nld.lora())
    return tmp_path / "model"


def draft_ids() -> torch.Tensor:
    """A prefix, and behind it a seed and masks."""
    ids = torch.randint(100, (2, PREFIX + BLOCK), generator=torch.Generator().manual_seed(5))
    ids[:, PREFIX + 1 :] = MASK
    return ids


def block_mask() -> torch.Tensor:
    """Causal over the prefix; a block that sees the prefix and all of itself."""
    total = PREFIX + BLOCK
    mask = torch.ones(total, total, dtype=torch.bool).tril()
    mask[PREFIX:] = True
    return mask[None, None].expand(2, 1, -1, -1)


@torch.no_grad()
def their_logits(model, ids, mask, positions=None):
    bias = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    return model(input_ids=ids, attention_mask=bias, position_ids=positions).logits


@torch.no_grad()
def our_logits(decoder, ids, mask, draft=False, positions=None):
    positions = torch.arange(ids.shape[1]).expand(len(ids), -1) if positions is None else positions
    return decoder.logits(decoder.hidden(ids, positions, mask, draft=draft))


def test_verifying_gives_the_logits_of_transformers_across_query_scales(reference, folder):
    ids = torch.randint(128, (2, 64))
    ours = our_logits(load(folder).decoder, ids, causal_mask(torch.zeros(2, dtype=torch.long), 64, 64))
    with torch.no_grad():
        torch.testing.assert_close(ours, reference(input_ids=ids).logits, atol=1e-4, rtol=0)


def test_positions_far_away_give_the_logits_of_transformers(reference, folder):
    ids, positions = torch.randint(128, (1, 12)), torch.arange(5000, 5012)[None]
    mask = torch.ones(12, 12, dtype=torch.bool).tril()[None, None]
    ours = our_logits(load(folder).decoder, ids, mask, positions=positions)
    torch.testing.assert_close(ours, their_logits(reference, ids, mask, positions), atol=1e-4, rtol=0)


def test_drafting_gives_the_logits_of_transformers_under_the_same_mask(reference, folder):
    ours = our_logits(load(folder).decoder, draft_ids(), block_mask())
    torch.testing.assert_close(ours, their_logits(reference, draft_ids(), block_mask()), atol=1e-4, rtol=0)


def test_yarn_and_query_scaling_both_matter_to_these_logits(folder, tmp_path):
    """Otherwise the tests above would pass without them."""
    plain = our_logits(load(folder).decoder, draft_ids(), block_mask())
    for change in ({"llama_4_scaling_beta": 0}, {"factor": 1.0}, {"beta_slow": 1.0}, {"attention_factor": 1.2}):
        rope = nld.ROPE | change
        changed = nld.write(tmp_path / "changed", load_file(folder / "model.safetensors"), rope_parameters=rope)
        assert (our_logits(load(changed).decoder, draft_ids(), block_mask()) - plain).abs().max() > 1e-2, change


def with_lora(model, tensors, tokens):
    """Hooks that add ``alpha / r`` times the update to the output projections of the tokens from a place on."""

    def hook(index):
        a, b = (
            tensors[f"base_model.model.encoder.layers.{index}.self_attn.o_proj.lora_{side}.weight"] for side in "AB"
        )

        def add(_, inputs, output):
            added = nld.ALPHA / nld.RANK * F.linear(F.linear(inputs[0], a), b)
            added[:, :tokens] = 0
            return output + added

        return add

    return [layer.self_attn.o_proj.register_forward_hook(hook(i)) for i, layer in enumerate(model.model.layers)]


@pytest.mark.parametrize("draft", [PREFIX, "mask", "cached"])
def test_the_adapter_acts_on_draft_tokens_alone_with_its_scale(reference, folder, draft):
    decoder = load(folder, find_adapter("linear_spec_lora", str(folder))).decoder
    ids, routed = draft_ids(), (torch.arange(PREFIX + BLOCK) >= PREFIX)[None, :, None]
    hooks = with_lora(reference, nld.lora(), PREFIX)
    theirs = their_logits(reference, ids, block_mask())
    for hook in hooks:
        hook.remove()
    if draft == "cached":
        ours, start = drafted_over_a_cache(decoder, ids), PREFIX
    else:
        ours, start = our_logits(decoder, ids, block_mask(), routed if draft == "mask" else draft), 0
    torch.testing.assert_close(ours, theirs[:, start:], atol=1e-4, rtol=0)
    plain = their_logits(reference, ids, block_mask())
    assert (plain[:, PREFIX:] - theirs[:, PREFIX:]).abs().max() > 0.1


@torch.no_grad()
def drafted_over_a_cache(decoder, ids):
    """As it is served: the prefix is verified into the cache, and the block drafted behind it."""
    cache, zeros = KVCache(decoder.config, 2, 64, "cpu", torch.float32), torch.zeros(2, dtype=torch.long)
    slots = torch.arange(PREFIX + BLOCK).expand(2, -1)
    before, behind = slots[:, :PREFIX], slots[:, PREFIX:]
    decoder.hidden(ids[:, :PREFIX], before, causal_mask(zeros, PREFIX, PREFIX), cache, before)
    mask = draft_mask(zeros + PREFIX, BLOCK, PREFIX + BLOCK)
    return decoder.logits(decoder.hidden(ids[:, PREFIX:], behind, mask, cache, behind, True))


def test_verifying_with_the_adapter_loaded_is_verifying_without_it(folder):
    ids, mask = torch.randint(100, (1, 30)), causal_mask(torch.tensor([0]), 30, 30)
    adapted = load(folder, folder / "linear_spec_lora").decoder
    assert torch.equal(our_logits(adapted, ids, mask), our_logits(load(folder).decoder, ids, mask))


def test_an_adapter_in_fp32_over_weights_in_bf16_is_added_before_rounding(folder):
    """As PEFT does: the update is computed in fp32 from the rounded input, and the sum is rounded once."""
    decoder = load(folder, folder / "linear_spec_lora", torch.bfloat16).decoder
    out, update = decoder.layers[0].out, decoder.layers[0].out.updates[0]
    assert (out.weight.dtype, update.a.dtype) == (torch.bfloat16, torch.float32)
    x = torch.randn(1, 5, 64).bfloat16()
    tensors = nld.lora()
    a, b = (tensors[f"base_model.model.encoder.layers.0.self_attn.o_proj.lora_{side}.weight"] for side in "AB")
    delta = nld.ALPHA / nld.RANK * F.linear(F.linear(x.float(), a), b)
    expected = (F.linear(x, out.weight).float() + delta).bfloat16()
    for draft in (True, 0, torch.ones(1, 5, 1, dtype=torch.bool)):
        assert torch.equal(out(x, draft), expected)
    assert torch.equal(out(x, False), F.linear(x, out.weight))


def test_a_model_with_its_adapter_speculates_and_says_what_acts(folder):
    adapter = find_adapter("linear_spec_lora", str(folder))
    loaded = load(folder, adapter)
    assert adapter_ranks(adapter) == (0, nld.RANK)
    assert loaded.adapter_sha256 is not None
    assert (loaded.config.mask_id, loaded.config.draft_shift, loaded.config.eos_ids) == (100, 0, (11,))
    plain, spoken = (
        linear_self_speculation(load(folder, path).decoder, [[1, 2, 3]], 4, 30) for path in (None, adapter)
    )
    assert plain[0].tokens == spoken[0].tokens
    merged = draft_only_decoder(loaded.decoder)
    drafts = [our_logits(decoder, draft_ids(), block_mask(), True) for decoder in (loaded.decoder, merged)]
    torch.testing.assert_close(*drafts, atol=1e-4, rtol=0)


@pytest.mark.parametrize("prefix", nld.HEADS)
def test_the_same_weights_under_every_prefix_are_the_same_model(reference, folder, tmp_path, prefix):
    other = nld.write(tmp_path / "other", nld.stored(reference, prefix))
    tensors = {**load_file(other / "model.safetensors")}
    # what real checkpoints carry beside: recomputed buffers
    tensors[f"{prefix}layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, other / "model.safetensors")
    loaded = load(other)
    assert loaded.weights_sha256 == load(folder).weights_sha256
    ids, mask = torch.randint(100, (1, 20)), causal_mask(torch.tensor([0]), 20, 20)
    assert torch.equal(our_logits(loaded.decoder, ids, mask), our_logits(load(folder).decoder, ids, mask))
    nld.write_lora(other / "linear_spec_lora", nld.lora(prefix=prefix))
    drafts = [our_logits(load(at, at / "linear_spec_lora").decoder, ids, mask, True) for at in (other, folder)]
    assert torch.equal(*drafts)


@pytest.mark.parametrize("tied", [False, True])
def test_a_ministral_3_checkpoint_without_vision_is_read_as_transformers_saves_it(tmp_path, tied):
    theirs = nld.reference(tie_word_embeddings=tied, mask_token_id=100)
    theirs.save_pretrained(tmp_path)
    ids, mask = torch.randint(100, (1, 40)), causal_mask(torch.tensor([0]), 40, 40)
    loaded = load(tmp_path)
    assert loaded.config.tie_word_embeddings == tied
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits
    torch.testing.assert_close(our_logits(loaded.decoder, ids, mask), expected, atol=1e-4, rtol=0)


def test_a_ministral_3_checkpoint_with_vision_is_read_for_its_language_model(tmp_path, caplog):
    torch.manual_seed(0)
    text = Ministral3Config(**nld.SHAPE, rope_parameters=dict(nld.ROPE), eos_token_id=11, pad_token_id=None)
    vision = PixtralVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    theirs = Mistral3ForConditionalGeneration(
        Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=False)
    ).eval()
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"mask_token_id": 100}))
    with caplog.at_level(logging.WARNING):
        decoder = load(tmp_path).decoder
    assert "tensors of vision parts or KV scales not used" in caplog.text
    ids = torch.randint(100, (1, 40))
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits
    torch.testing.assert_close(
        our_logits(decoder, ids, causal_mask(torch.tensor([0]), 40, 40)), expected, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("prefix", nld.HEADS)
def test_a_missing_and_a_left_over_weight_are_named_as_they_are_stored(reference, tmp_path, prefix):
    tensors = nld.stored(reference, prefix)
    tensors[f"{prefix}layers.1.mlp.up_proj.bias"] = tensors.pop(f"{prefix}layers.1.mlp.up_proj.weight")[:, 0].clone()
    del tensors[nld.HEADS[prefix]]
    with pytest.raises(ValueError, match="weights: missing") as caught:
        load(nld.write(tmp_path / "model", tensors))
    missing, left = str(caught.value).split("left over")
    assert f"{prefix}layers.1.mlp.up_proj.weight" in missing
    assert f"{tmp_path / 'model'}: {nld.HEADS[prefix]}" in missing
    assert f"model.safetensors: {prefix}layers.1.mlp.up_proj.bias" in left


def test_a_weight_of_another_prefix_fills_no_gap(reference, tmp_path):
    tensors = nld.stored(reference)
    tensors["norm.weight"] = tensors.pop("encoder.norm.weight")
    with pytest.raises(ValueError, match=r"missing \['.*: encoder.norm.weight'\], left over \['.*: norm.weight'\]"):
        load(nld.write(tmp_path / "model", tensors))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({"lm_head.weight": t["diffusion_head.weight"].clone()}), "a second lm_head.weight"),
        (
            lambda t: t.pop("encoder.embed_tokens.weight"),
            r"\[\] are there; expected one of encoder.embed_tokens.weight",
        ),
        (
            lambda t: t.update({"model.embed_tokens.weight": t["encoder.embed_tokens.weight"].clone()}),
            r"\['encoder.embed_tokens.weight', 'model.embed_tokens.weight'\] are there; expected one of",
        ),
        (
            lambda t: t.update({"encoder.norm.weight": torch.ones(32, dtype=torch.int8)}),
            r"model\.safetensors: encoder\.norm\.weight: found torch\.int8; allowed: torch\.float32",
        ),
        (
            lambda t: t.update({"encoder.layers.1.self_attn.k_proj.weight": torch.zeros(32, 31)}),
            r"model\.safetensors: encoder\.layers\.1\.self_attn\.k_proj\.weight: shape \[32, 31\], expected \[32, 32\]",
        ),
        (
            lambda t: t["encoder.layers.0.mlp.gate_proj.weight"].view(-1)[7:8].fill_(float("nan")),
            r"model\.safetensors: encoder\.layers\.0\.mlp\.gate_proj\.weight: holds NaN or infinity",
        ),
        (
            lambda t: t["diffusion_head.weight"].view(-1)[-1:].fill_(float("-inf")),
            r"model\.safetensors: diffusion_head\.weight: holds NaN or infinity",
        ),
    ],
)
def test_a_checkpoint_that_cannot_be_right_is_refused_by_file_and_key(reference, tmp_path, change, message):
    tensors = nld.stored(reference)
    change(tensors)
    with pytest.raises(ValueError, match=message):
        load(nld.write(tmp_path / "model", tensors))


@pytest.mark.parametrize("field", ["hidden_size", "intermediate_size", "vocab_size", "num_key_value_heads"])
def test_a_size_that_does_not_fit_is_told_before_memory_is_taken_for_it(reference, tmp_path, field):
    sizes = {field: 2**30, "num_attention_heads": 2**30 if field == "num_key_value_heads" else 4}
    with pytest.raises(ValueError, match=r"model\.safetensors: .*: shape \[.*\], expected \[.*\d{9}"):
        load(nld.write(tmp_path / "model", nld.stored(reference), **sizes))


def test_a_weight_too_large_for_the_dtype_is_refused(reference, tmp_path):
    tensors = nld.stored(reference)
    tensors["encoder.norm.weight"][3] = 1e6
    folder = nld.write(tmp_path / "model", tensors)
    load(folder)
    with pytest.raises(ValueError, match=r"encoder\.norm\.weight: holds NaN or infinity, .* torch\.float16"):
        load(folder, dtype=torch.float16)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("file", ["model.safetensors", "linear_spec_lora/adapter_model.safetensors"])
def test_a_damaged_file_is_named(copied, file, damage):
    damage(copied / file)
    with pytest.raises(ValueError, match=file.replace(".", r"\.")):
        load(copied, copied / "linear_spec_lora")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, key: t.pop(key), r"missing \['base_model\.model\.encoder\.layers\.1.*lora_B\.weight'\] \(1\)"),
        (
            lambda t, key: t.update({key.replace("1", "2"): t[key]}),
            r"left over \['.*layers\.2.*lora_B\.weight'\] \(1\)",
        ),
        (lambda t, key: t.update({key.replace("o_proj", "q_proj"): t[key]}), r"left over \['.*q_proj.*\] \(1\)"),
        (lambda t, key: t.update({key: torch.zeros(32, 5)}), r"lora_B\.weight: shape \[32, 5\], expected \[32, 4\]"),
        (lambda t, key: t.update({key: t[key] * float("nan")}), r"layers\.1.*lora_B\.weight: holds NaN or infinity"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_by_key(copied, change, message):
    tensors = nld.lora()
    change(tensors, "base_model.model.encoder.layers.1.self_attn.o_proj.lora_B.weight")
    save_file({key: tensor.clone() for key, tensor in tensors.items()}, copied / "other.safetensors")
    (copied / "other.safetensors").replace(copied / "linear_spec_lora" / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=rf"adapter_model\.safetensors: .*{message}"):
        load(copied, copied / "linear_spec_lora")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"r": 0}, "r: 0; expected a whole number"),
        ({"lora_alpha": None}, "lora_alpha: None; expected a positive number"),
        ({"target_modules": ["q_proj", "o_proj"]}, r"target_modules: \['q_proj', 'o_proj'\]; expected one of"),
        ({"use_dora": True}, "use_dora: True; expected one of"),
        ({"use_rslora": True}, "use_rslora: True; expected one of"),
        ({"rank_pattern": {"o_proj": 8}}, "rank_pattern: .*; expected one of"),
    ],
)
def test_settings_of_an_adapter_that_ask_for_something_else_are_refused_by_field(copied, fields, message):
    nld.write_lora(copied / "linear_spec_lora", nld.lora(), **fields)
    with pytest.raises(ValueError, match=rf"adapter_config\.json: {message}"):
        load(copied, copied / "linear_spec_lora")


def test_a_dream_style_checkpoint_drafts_shifted(copied, reference):
    nld.write(copied, nld.stored(reference), dlm_type="dream")
    assert read_config(copied).draft_shift == 1


def test_the_hash_is_of_the_weights_not_of_their_names(reference, folder):
    named = {key.removeprefix("model."): tensor for key, tensor in reference.state_dict().items()}
    assert weights_sha256(read_weights(folder, read_config(folder)).tensors) == weights_sha256(named)


def test_recording_takes_the_adapter_by_its_name_and_says_which_it_was(model, recguide, tmp_path):
    """The whole way in, with a real tokenizer: its vocabulary makes the model larger."""
    sized = {"vocab_size": model.config.vocab_size, "max_position_embeddings": 512}
    folder = nld.write(tmp_path / "model", nld.stored(nld.reference(**sized)), **sized)
    nld.write_lora(folder / "linear_spec_lora", nld.lora())
    (folder / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    (tmp_path / "prompts.jsonl").write_text('{"id": "p/1", "dataset": "p", "category": "qa", "prompt": "How are you?"}')
    named = ("--adapter", "linear_spec_lora", "--dataset-path", tmp_path / "prompts.jsonl", "--block-sizes", "4")
    done = recguide("record", folder, *named, "--max-output-tokens", "9", "--output", tmp_path / "x.parquet")
    assert done.code == 0, done.stderr
    provenance = read_trace(tmp_path / "x.parquet").provenance
    assert provenance.adapter_sha256 == lora_sha256(folder / "linear_spec_lora")
    # the prompts are read by the base model, and so are the chains: the adapter acts on drafts alone
    assert provenance.base_agreement == 1.0


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(model, copied):
    (copied / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    with pytest.raises(ValueError, match=r"model: tokenizer\.json has 49152 tokens, config\.json 128"):
        load(copied)
