"""Named shapes with random weights: what a model of that size costs, on a machine that does not have its weights."""

import hashlib

import torch

from recguide.engine.adapters import projections
from recguide.engine.configs import parse_config
from recguide.engine.model import Decoder, LowRank, ModelConfig

INIT_STD = 0.02
DRAFT_RANK = 128
"""Of the released draft adapters."""


def _nld(name: str, hidden_size: int, num_layers: int, intermediate_size: int, rope_theta: float) -> ModelConfig:
    # the fields of the released config.json that say what is computed (paper, section 6.1: Ministral-3 backbones)
    rope = {
        "rope_type": "yarn",
        "rope_theta": rope_theta,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
    fields = {
        "model_type": "nemotron_labs_diffusion",
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": intermediate_size,
        "vocab_size": 131072,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "rope_parameters": rope,
        "eos_token_id": 11,
        "mask_token_id": 100,
    }
    return parse_config(name, fields, name)


SHAPES = {
    "nld-3b": _nld("nld-3b", 3072, 26, 9216, 1e6),
    "nld-8b": _nld("nld-8b", 4096, 34, 14336, 1e6),
    "nld-14b": _nld("nld-14b", 5120, 40, 16384, 1e9),
}


@torch.no_grad()
def random_decoder(config: ModelConfig, device: torch.device | str, dtype: torch.dtype, seed: int) -> Decoder:
    """A decoder of this shape whose matrices are drawn on ``device`` itself: normal of deviation 0.02; norms are 1."""
    decoder = Decoder(config, device, dtype).requires_grad_(False)
    generator = torch.Generator(decoder.device).manual_seed(seed)
    for parameter in decoder.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, INIT_STD, generator=generator)
    return decoder


@torch.no_grad()
def add_random_draft_adapter(decoder: Decoder, rank: int = DRAFT_RANK) -> None:
    """A random draft adapter of the size of the released ``linear_spec_lora``: rank 128 on every output projection."""
    for name, linear in projections(decoder):
        if name.endswith(".out"):
            outputs, inputs = linear.weight.shape
            a = torch.randn(rank, inputs, device=decoder.device, dtype=decoder.dtype) * INIT_STD
            b = torch.randn(outputs, rank, device=decoder.device, dtype=decoder.dtype) * INIT_STD
            linear.updates.append(LowRank(a, b, draft_only=True).requires_grad_(False))


def random_sha256(config: ModelConfig, seed: int) -> str:
    """The weights hash of a random model: of its shape and seed, since the drawn numbers mean nothing."""
    return hashlib.sha256(f"random weights, seed {seed}: {config}".encode()).hexdigest()
