"""A model as a Hugging Face directory, for engines that read nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from recguide.engine.loading import LoadedModel
from recguide.engine.lora import RELEASED, SETTINGS
from recguide.engine.model import ModelConfig
from recguide.engine.rotary import Llama3, Yarn
from recguide.engine.shapes import DRAFT_RANK
from recguide.traces.documents import write_json, write_text
from recguide.traces.errors import InputError
from recguide.traces.files import replacing

FAMILIES = {"llama": "LlamaForCausalLM", "nemotron_labs_diffusion": "NemotronLabsDiffusionModel"}


def export(model: LoadedModel, folder: Path) -> None:
    """Write configuration, base weights and tokenizer into a folder; an adapter is not among them.

    The weights' hash stays what it was, so that adapters fit. InputError for a folder that holds another model.
    """
    _describe(model.config, folder)
    if model.tokenizer is not None:
        write_text(folder / "tokenizer.json", model.tokenizer.to_json())
        write_json(folder / "tokenizer_config.json", _tokenizer(model))
    tensors = {_stored(name): tensor.cpu().contiguous() for name, tensor in model.decoder.places().items()}
    with replacing(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary, {"format": "pt"})
        # the library makes files that nobody else may read
        temporary.chmod(0o644)


def export_shape(config: ModelConfig, folder: Path) -> None:
    """Write what a server needs to draw random weights of a shape: `--load-format dummy`, with a draft adapter."""
    _describe(config, folder)
    (folder / RELEASED).mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "r": DRAFT_RANK, "lora_alpha": 4 * DRAFT_RANK, "target_modules": ["o_proj"]}
    write_json(folder / RELEASED / SETTINGS, settings)


def _describe(config: ModelConfig, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path, fields = folder / "config.json", config_fields(config)
    if path.exists() and json.loads(path.read_text()) != fields:
        raise InputError(f"{path}: there already, and of another model; allowed: a folder without one")
    write_json(path, fields)


def _stored(name: str) -> str:
    return name if name.startswith("lm_head") else f"model.{name}"


def config_fields(config: ModelConfig) -> dict[str, Any]:
    """The content of a ``config.json`` that `configs.read_config` reads as this shape."""
    family = "nemotron_labs_diffusion" if isinstance(config.rope_scaling, Yarn) or config.query_scaling else "llama"
    return {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_context,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "rope_parameters": _rope(config),
        "eos_token_id": list(config.eos_ids),
        "mask_token_id": config.mask_id,
        "dlm_type": "dream" if config.draft_shift else None,
        "torch_dtype": "bfloat16",
    }


def _rope(config: ModelConfig) -> Mapping[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    scaling, queries = config.rope_scaling, config.query_scaling
    if isinstance(scaling, Yarn):
        rope |= {"rope_type": "yarn", "factor": scaling.factor, "beta_fast": scaling.beta_fast}
        rope |= {"beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
        rope |= {"attention_factor": scaling.attention_factor}
    if isinstance(scaling, Llama3):
        rope |= {"rope_type": "llama3", "factor": scaling.factor}
        rope |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling is not None:
        rope["original_max_position_embeddings"] = scaling.original_context
    if queries is not None:
        rope |= {"llama_4_scaling_beta": queries.beta, "original_max_position_embeddings": queries.period}
    return rope


def _tokenizer(model: LoadedModel) -> Mapping[str, Any]:
    assert model.tokenizer is not None
    eos = model.tokenizer.token(model.config.eos_ids[0])
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": model.tokenizer.chat_template,
        "eos_token": eos,
        "clean_up_tokenization_spaces": False,
    }
