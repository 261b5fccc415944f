"""A model by name or directory, with its tokenizer, its hash and its adapter: the one way in for every command."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from recguide.engine import smollm2
from recguide.engine.adapters import (
    drafts_merged,
    load_adapter,
    merge_drafts,
    merges_drafts,
    read_info,
    resolve_adapter,
)
from recguide.engine.checkpoints import read_weights, weights_sha256
from recguide.engine.configs import read_config
from recguide.engine.environment import chosen_device
from recguide.engine.hub import cached_folder, is_id
from recguide.engine.lora import is_lora, load_lora, lora_rank, lora_sha256
from recguide.engine.model import Decoder, ModelConfig
from recguide.engine.shapes import SHAPES, add_random_draft_adapter, random_decoder, random_sha256
from recguide.engine.shared_options import DTYPES
from recguide.engine.tokenizer import Tokenizer, read_tokenizer
from recguide.traces.checks import require
from recguide.traces.errors import InputError
from recguide.traces.files import file_sha256


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder ready to run. Random models, and directories without one, have no tokenizer."""

    decoder: Decoder
    tokenizer: Tokenizer | None
    weights_sha256: str
    """Of the base weights: an adapter does not change it."""
    adapter_sha256: str | None

    @property
    def config(self) -> ModelConfig:
        """The shape, with the mask token and draft shift of the adapter if there is one."""
        return self.decoder.config

    @property
    def named(self) -> dict[str, str | None]:
        """What files say of it: its name, and the hashes of base weights and adapter."""
        return {
            "model": self.config.name,
            "weights_sha256": self.weights_sha256,
            "adapter_sha256": self.adapter_sha256,
        }

    @property
    def state(self) -> tuple[str, str]:
        """The hashes of base weights and adapter, which fitted policies are compared with; empty without one."""
        return self.weights_sha256, self.adapter_sha256 or ""


def load_model(
    name: str, device: torch.device | str, dtype: torch.dtype, adapter: Path | None = None, seed: int = 0
) -> LoadedModel:
    """The model of that name, Hugging Face directory, or id in the local Hugging Face cache.

    Names are ``smollm2-135m`` (fetched once) and the random shapes of :mod:`recguide.engine.shapes` (``seed``).
    ``adapter`` is what :func:`find_adapter` gives. Raises InputError for an unknown name, a malformed directory, or an
    adapter made for other weights.
    """
    model = _base_model(name, device, dtype, seed)
    return model if adapter is None else _with_adapter(model, model.decoder, adapter)


def open_model(
    name: str, adapter: str | None, device: str, dtype: str, merged_drafts: bool | None = None
) -> LoadedModel:
    """The model that a command's options name, for anything but training.

    Random shapes draft with a random adapter, at what that costs. ``merged_drafts``: see
    :func:`merge_drafts`; None: on a GPU. Raises as :func:`load_model` does, and InputError where drafts are asked to be
    merged and nothing changes them.
    """
    # fp32 means fp32: no TensorFloat-32 inside
    torch.set_float32_matmul_precision("highest")
    place, kind = chosen_device(device), getattr(torch, DTYPES[dtype])
    model = load_model(name, place, kind, None if adapter is None else find_adapter(adapter, name))
    model.decoder.requires_grad_(False)
    if name in SHAPES:
        add_random_draft_adapter(model.decoder)
    if merges_drafts(merged_drafts, model.decoder.device):
        merge_drafts(model.decoder)
    if merged_drafts:
        found = f"{name} without a draft adapter"
        require(drafts_merged(model.decoder), "--merge-drafts", found, "models that have one: --adapter")
    return model


def adapted(model: LoadedModel, adapter: Path) -> LoadedModel:
    """A copy of a model with an adapter; both share the tokenizer. Raises as :func:`load_model` does."""
    return _with_adapter(model, copy.deepcopy(model.decoder), adapter)


def find_adapter(name: str, model: str) -> Path:
    """An adapter for a model: a file of `recguide adapt`, a PEFT folder, or a shipped file by its name.

    A folder inside the model's own directory may be named without the rest: ``linear_spec_lora``.
    """
    folder = _folder(model)
    for path in (Path(name), *([] if folder is None else [folder / name])):
        if is_lora(path):
            return path
    return resolve_adapter(name)


def adapter_ranks(adapter: Path) -> tuple[int, int]:
    """The ranks of an adapter's updates: those of every token, and those of draft tokens."""
    if is_lora(adapter):
        return 0, lora_rank(adapter)
    info = read_info(adapter)
    return info.shared_rank, info.draft_rank


def _with_adapter(model: LoadedModel, decoder: Decoder, adapter: Path) -> LoadedModel:
    if is_lora(adapter):
        load_lora(decoder, adapter)
        return LoadedModel(decoder, model.tokenizer, model.weights_sha256, lora_sha256(adapter))
    load_adapter(decoder, adapter, model.weights_sha256)
    return LoadedModel(decoder, model.tokenizer, model.weights_sha256, file_sha256(adapter))


def _base_model(name: str, device: torch.device | str, dtype: torch.dtype, seed: int) -> LoadedModel:
    if name == smollm2.NAME:
        reader = smollm2.open_gguf(smollm2.fetch())
        decoder = _decoder(smollm2.CONFIG, device, dtype)
        return _loaded(decoder, smollm2.weights(reader), smollm2.tokenizer(reader))
    if name in SHAPES:
        return random_model(SHAPES[name], device, dtype, seed)
    folder = _folder(name)
    if folder is None:
        known = ", ".join([smollm2.NAME, *SHAPES])
        raise InputError(f"model {name!r}: no such directory, and not one of the known names: {known}")
    config = read_config(folder, None if Path(name).is_dir() else name)
    checkpoint, tokenizer = read_weights(folder, config), read_tokenizer(folder)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise InputError(f"{folder}: tokenizer.json has {tokenizer.vocab_size} tokens, config.json {config.vocab_size}")
    # what does not fit is told before memory is taken for it
    _decoder(config, "meta", dtype).check(checkpoint.tensors, checkpoint.origin)
    return _loaded(_decoder(config, device, dtype), checkpoint.tensors, tokenizer, checkpoint.origin)


def _folder(name: str) -> Path | None:
    """The directory of a model, if it has one."""
    if Path(name).is_dir():
        return Path(name)
    return cached_folder(name) if is_id(name) else None


def _decoder(config: ModelConfig, device: torch.device | str, dtype: torch.dtype) -> Decoder:
    return Decoder(config, device, dtype).requires_grad_(False)


def _loaded(
    decoder: Decoder, weights: Mapping[str, Tensor], tokenizer: Tokenizer | None, origin: Callable[[str], str] = str
) -> LoadedModel:
    decoder.load(weights, origin)
    return LoadedModel(decoder, tokenizer, weights_sha256(weights), None)


def random_model(config: ModelConfig, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> LoadedModel:
    """A model of the given shape with random weights and no tokenizer, drawn on the device itself."""
    return LoadedModel(random_decoder(config, device, dtype, seed), None, random_sha256(config, seed), None)
