"""Draft adapters as PEFT writes them: the ``linear_spec_lora`` folder of Nemotron-Labs-Diffusion.

Low-rank updates of every layer's output projection, which act on draft tokens alone: verification and prefill compute
what the base model computes. They stay in the precision they are stored in (fp32), over weights in bf16 too.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from recguide.engine.checkpoints import HEADS_BY_PREFIX, read_tensors
from recguide.engine.configs import Fields, read_object
from recguide.engine.model import Decoder, Layer, LowRank
from recguide.traces.errors import InputError

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
RELEASED = "linear_spec_lora"
"""The folder of a released checkpoint that holds its draft adapter."""
# what this reader does not compute: the field of the settings, and the values that mean "not used"
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "target_modules": (["o_proj"], "o_proj"),
    "bias": ("none",),
    "use_dora": (False,),
    "use_rslora": (False,),
    "fan_in_fan_out": (False,),
    "modules_to_save": ([],),
    "layers_to_transform": (),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
}


def is_lora(folder: Path) -> bool:
    """Whether a folder is such an adapter."""
    return (folder / SETTINGS).is_file()


def lora_sha256(folder: Path) -> str:
    """The hash that traces name such an adapter by: of its settings, then its tensors, as files."""
    return hashlib.sha256((folder / SETTINGS).read_bytes() + (folder / WEIGHTS).read_bytes()).hexdigest()


def lora_rank(folder: Path) -> int:
    """The rank of its updates, from its settings."""
    return _read_settings(folder / SETTINGS)[0]


def load_lora(decoder: Decoder, folder: Path) -> None:
    """Give every output projection its update, for draft tokens only.

    Nothing is attached before all has been read. Raises as :func:`read_lora` does.
    """
    layers = [layer for layer in decoder.layers if isinstance(layer, Layer)]
    outputs, inputs = layers[0].out.weight.shape
    for layer, sides in zip(layers, read_lora(folder, len(layers), inputs, outputs), strict=True):
        a, b = (side.to(decoder.device) for side in sides)
        layer.out.updates.append(LowRank(a, b, draft_only=True).requires_grad_(False))


def read_lora(folder: Path, num_layers: int, inputs: int, outputs: int) -> list[tuple[Tensor, Tensor]]:
    """Each layer's update, ``[rank, inputs]`` and ``[outputs, rank]``, the second scaled by ``lora_alpha / r``.

    Raises InputError with file and field, or file and key, for settings that ask for something else, and for tensors
    that are missing, left over, of another shape, or not finite.
    """
    rank, scale = _read_settings(folder / SETTINGS)
    tensors, shapes = _by_layer(folder / WEIGHTS, num_layers), {"A": [rank, inputs], "B": [outputs, rank]}
    for (_, side), (key, tensor) in tensors.items():
        if list(tensor.shape) != shapes[side]:
            raise InputError(f"{folder / WEIGHTS}: {key}: shape {list(tensor.shape)}, expected {shapes[side]}")
        if not tensor.isfinite().all():
            raise InputError(f"{folder / WEIGHTS}: {key}: holds NaN or infinity")
    return [(tensors[index, "A"][1], tensors[index, "B"][1] * scale) for index in range(num_layers)]


def _read_settings(path: Path) -> tuple[int, float]:
    fields = Fields(read_object(path), path)
    for field, allowed in _UNSUPPORTED.items():
        value = fields.raw.get(field)
        if value is not None and value not in allowed:
            fields.refuse(field, f"one of {[None, *allowed]}: nothing else is computed here")
    rank = fields.size("r")
    return rank, fields.number("lora_alpha") / rank


def _by_layer(path: Path, num_layers: int) -> Mapping[tuple[int, str], tuple[str, Tensor]]:
    """Key and tensor of each layer's two sides."""
    stored, found = read_tensors(path), dict[tuple[int, str], tuple[str, Tensor]]()
    places = {name: place for place in _places(num_layers) for name in _names(*place)}
    left = [key for key in stored if key not in places]
    for key in stored.keys() & places.keys():
        found[places[key]] = key, stored[key]
    missing = [_names(*place)[0] for place in _places(num_layers) if place not in found]
    if left or missing or len(found) < len(stored):
        raise InputError(f"{path}: missing {missing[:4]} ({len(missing)}), left over {left[:4]} ({len(left)})")
    return found


def _places(num_layers: int) -> list[tuple[int, str]]:
    return [(index, side) for index in range(num_layers) for side in "AB"]


def _names(index: int, side: str) -> list[str]:
    """What PEFT may call one side of a layer's update, the released name first."""
    middle = f"layers.{index}.self_attn.o_proj.lora_{side}"
    return [
        f"base_model.model.{prefix}{middle}{kind}.weight" for prefix in HEADS_BY_PREFIX for kind in ("", ".default")
    ]
