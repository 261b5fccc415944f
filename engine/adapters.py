"""Adapter files: what turns a causal language model into a self-speculator, as low-rank updates in int8.

An adapter holds up to two updates of every projection. The *shared* one is merged into the weights when it is loaded,
so it acts on drafting and verifying alike; the *draft* one stays apart and is routed per token, as the released
Nemotron-Labs-Diffusion adapters are. Either may be absent. It also holds the input embedding of the mask token.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from recguide.engine.model import Decoder, Layer, Linear, LowRank
from recguide.traces.errors import InputError
from recguide.traces.files import replacing

FORMAT = 1
PROJECTIONS = ("qkv", "out", "gate_up", "down")
KINDS = ("shared", "draft")
SHIPPED = Path(__file__).with_name("adapters")


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """What an adapter file says of itself; ``base_weights_sha256`` is the model that it fits, and no other."""

    format: int
    base_model: str
    base_weights_sha256: str
    mask_id: int
    draft_shift: int
    shared_rank: int
    draft_rank: int
    training: Mapping[str, str | int | float]


def projections(decoder: Decoder) -> Iterator[tuple[str, Linear]]:
    """Every adaptable projection under the name that adapter files use, ``layers.<i>.<projection>``."""
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, Layer)
        for name in PROJECTIONS:
            yield f"layers.{index}.{name}", getattr(layer, name)


def quantise(matrix: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Symmetric int8 values of a matrix and their fp32 scales, one per rank; ``axis`` is the other axis."""
    scale = matrix.float().abs().amax(axis).clamp(min=1e-12) / 127
    return (matrix.float() / scale.unsqueeze(axis)).round().to(torch.int8), scale


def pack(decoder: Decoder) -> dict[str, Tensor]:
    """The tensors of an adapter file from the updates a decoder carries."""
    assert decoder.mask_embedding is not None
    tensors = {"mask_embedding": decoder.mask_embedding.detach().float()}
    for name, linear in projections(decoder):
        for update in linear.updates:
            assert isinstance(update, LowRank)
            key = f"{'draft' if update.draft_only else 'shared'}.{name}"
            tensors[f"{key}.a"], tensors[f"{key}.a_scale"] = quantise(update.a.detach(), 1)
            tensors[f"{key}.b"], tensors[f"{key}.b_scale"] = quantise(update.b.detach(), 0)
    return {key: tensor.cpu().contiguous() for key, tensor in tensors.items()}


def save_adapter(path: Path, tensors: Mapping[str, Tensor], info: AdapterInfo) -> None:
    """Write an adapter file, through a temporary name so that no half file is ever left."""
    text = json.dumps(asdict(info), sort_keys=True)
    with replacing(path) as temporary:
        temporary.write_bytes(save(dict(tensors), metadata={"recguide_adapter": text}))


def read_info(path: Path) -> AdapterInfo:
    """The description inside an adapter file; ValueError when it is not one of ours or of another format."""
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("recguide_adapter")
    except SafetensorError as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from error
    if text is None:
        raise InputError(f"{path}: no 'recguide_adapter' metadata; found a safetensors file of another kind")
    return _parsed(path, text)


def _parsed(path: Path, text: str) -> AdapterInfo:
    try:
        fields = json.loads(text)
        if fields.get("format") != FORMAT:
            raise InputError(f"format: found {fields.get('format')!r}, allowed: {FORMAT}")
        return AdapterInfo(**fields)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: recguide_adapter: {error}") from error


def resolve_adapter(name: str) -> Path:
    """An adapter file by path, or a shipped one by its name."""
    for path in (Path(name), SHIPPED / f"{name}.safetensors"):
        if path.is_file():
            return path
    shipped = sorted(path.stem for path in SHIPPED.glob("*.safetensors"))
    raise InputError(f"adapter {name!r}: no such file, and the shipped ones are {shipped}")


