"""A Nemotron-Labs-Diffusion checkpoint small enough to run everywhere, and the same weights in transformers."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Ministral3Config, Ministral3ForCausalLM

# original_max_position_embeddings is small, so that a short text meets YaRN's ramp and several query scales
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 2.0,
    "beta_slow": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
# every field that the released config.json has, with this shape's sizes
CONFIG = SHAPE | {
    "architectures": ["NemotronLabsDiffusionModel"],
    "model_type": "nemotron_labs_diffusion",
    "ar_loss_weight": 1.0,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_implementation": "sdpa",
    "auto_map": {"AutoModel": "modeling_nemotron_labs_diffusion.NemotronLabsDiffusionModel"},
    "block_size": 32,
    "bos_token_id": 1,
    "dlm_loss_weight": None,
    "dlm_paradigm": "bidirectional",
    "dp_varying_mask_ratio": False,
    "eos_token_id": 11,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "mask_token_id": 100,
    "mlp_bias": False,
    "pad_token_id": None,
    "rope_parameters": ROPE,
    "sliding_window": None,
    "torch_dtype": "float32",
    "use_cache": False,
}
HEADS = {
    "encoder.": "diffusion_head.weight",
    "model.": "lm_head.weight",
    "language_model.model.": "language_model.lm_head.weight",
    "language_model.": "diffusion_head.weight",
}
RANK, ALPHA = 4, 16


def reference(**fields: object) -> Ministral3ForCausalLM:
    """The backbone as transformers computes it, with weights large enough to matter."""
    torch.manual_seed(0)
    config = Ministral3Config(
        **SHAPE
        | {"rope_parameters": dict(ROPE), "eos_token_id": 11, "pad_token_id": None, "initializer_range": 0.2}
        | fields
    )
    return Ministral3ForCausalLM(config).eval()


def stored(model: Ministral3ForCausalLM, prefix: str = "encoder.") -> dict[str, torch.Tensor]:
    """Its tensors under the names of a checkpoint."""
    tensors = {key.replace("model.", prefix, 1): tensor.clone() for key, tensor in model.state_dict().items()}
    tensors[HEADS[prefix]] = tensors.pop("lm_head.weight")
    return tensors


def write(folder: Path, tensors: dict[str, torch.Tensor], **fields: object) -> Path:
    """A model directory of them."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | fields))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def lora(seed: int = 1, prefix: str = "encoder.") -> dict[str, torch.Tensor]:
    """An adapter's tensors by their released names."""
    generator = torch.Generator().manual_seed(seed)
    wide, hidden = SHAPE["num_attention_heads"] * SHAPE["head_dim"], SHAPE["hidden_size"]
    return {
        f"base_model.model.{prefix}layers.{i}.self_attn.o_proj.lora_{side}.weight": 0.1
        * torch.randn(shape, generator=generator)
        for i in range(SHAPE["num_hidden_layers"])
        for side, shape in (("A", (RANK, wide)), ("B", (hidden, RANK)))
    }


def write_lora(folder: Path, tensors: dict[str, torch.Tensor], **fields: object) -> Path:
    """A PEFT folder of them."""
    folder.mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(
        json.dumps(settings | {"bias": "none", "use_dora": False, "rank_pattern": {}, "modules_to_save": None} | fields)
    )
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
