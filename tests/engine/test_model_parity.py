"""Our decoder computes what transformers' LlamaForCausalLM computes."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from recguide.engine import smollm2
from recguide.engine.attention import causal_mask
from recguide.engine.model import Decoder, KVCache, ModelConfig

TINY = ModelConfig(
    name="tiny",
    hidden_size=48,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=80,
    vocab_size=97,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    max_context=128,
    mask_id=3,
    eos_ids=(2,),
)
SHAPES = {
    "three query heads a group": TINY,
    "heads wider than hidden / heads": replace(TINY, num_heads=4, num_kv_heads=4, head_dim=20),
    "one key-value head, tied": replace(TINY, num_heads=3, num_kv_heads=1, head_dim=16, tie_word_embeddings=True),
}


def reference_of(config: ModelConfig) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            rms_norm_eps=config.rms_norm_eps,
            tie_word_embeddings=config.tie_word_embeddings,
            max_position_embeddings=config.max_context,
        )
    ).eval()


def weights_of(reference: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    weights = {name.removeprefix("model."): tensor for name, tensor in reference.state_dict().items()}
    if reference.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    return weights


def our_logits(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
    n, t = ids.shape
    positions = torch.arange(t).expand(n, -1)
    with torch.no_grad():
        return decoder.logits(decoder.hidden(ids, positions, causal_mask(torch.zeros(n, dtype=torch.long), t, t)))


def reference_logits(reference: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return reference(input_ids=ids).logits


def decoder_of(config: ModelConfig, reference: LlamaForCausalLM) -> Decoder:
    decoder = Decoder(config, "cpu", torch.float32)
    decoder.load(weights_of(reference))
    return decoder


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES.keys())
def test_random_models_give_the_logits_of_transformers(config):
    reference = reference_of(config)
    ids = torch.randint(config.vocab_size, (3, 61))
    torch.testing.assert_close(
        our_logits(decoder_of(config, reference), ids), reference_logits(reference, ids), atol=1e-4, rtol=0
    )


def test_smollm2_gives_the_logits_of_transformers_on_the_same_weights(model, prompts):
    reader = smollm2.open_gguf(smollm2.fetch())
    reference = reference_of(model.config)
    weights = {f"model.{name}": tensor for name, tensor in smollm2.weights(reader).items()}
    reference.load_state_dict({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]})
    for prompt in prompts:
        ids = torch.tensor([prompt])
        torch.testing.assert_close(
            our_logits(model.decoder, ids), reference_logits(reference, ids), atol=1e-4, rtol=1e-5
        )


def test_smollm2_answers_a_simple_question(model, prompts):
    """The weights are in the right places, not only in the same places as the reference's."""
    ids = list(prompts[0])
    for _ in range(8):
        ids.append(int(our_logits(model.decoder, torch.tensor([ids]))[0, -1].argmax()))
    assert "The capital of France is Paris" in model.tokenizer.decode(ids)


def test_a_cache_filled_in_pieces_gives_the_logits_of_one_pass():
    reference = reference_of(TINY)
    decoder = decoder_of(TINY, reference)
    ids = torch.randint(TINY.vocab_size, (2, 40))
    cache = KVCache(TINY, 2, 64, "cpu", torch.float32)
    pieces = []
    with torch.no_grad():
        for first, last in ((0, 7), (7, 8), (8, 40)):
            slots = torch.arange(first, last).expand(2, -1)
            mask = causal_mask(torch.full((2,), first), last - first, last)
            pieces.append(decoder.logits(decoder.hidden(ids[:, first:last], slots, mask, cache, slots)))
    torch.testing.assert_close(torch.cat(pieces, 1), reference_logits(reference, ids), atol=1e-4, rtol=0)


def test_missing_and_left_over_weights_are_named():
    weights = weights_of(reference_of(TINY))
    weights["layers.9.mlp.up_proj.weight"] = weights.pop("norm.weight")
    with pytest.raises(ValueError, match=r"missing \['norm.weight'\], left over \['layers.9.mlp.up_proj.weight'\]"):
        Decoder(TINY, "cpu", torch.float32).load(weights)


def test_a_weight_of_the_wrong_shape_is_named():
    weights = weights_of(reference_of(TINY))
    weights["layers.1.mlp.down_proj.weight"] = torch.zeros(48, 79)
    with pytest.raises(ValueError, match=r"layers.1.mlp.down_proj.weight: shape \[48, 79\], expected \[48, 80\]"):
        Decoder(TINY, "cpu", torch.float32).load(weights)
