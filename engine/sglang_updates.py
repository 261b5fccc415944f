"""Which low-rank updates a served model gets, before SGLang has made it, and their numbers once it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from recguide.engine.adapters import PROJECTIONS, read_info, read_tensors, resolve_adapter, take_update
from recguide.engine.checkpoints import read_weights, weights_sha256
from recguide.engine.configs import read_config
from recguide.engine.hub import cached_folder
from recguide.engine.lora import RELEASED, WEIGHTS, is_lora, lora_rank, read_lora
from recguide.engine.model import ModelConfig
from recguide.traces.errors import InputError


@dataclass(frozen=True, slots=True)
class Read:
    """The numbers of an adapter, whole, by projection (``layers.<i>.<projection>``)."""

    draft: Mapping[str, tuple[Tensor, Tensor]]
    shared: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    mask_embedding: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """What a model needs room for."""

    folder: Path
    """The model's own."""
    config: ModelConfig
    adapter: Path | None
    mask_id: int
    draft_shift: int
    draft_ranks: Mapping[str, int]
    """Rank of the updates of draft tokens, by the kind of projection; kinds without one are left out."""
    dtype: torch.dtype | None = None
    """Of those updates; None for that of the weights."""
    embeds_mask: bool = False
    """Whether the mask token has an input embedding of its own."""

    def read(self) -> Read:
        """The adapter's numbers. InputError for damaged files, and for those that were made for other weights."""
        if self.adapter is None:
            return Read({})
        return self._of_lora(self.adapter) if is_lora(self.adapter) else self._of_file(self.adapter)

    def _of_lora(self, folder: Path) -> Read:
        config = self.config
        sides = read_lora(folder, config.num_layers, config.num_heads * config.head_dim, config.hidden_size)
        return Read({f"layers.{index}.out": pair for index, pair in enumerate(sides)})

    def _of_file(self, path: Path) -> Read:
        info, tensors = read_info(path), read_tensors(path)
        found = weights_sha256(read_weights(self.folder, self.config).tensors)
        if found != info.base_weights_sha256:
            raise InputError(
                f"{path}: made for {info.base_model} with weights {info.base_weights_sha256[:12]}, "
                f"but those of {self.folder} are {found[:12]}"
            )
        names = [f"layers.{index}.{name}" for index in range(self.config.num_layers) for name in PROJECTIONS]
        try:
            draft, shared = (
                {name: take_update(tensors, f"{kind}.{name}") for name in names if rank}
                for kind, rank in (("draft", info.draft_rank), ("shared", info.shared_rank))
            )
            return Read(draft, shared, tensors["mask_embedding"])
        except KeyError as error:
            raise InputError(f"{path}: does not fit {self.config.name}: {error} is missing") from error


def adapter_plan(model: str, given: str | None) -> AdapterPlan:
    """What a model, by its directory or id, and the adapter that is asked for need.

    ``given`` is a file of `recguide adapt`, a PEFT folder, or a shipped adapter by its name; None is the adapter in the
    model's own directory if there is one. InputError for what is not there or malformed.
    """
    folder = Path(model) if Path(model).is_dir() else cached_folder(model)
    config = read_config(folder)
    adapter = _adapter(folder, given)
    if adapter is None:
        return AdapterPlan(folder, config, None, config.mask_id, config.draft_shift, {})
    if is_lora(adapter):
        ranks = {"out": lora_rank(adapter)}
        # as it is stored; one that is to be drawn is as our own engine draws it
        dtype = torch.float32 if (adapter / WEIGHTS).exists() else None
        return AdapterPlan(folder, config, adapter, config.mask_id, config.draft_shift, ranks, dtype)
    info = read_info(adapter)
    ranks = dict.fromkeys(PROJECTIONS, info.draft_rank) if info.draft_rank else {}
    return AdapterPlan(folder, config, adapter, info.mask_id, info.draft_shift, ranks, embeds_mask=True)


def _adapter(folder: Path, given: str | None) -> Path | None:
    if given is None:
        return folder / RELEASED if is_lora(folder / RELEASED) else None
    for path in (Path(given), folder / given):
        if is_lora(path):
            return path
    return resolve_adapter(given)
