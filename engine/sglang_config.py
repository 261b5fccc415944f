"""Nemotron-Labs-Diffusion's `config.json` for SGLang: transformers does not know the family."""

from typing import Any

from transformers import AutoConfig
from transformers.models.ministral3 import Ministral3Config

from recguide.engine.configs import parse_config

ARCHITECTURE = "NemotronLabsDiffusionModel"
FAMILY = ("nemotron_labs_diffusion", "nemotron_labs_diffusion_vlm")


class NemotronLabsDiffusionConfig(Ministral3Config):  # type: ignore[misc]
    """The language model's shape as a Ministral 3, which it is; a vision model's own part is left out."""

    model_type = FAMILY[0]

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: object) -> Any:  # noqa: ANN401 - transformers' own type
        """From a checkpoint's fields, checked as for our own engine. InputError names the one that is wrong."""
        shape = parse_config(FAMILY[0], config_dict, "config.json")
        fields = {**config_dict, **(config_dict.get("text_config") or {})}
        rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {"rope_type": "default"}
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
            "rope_parameters": {"rope_theta": shape.rope_theta, **rope},
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


class NemotronLabsDiffusionVlmConfig(NemotronLabsDiffusionConfig):
    """The same out of a vision model's file."""

    model_type = FAMILY[1]


def register_configs() -> None:
    """Make both known to transformers."""
    for config in (NemotronLabsDiffusionConfig, NemotronLabsDiffusionVlmConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
