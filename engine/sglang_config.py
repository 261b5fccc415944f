"""Nemotron-Labs-Diffusion's `config.json` for SGLang: transformers does not know the family."""

from typing import Any

from transformers import AutoConfig
from transformers.models.ministral3 import Ministral3Config

from recguide.engine.configs import parse_config
from recguide.engine.model import ModelConfig
from recguide.engine.rotary import Yarn

ARCHITECTURE = "NemotronLabsDiffusionModel"
FAMILY = ("nemotron_labs_diffusion", "nemotron_labs_diffusion_vlm")


class NemotronLabsDiffusionConfig(Ministral3Config):  # type: ignore[no-untyped-call]
    """The language model's shape as a Ministral 3, which it is; a vision model's own part is left out."""

    model_type = FAMILY[0]

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: object) -> Any:  # noqa: ANN401 - transformers' own type
        """From a checkpoint's fields, checked as for our own engine. InputError names the one that is wrong."""
        shape = parse_config(FAMILY[0], config_dict, "config.json")
        fields = {**config_dict, **(config_dict.get("text_config") or {})}
        known = {
            "architectures": [ARCHITECTURE],
            "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.num_layers,
            "num_attention_heads": shape.num_heads,
            "num_key_value_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "intermediate_size": shape.intermediate_size,
            "vocab_size": shape.vocab_size,
            "max_position_embeddings": shape.max_context,
            "rms_norm_eps": shape.rms_norm_eps,
            "tie_word_embeddings": shape.tie_word_embeddings,
            "rope_parameters": _rope(shape),
            "eos_token_id": list(shape.eos_ids),
            "bos_token_id": fields.get("bos_token_id"),
            "pad_token_id": None,
            "mask_token_id": shape.mask_id,
        }
        if shape.query_scaling is not None:
            # where SGLang looks for the period of scaled queries
            known["original_max_position_embeddings"] = shape.query_scaling.period
        dtype = {name: fields[name] for name in ("dtype", "torch_dtype") if fields.get(name)}
        return super().from_dict({**known, **dtype}, **kwargs)


def _rope(shape: ModelConfig) -> dict[str, Any]:
    """Rotary settings by SGLang's names."""
    scaling, queries = shape.rope_scaling, shape.query_scaling
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if isinstance(scaling, Yarn):
        rope |= {"rope_type": "yarn", "factor": scaling.factor, "truncate": scaling.truncate}
        rope |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        rope |= {"original_max_position_embeddings": scaling.original_context}
        # with both of these SGLang applies their ratio instead, which is 1 here
        rope |= {"mscale": 1.0, "mscale_all_dim": 1.0, "attn_factor": scaling.attention_factor}
    elif scaling is not None:
        rope |= {"rope_type": "llama3", "factor": scaling.factor, "low_freq_factor": scaling.low_freq_factor}
        rope |= {"high_freq_factor": scaling.high_freq_factor}
        rope |= {"original_max_position_embeddings": scaling.original_context}
    if queries is not None:
        rope["llama_4_scaling_beta"] = queries.beta
    return rope


class NemotronLabsDiffusionVlmConfig(NemotronLabsDiffusionConfig):  # type: ignore[no-untyped-call]
    """The same out of a vision model's file."""

    model_type = FAMILY[1]


def register_configs() -> None:
    """Make both known to transformers."""
    for config in (NemotronLabsDiffusionConfig, NemotronLabsDiffusionVlmConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
