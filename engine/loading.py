"""A model by name or directory, with its tokenizer, its hash and its adapter: the one way in for every command."""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from recguide.engine import smollm2
from recguide.engine.adapters import file_sha256, load_adapter
from recguide.engine.checkpoints import read_config, read_weights, weights_sha256
from recguide.engine.model import Decoder, ModelConfig
from recguide.engine.shapes import SHAPES, random_decoder, random_sha256
from recguide.engine.tokenizer import Tokenizer, read_tokenizer
from recguide.traces.errors import InputError


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


def load_model(
    name: str, device: torch.device | str, dtype: torch.dtype, adapter: Path | None = None, seed: int = 0
) -> LoadedModel:
    """The model of that name or Hugging Face directory.

    Names are ``smollm2-135m`` (fetched once) and the random shapes of :mod:`recguide.engine.shapes` (``seed``).
    Raises ValueError for an unknown name, a malformed directory, or an adapter made for other weights.
    """
    model = _base_model(name, device, dtype, seed)
    return model if adapter is None else _with_adapter(model, model.decoder, adapter)


def adapted(model: LoadedModel, adapter: Path) -> LoadedModel:
    """A copy of a model with an adapter; both share the tokenizer. Raises as :func:`load_model` does."""
    return _with_adapter(model, copy.deepcopy(model.decoder), adapter)


def _with_adapter(model: LoadedModel, decoder: Decoder, adapter: Path) -> LoadedModel:
    load_adapter(decoder, adapter, model.weights_sha256)
    return LoadedModel(decoder, model.tokenizer, model.weights_sha256, file_sha256(adapter))


def _base_model(name: str, device: torch.device | str, dtype: torch.dtype, seed: int) -> LoadedModel:
    if name == smollm2.NAME:
        reader = smollm2.open_gguf(smollm2.fetch())
        return _loaded(smollm2.CONFIG, smollm2.weights(reader), smollm2.tokenizer(reader), device, dtype)
    if name in SHAPES:
        return random_model(SHAPES[name], device, dtype, seed)
    folder = Path(name)
    if not folder.is_dir():
        known = ", ".join([smollm2.NAME, *SHAPES])
        raise InputError(f"model {name!r}: no such directory, and not one of the known names: {known}")
    config = read_config(folder)
    return _loaded(config, read_weights(folder, config), read_tokenizer(folder), device, dtype)


def _loaded(
    config: ModelConfig,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer | None,
    device: torch.device | str,
    dtype: torch.dtype,
) -> LoadedModel:
    decoder = Decoder(config, device, dtype).requires_grad_(False)
    decoder.load(weights)
    return LoadedModel(decoder, tokenizer, weights_sha256(weights), None)


def random_model(config: ModelConfig, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> LoadedModel:
    """A model of the given shape with random weights and no tokenizer, drawn on the device itself."""
    return LoadedModel(random_decoder(config, device, dtype, seed), None, random_sha256(config, seed), None)
