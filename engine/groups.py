"""Which prompts are recorded together: batches that decode together, and groups that are drafted from together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from recguide.engine.model import ModelConfig
from recguide.engine.parts import Parts
from recguide.traces.datasets import Prompt
from recguide.traces.dense import DenseTrace


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is computed together: larger is faster, until memory runs out. Results do not depend on it."""

    chain_requests: int
    """Requests decoded together, fewer where their keys and values would exceed ``chain_bytes``."""
    chain_bytes: int
    draft_requests: int
    """Requests that share draft forwards: many, so that a forward needs few blocks of each."""
    query_tokens: int
    """Draft tokens in a forward."""
    mask_elements: int
    """Upper bound of requests x tokens x tokens in the pass that reads the chains."""


def sizes_for(device: torch.device) -> Sizes:
    """Sizes for an accelerator, from its memory, or for a CPU."""
    if device.type != "cuda":
        return Sizes(8, 2**30, 8, 512, 2**24)
    return Sizes(256, torch.cuda.get_device_properties(device).total_memory // 4, 64, 8192, 2**28)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt with its chat template, as token ids."""

    prompt: Prompt
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts drafted from together, of any datasets; ``names`` are those of the parts it makes, one a dataset."""

    prompts: Sequence[Encoded]
    names: Mapping[str, str]

    def read(self, parts: Parts) -> dict[str, DenseTrace] | None:
        """The trace of each dataset, or None unless all its parts are there."""
        found: dict[str, DenseTrace] = {}
        for dataset, name in self.names.items():
            ids = [one.prompt.prompt_id for one in self.prompts if one.prompt.dataset == dataset]
            trace = parts.read(name, ids)
            if trace is None:
                return None
            found[dataset] = trace
        return found

    def write(self, parts: Parts, traces: Mapping[str, DenseTrace]) -> None:
        """Keep the trace of each dataset."""
        for dataset, trace in traces.items():
            parts.write(self.names[dataset], trace)


def planned(
    prompts: Sequence[Encoded],
    config: ModelConfig,
    dtype: torch.dtype,
    num_tokens: int,
    sizes: Sizes,
    stems: Mapping[str, str],
) -> list[list[Group]]:
    """Every batch as its groups: a function of the prompts alone, so that a second run finds the parts of the first.

    Each prompt decodes ``num_tokens`` tokens at most. ``stems`` begin the part names of each dataset.
    """
    numbers = count()
    plan: list[list[Group]] = []
    for batch in chain_batches(prompts, config, dtype, num_tokens, sizes):
        plan.append([])
        for members in _draft_groups(batch, num_tokens, sizes):
            number = next(numbers)
            names = {one.prompt.dataset: f"{stems[one.prompt.dataset]}-{number}" for one in members}
            plan[-1].append(Group(members, names))
    return plan


def chain_batches(
    prompts: Sequence[Encoded], config: ModelConfig, dtype: torch.dtype, num_tokens: int, sizes: Sizes
) -> list[list[Encoded]]:
    """Prompts in batches that decode together, of like prompt lengths; ``num_tokens`` is what each decodes at most."""
    slot_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
    batches: list[list[Encoded]] = []
    for one in sorted(prompts, key=lambda one: len(one.ids)):
        # sorted, so this prompt is the longest of the batch it joins
        joined_bytes = (len(batches[-1]) + 1) * (len(one.ids) + num_tokens) * slot_bytes if batches else 0
        if not batches or len(batches[-1]) == sizes.chain_requests or joined_bytes > sizes.chain_bytes:
            batches.append([])
        batches[-1].append(one)
    return batches


def _draft_groups(batch: Sequence[Encoded], num_tokens: int, sizes: Sizes) -> Iterator[Sequence[Encoded]]:
    rest = list(batch)
    while rest:
        members = rest[: sizes.draft_requests]
        # what they may come to, since groups are made before anything is decoded
        width = len(members[-1].ids) + num_tokens
        members = members[: max(1, sizes.mask_elements // width**2)]
        yield members
        del rest[: len(members)]