def load_adapter(decoder: Decoder, path: Path, weights_sha256: str, merge: bool = True) -> AdapterInfo:
    """Merge the shared update into the weights, attach the draft update, and set the mask token and the draft shift.

    With ``merge`` False the shared update stays apart too, and both are in fp32: to be trained further. Raises
    ValueError when the adapter belongs to other base weights, or its tensors do not fit the decoder.
    """
    info = read_info(path)
    if info.base_weights_sha256 != weights_sha256:
        raise InputError(
            f"{path}: made for {info.base_model} with weights {info.base_weights_sha256[:12]}, "
            f"but the loaded weights are {weights_sha256[:12]}"
        )
    attach(decoder, info, read_tensors(path), path, merge)
    return info


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of an adapter file, as :func:`pack` makes them."""
    with safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - a safe_open is not iterable


def attach(decoder: Decoder, info: AdapterInfo, tensors: Mapping[str, Tensor], path: Path, merge: bool = True) -> None:
    """Give a decoder the updates of an adapter; every tensor must be used and none may be missing."""
    left = dict(tensors)
    try:
        decoder.config = replace(decoder.config, mask_id=info.mask_id, draft_shift=info.draft_shift)
        with torch.no_grad():
            like = decoder.embed_tokens if merge else torch.empty(0, device=decoder.device)
            decoder.mask_embedding = nn.Parameter(left.pop("mask_embedding").to(like))
            for name, linear in projections(decoder):
                if info.shared_rank:
                    a, b = take_update(left, f"shared.{name}")
                    if merge:
                        linear.weight.add_((b @ a).to(linear.weight))
                    else:
                        linear.updates.append(LowRank(a.to(like), b.to(like), draft_only=False))
                if info.draft_rank:
                    a, b = take_update(left, f"draft.{name}")
                    linear.updates.append(LowRank(a.to(like), b.to(like), draft_only=True))
    except (KeyError, RuntimeError) as error:
        raise InputError(f"{path}: does not fit {decoder.config.name}: {error}") from error
    if left:
        raise InputError(f"{path}: tensors left over: {sorted(left)[:4]}")


def take_update(tensors: dict[str, Tensor], key: str) -> tuple[Tensor, Tensor]:
    """An update out of the tensors of a file, in fp32; KeyError where it is not among them."""
    a = tensors.pop(f"{key}.a").float() * tensors.pop(f"{key}.a_scale")[:, None]
    b = tensors.pop(f"{key}.b").float() * tensors.pop(f"{key}.b_scale")[None, :]
    return a, b


@torch.no_grad()
def merge_drafts(decoder: Decoder) -> None:
    """Keep a copy of each weight that drafts change, with their updates merged into it, for forwards that only draft.

    Such a forward has one product a projection then, not three. Forwards that verify beside it add updates as before.
    """
    for _, linear in projections(decoder):
        updates = [update for update in linear.updates if isinstance(update, LowRank)]
        if any(update.draft_only for update in updates):
            merged = linear.weight.float()
            for update in updates:
                # not in place: in fp32 these are the weights themselves
                merged = torch.addmm(merged, update.b.float(), update.a.float())
            linear.draft_weight = merged.to(linear.weight.dtype)


def merges_drafts(asked: bool | None, device: torch.device) -> bool:
    """Whether a model there is to have its drafts merged; where nobody said it is on a GPU, if any weight has some."""
    return device.type == "cuda" if asked is None else asked


def drafts_merged(decoder: Decoder) -> bool:
    """Whether forwards that only draft have weights of their own."""
    return any(linear.draft_weight is not None for _, linear in projections(decoder))


@torch.no_grad()
def draft_only_decoder(decoder: Decoder) -> Decoder:
    """A copy that drafts alone: updates for draft tokens are merged into its weights. Weights should be fp32."""
    merged = copy.deepcopy(decoder)
    for _, linear in projections(merged):
        for update in linear.updates:
            assert isinstance(update, LowRank)
            linear.weight.add_(update.b @ update.a)
        linear.updates, linear.draft_weight = nn.ModuleList(), None
    return merged
