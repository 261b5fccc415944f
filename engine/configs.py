"""A model's shape out of its ``config.json``: Llama, Mistral, Ministral 3 and Nemotron-Labs-Diffusion."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from recguide.engine.model import ModelConfig
from recguide.engine.rotary import Llama3, QueryScaling, RopeScaling, Yarn
from recguide.traces.checks import is_number
from recguide.traces.documents import read_json
from recguide.traces.errors import InputError

MODEL_TYPES = (
    "llama",
    "mistral",
    "ministral3",
    "mistral3",
    "nemotron_labs_diffusion",
    "nemotron_labs_diffusion_vlm",
)
# vision models: their language model is described in text_config, and what is not there beside it
_NESTED = ("mistral3", "nemotron_labs_diffusion_vlm")
# what this decoder does not compute: the field, and the values that mean "not used"
_UNSUPPORTED = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "sliding_window": (),
    "partial_rotary_factor": (1.0,),
    "quantization_config": (),
}
# the code of the family trains both kinds; a checkpoint without the field is of the first
_DRAFT_SHIFTS = {None: 0, "llada": 0, "dream": 1}
_ORIGINAL = "original_max_position_embeddings"
_ROPE_FIELDS = {
    "default": set[str](),
    "yarn": {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
}
# these may stand beside each of them; max_position_embeddings repeats the model's own
_ROPE_COMMON = {"rope_type", "type", "rope_theta", "llama_4_scaling_beta", _ORIGINAL, "max_position_embeddings"}


class Fields:
    """The fields of a JSON object, checked as they are read; errors name the file and the field."""

    def __init__(self, raw: Mapping[str, Any], where: Path | str, inside: str = "") -> None:
        self.raw, self.where, self.inside = raw, where, inside

    def refuse(self, field: str, allowed: str) -> NoReturn:
        """Say what is wrong with a field, and what would not be."""
        found = repr(self.raw[field]) if field in self.raw else "missing"
        raise InputError(f"{self.where}: {self.inside}{field}: {found}; expected {allowed}")

    def size(self, field: str, least: int = 1, most: int = 2**31 - 1) -> int:
        """A whole number of at least ``least``."""
        value = self.raw.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.refuse(field, f"a whole number of at least {least} and at most {most}")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """A positive, finite number; null and missing are the default if there is one."""
        value = self.raw.get(field)
        value = default if value is None else value
        if not is_number(value) or not 0 < value < float("inf"):
            self.refuse(field, "a positive number")
        return float(value)

    def amount(self, field: str) -> float:
        """A finite number of 0 or more; null and missing are 0."""
        return 0.0 if not self.raw.get(field) else self.number(field)

    def truth(self, field: str, default: bool) -> bool:
        """True or false; null and missing are the default."""
        value = self.raw.get(field)
        if value is not None and not isinstance(value, bool):
            self.refuse(field, "true or false")
        return default if value is None else value

    def token(self, field: str, vocab_size: int) -> int:
        """The id of a token."""
        value = self.size(field, least=0)
        if value >= vocab_size:
            self.refuse(field, f"a token below vocab_size, {vocab_size}")
        return value

    def child(self, field: str) -> "Fields":
        """The object in a field."""
        value = self.raw.get(field)
        if not isinstance(value, dict):
            self.refuse(field, "an object")
        return Fields(value, self.where, f"{self.inside}{field}.")


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model directory; InputError with the file when there is none."""
    if not path.exists():
        raise InputError(f"{path}: not there; a model is a known name or a Hugging Face directory")
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: found a {type(content).__name__}, expected an object")
    return content


def read_config(folder: Path, name: str | None = None) -> ModelConfig:
    """The shape in a directory's ``config.json``; ``generation_config.json``, where there is one, names the EOS tokens.

    ``name`` is what the model is called, by default as its directory. Raises as :func:`parse_config` does.
    """
    raw, generation = read_object(folder / "config.json"), folder / "generation_config.json"
    eos = read_object(generation).get("eos_token_id") if generation.exists() else None
    if eos is not None:
        raw["eos_token_id"] = eos
    return parse_config(name or folder.resolve().name, raw, folder / "config.json")


def parse_config(name: str, raw: Mapping[str, Any], where: Path | str) -> ModelConfig:
    """The shape that the content of a ``config.json`` describes; ``where`` is named in errors.

    ``mask_token_id`` must be there: the id of a token that text never holds. Raises InputError with the field for
    anything missing, malformed, or not computed here (other families, other rotary embeddings, biases, ...).
    """
    fields = _text_fields(raw, where)
    _check_family(fields)
    heads, vocab_size = fields.size("num_attention_heads"), fields.size("vocab_size")
    hidden_size, rope = fields.size("hidden_size"), _rope_fields(fields)
    return ModelConfig(
        name=name,
        hidden_size=hidden_size,
        num_layers=fields.size("num_hidden_layers", most=1000),
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, heads),
        head_dim=_head_dim(fields, hidden_size, heads),
        intermediate_size=fields.size("intermediate_size"),
        vocab_size=vocab_size,
        rope_theta=_above(rope, "rope_theta", 1.0),
        rms_norm_eps=fields.number("rms_norm_eps"),
        tie_word_embeddings=fields.truth("tie_word_embeddings", raw.get("model_type") == "mistral3"),
        max_context=fields.size("max_position_embeddings"),
        mask_id=_mask_id(fields, vocab_size),
        eos_ids=_eos_ids(fields, vocab_size),
        draft_shift=_draft_shift(fields),
        rope_scaling=_rope_scaling(rope),
        query_scaling=_query_scaling(rope),
    )


