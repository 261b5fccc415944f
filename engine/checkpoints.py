"""The weights of Hugging Face directories, whichever names they are stored under, and their hash."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from recguide.engine.configs import Fields, read_object
from recguide.engine.model import ModelConfig
from recguide.traces.errors import InputError

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
HEADS_BY_PREFIX = {
    "encoder.": "diffusion_head.weight",  # Nemotron-Labs-Diffusion as released
    "model.": HEAD,  # Llama, Mistral, and Ministral 3 without its vision tower
    "language_model.model.": "language_model.lm_head.weight",  # Ministral 3 with it
    "language_model.": "diffusion_head.weight",  # repacks of Nemotron-Labs-Diffusion by its users
    "model.language_model.": HEAD,  # vision models as transformers 5 names their modules
    "": HEAD,  # a backbone saved without its wrapper
}
"""What the names of a backbone's weights start with, and what its output head is called beside them."""
# a repack may have renamed the backbone and not the head, or the other way round
HEADS = {*HEADS_BY_PREFIX.values(), "language_model.diffusion_head.weight"}
# parts of other jobs: seeing, and the scales of quantised key-value caches
OTHER_PARTS = {"vision_tower", "multi_modal_projector", "k_scale", "v_scale"}
RECOMPUTED = "rotary_emb.inv_freq"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tensors as stored, on the CPU, by their Llama names without the leading ``model.``."""

    folder: Path
    prefix: str
    tensors: Mapping[str, Tensor]
    stored_as: Mapping[str, tuple[Path, str]]
    """The file and the key that each was found under."""

    def origin(self, name: str) -> str:
        """What to call a tensor in an error: file and key, and what the key should be where there is none."""
        if name in self.stored_as:
            path, key = self.stored_as[name]
            return f"{path}: {key}"
        return f"{self.folder}: {HEADS_BY_PREFIX[self.prefix] if name == HEAD else self.prefix + name}"


def read_weights(folder: Path, config: ModelConfig) -> Checkpoint:
    """The weights of a directory, whichever of :data:`HEADS_BY_PREFIX` they are stored under.

    Adapter files lying in the directory are not looked at, vision parts are counted in a warning, and a tied head that
    is stored beside its embedding is left out. Raises InputError with file and key for files that are damaged or
    incomplete, and for tensors that are quantised or stored twice.
    """
    stored = _read_files(folder)
    prefix = _prefix(folder, [key for _, key in stored])
    tensors, stored_as = dict[str, Tensor](), dict[str, tuple[Path, str]]()
    for (path, key), tensor in stored.items():
        name = _name(key, prefix)
        if name in tensors:
            raise InputError(f"{path}: {key}: a second {name}; the first is {stored_as[name][1]}")
        if tensor.dtype not in _DTYPES:
            raise InputError(f"{path}: {key}: found {tensor.dtype}; allowed: {', '.join(map(str, _DTYPES))}")
        tensors[name], stored_as[name] = tensor, (path, key)
    checkpoint = Checkpoint(folder, prefix, tensors, stored_as)
    return _without_tied_head(checkpoint) if config.tie_word_embeddings else checkpoint


def _read_files(folder: Path) -> dict[tuple[Path, str], Tensor]:
    """Every tensor that belongs to a language model, by file and key."""
    stored, others = dict[tuple[Path, str], Tensor](), 0
    for path, expected in _weight_files(folder).items():
        tensors = read_tensors(path)
        if lost := sorted(expected - tensors.keys()):
            raise InputError(f"{path}: {lost[0]}: not there, but the index says so ({len(lost)} such keys)")
        for key, tensor in tensors.items():
            if OTHER_PARTS.intersection(key.split(".")):
                others += 1
            elif not key.endswith(RECOMPUTED):
                stored[path, key] = tensor
    if others:
        logging.getLogger(__name__).warning("%s: %d tensors of vision parts or KV scales not used", folder, others)
    return stored


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; InputError with the file when it is damaged or not there."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable safetensors file: {error}") from error


def _weight_files(folder: Path) -> dict[Path, set[str]]:
    """The files of a model, and the keys that an index expects in each."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if not index.exists():
        if single.exists():
            return {single: set()}
        raise InputError(f"{folder}: neither model.safetensors nor model.safetensors.index.json is there")
    files: dict[Path, set[str]] = {}
    places = Fields(read_object(index), index).child("weight_map")
    for key, name in places.raw.items():
        # a file of this directory, and of no other
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            places.refuse(key, "the name of a safetensors file beside the index")
        files.setdefault(folder / name, set()).add(key)
    return files


def _prefix(folder: Path, keys: list[str]) -> str:
    found = [prefix for prefix in HEADS_BY_PREFIX if prefix + EMBEDDING in keys]
    if len(found) != 1:
        allowed = ", ".join(prefix + EMBEDDING for prefix in HEADS_BY_PREFIX)
        raise InputError(f"{folder}: {[prefix + EMBEDDING for prefix in found]} are there; expected one of {allowed}")
    return found[0]


def _name(key: str, prefix: str) -> str:
    if key in HEADS:
        return HEAD
    # what does not start so gets a name that no weight has, and is left over
    return key.removeprefix(prefix) if key.startswith(prefix) else f"/{key}"


def _without_tied_head(checkpoint: Checkpoint) -> Checkpoint:
    tensors = dict(checkpoint.tensors)
    head = tensors.pop(HEAD, None)
    if head is not None and not torch.equal(head, tensors[EMBEDDING]):
        raise InputError(f"{checkpoint.origin(HEAD)}: differs from the embedding, but config.json ties them")
    return Checkpoint(checkpoint.folder, checkpoint.prefix, tensors, checkpoint.stored_as)


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
