"""Hugging Face directories of Llama-family models: config.json, safetensors (one file or an index), and their hash."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from recguide.engine.model import ModelConfig
from recguide.traces.errors import InputError

MODEL_TYPES = ("llama", "mistral")
_SIZES = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_context",
    "mask_token_id": "mask_id",
}
# what this decoder does not compute: the field, and the values that mean "not used"
_UNSUPPORTED = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "sliding_window": (),
    "quantization_config": (),
}


def read_config(folder: Path) -> ModelConfig:
    """The shape in a directory's ``config.json``; ``generation_config.json``, where there is one, names the EOS tokens.

    ``mask_token_id`` must be there: the id of a token that text never holds. Raises ValueError with the file and the
    field for anything missing, malformed, or not computed here (other families, scaled rotary embeddings, biases, ...).
    """
    path = folder / "config.json"
    raw = _read_json(path)
    _check_family(raw, path)
    sizes = {ours: _size(raw, theirs, path) for theirs, ours in _SIZES.items()}
    head_dim = _size(raw, "head_dim", path) if raw.get("head_dim") else sizes["hidden_size"] // sizes["num_heads"]
    return ModelConfig(
        name=folder.resolve().name,
        head_dim=head_dim,
        rope_theta=_rope_theta(raw, path),
        rms_norm_eps=_positive(raw.get("rms_norm_eps"), "rms_norm_eps", path),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_ids=_eos_ids(folder, raw, path),
        **sizes,
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise InputError(f"{path}: not there; a model is a known name or a Hugging Face directory")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: found a {type(content).__name__}, expected an object")
    return content


def _check_family(raw: Mapping[str, Any], path: Path) -> None:
    if raw.get("model_type") not in MODEL_TYPES:
        raise InputError(f"{path}: model_type: {raw.get('model_type')!r}; allowed: {', '.join(MODEL_TYPES)}")
    for field, unused in _UNSUPPORTED.items():
        value = raw.get(field)
        if value is not None and value not in unused:
            raise InputError(f"{path}: {field}: {value!r} is not supported; allowed: {[None, *unused]}")


def _size(raw: Mapping[str, Any], field: str, path: Path) -> int:
    value = raw.get(field)
    # the mask is a token, and tokens count from 0
    least = 0 if field == "mask_token_id" else 1
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{path}: {field}: {value!r}; expected a whole number of at least {least}")
    return value


def _positive(value: Any, field: str, path: Path) -> float:  # noqa: ANN401 - whatever JSON holds
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InputError(f"{path}: {field}: {value!r}; expected a positive number")
    return float(value)


def _rope_theta(raw: Mapping[str, Any], path: Path) -> float:
    # transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling
    for field in ("rope_scaling", "rope_parameters"):
        rope = raw.get(field) or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise InputError(f"{path}: {field}: rotary embeddings of type {kind!r} are not supported yet")
    theta = (raw.get("rope_parameters") or {}).get("rope_theta", raw.get("rope_theta"))
    return _positive(theta, "rope_theta", path)


def _eos_ids(folder: Path, raw: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    value = _read_json(generation).get("eos_token_id") if generation.exists() else None
    value = raw.get("eos_token_id") if value is None else value
    ids = value if isinstance(value, list) else [value]
    if not ids or not all(isinstance(token, int) and token >= 0 for token in ids):
        raise InputError(f"{path}: eos_token_id: {value!r}; expected a token id or a list of them")
    return tuple(ids)


def read_weights(folder: Path, config: ModelConfig) -> dict[str, Tensor]:
    """The tensors of a directory as stored, on the CPU, under their Llama names without the leading ``model.``.

    Adapter files lying in the directory are not looked at. A tied head stored beside the embedding is left out.
    """
    weights: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        try:
            stored = load_file(path)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: not a readable safetensors file: {error}") from error
        weights.update({name.removeprefix("model."): tensor for name, tensor in stored.items()})
    weights = {name: tensor for name, tensor in weights.items() if not name.endswith("rotary_emb.inv_freq")}
    return _without_tied_head(weights, folder) if config.tie_word_embeddings else weights


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return [folder / name for name in sorted(set(_read_json(index).get("weight_map", {}).values()))]
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    raise InputError(f"{folder}: neither model.safetensors nor model.safetensors.index.json is there")


def _without_tied_head(weights: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    head = weights.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, weights.get("embed_tokens.weight", head.new_empty(0))):
        raise InputError(f"{folder}: lm_head.weight differs from the embedding, but config.json ties them")
    return weights


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """The identity of a model: SHA-256 over its tensors as loaded, before any cast, fusing or adapter.

    For each tensor in the order of sorted names (Llama names without ``model.``): the line ``name dtype shape``, then
    the bytes of its elements in row-major order. How the tensors are split into files does not matter.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