def _text_fields(raw: Mapping[str, Any], where: Path | str) -> Fields:
    fields = Fields(raw, where)
    if raw.get("model_type") not in MODEL_TYPES:
        fields.refuse("model_type", f"one of {', '.join(MODEL_TYPES)}")
    if raw["model_type"] not in _NESTED or "text_config" not in raw:
        return fields
    text = fields.child("text_config").raw
    if text.get("model_type", "ministral3") not in MODEL_TYPES:
        fields.child("text_config").refuse("model_type", f"one of {', '.join(MODEL_TYPES)}")
    # the outer word counts: it is the whole model's
    return Fields({**text, **{key: value for key, value in raw.items() if value is not None}}, where)


def _check_family(fields: Fields) -> None:
    for field, unused in _UNSUPPORTED.items():
        value = fields.raw.get(field)
        if value is not None and value not in unused:
            fields.refuse(field, f"one of {[None, *unused]}: nothing else is computed here")


def _kv_heads(fields: Fields, heads: int) -> int:
    kv_heads = fields.size("num_key_value_heads")
    if heads % kv_heads:
        fields.refuse("num_key_value_heads", f"a divisor of num_attention_heads, {heads}")
    return kv_heads


def _head_dim(fields: Fields, hidden_size: int, heads: int) -> int:
    head_dim = fields.size("head_dim") if fields.raw.get("head_dim") is not None else hidden_size // heads
    if head_dim % 2 or not 2 <= head_dim <= 1024:
        fields.refuse("head_dim", "an even number up to 1024: rotary embedding turns pairs")
    return head_dim


def _mask_id(fields: Fields, vocab_size: int) -> int:
    if fields.raw.get("mask_token_id") is None:
        fields.refuse("mask_token_id", "a token that text never holds: add one to the file")
    return fields.token("mask_token_id", vocab_size)


def _eos_ids(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    value = fields.raw.get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    if not ids or not all(isinstance(token, int) and 0 <= token < vocab_size for token in ids):
        fields.refuse("eos_token_id", f"a token below vocab_size, {vocab_size}, or a list of them")
    return tuple(ids)


def _draft_shift(fields: Fields) -> int:
    kind = fields.raw.get("dlm_type")
    if kind not in list(_DRAFT_SHIFTS):
        fields.refuse("dlm_type", f"one of {list(_DRAFT_SHIFTS)}")
    return _DRAFT_SHIFTS[kind]


def _rope_fields(fields: Fields) -> Fields:
    """The rotary settings: transformers 5 writes ``rope_parameters``, earlier versions theta apart from the scaling."""
    given = [field for field in ("rope_parameters", "rope_scaling") if fields.raw.get(field)]
    if len(given) == 2 and fields.raw[given[0]] != fields.raw[given[1]]:
        fields.refuse("rope_scaling", "the same as rope_parameters, or one of the two")
    rope = fields.child(given[0]) if given else Fields({}, fields.where)
    beside = {key: fields.raw[key] for key in ("rope_theta", "llama_4_scaling_beta") if fields.raw.get(key) is not None}
    return Fields({**beside, **rope.raw}, fields.where, rope.inside)


def _rope_scaling(rope: Fields) -> RopeScaling | None:
    field = "rope_type" if "rope_type" in rope.raw else "type"
    kind = rope.raw.get(field, "default")
    if kind not in list(_ROPE_FIELDS):
        rope.refuse(field, f"one of {', '.join(_ROPE_FIELDS)}")
    for other in sorted(rope.raw.keys() - _ROPE_FIELDS[kind] - _ROPE_COMMON):
        if rope.raw[other] is not None:
            rope.refuse(other, f"no such field beside {kind}")
    if kind == "default":
        return None
    return _yarn(rope) if kind == "yarn" else _llama3(rope)


def _yarn(rope: Fields) -> Yarn:
    factor, slow = rope.number("factor"), rope.number("beta_slow", 1.0)
    return Yarn(
        factor=factor,
        original_context=rope.size(_ORIGINAL),
        beta_fast=_above(rope, "beta_fast", slow, 32.0),
        beta_slow=slow,
        attention_factor=rope.number("attention_factor", _attention_factor(rope, factor)),
        truncate=rope.truth("truncate", True),
    )


def _attention_factor(rope: Fields, factor: float) -> float:
    """What transformers makes of ``mscale`` and ``mscale_all_dim``: with both the ratio of two, else YaRN's own."""
    log = 0.1 * math.log(max(factor, 1.0))
    over, under = rope.amount("mscale"), rope.amount("mscale_all_dim")
    return (over * log + 1) / (under * log + 1) if over and under else log + 1


def _llama3(rope: Fields) -> Llama3:
    low = rope.number("low_freq_factor")
    return Llama3(rope.number("factor"), rope.size(_ORIGINAL), low, _above(rope, "high_freq_factor", low))


def _query_scaling(rope: Fields) -> QueryScaling | None:
    beta = rope.amount("llama_4_scaling_beta")
    return QueryScaling(beta, rope.size(_ORIGINAL)) if beta else None


def _above(fields: Fields, field: str, least: float, default: float | None = None) -> float:
    value = fields.number(field, default)
    if value <= least:
        fields.refuse(field, f"more than {least:g}")
    return value
