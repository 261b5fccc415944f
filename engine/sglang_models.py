"""The models that SGLang runs for the plugin: its own Llama and Ministral 3, with our draft adapters on them.

Without the plugin's algorithm they compute what SGLang's do. Loaded inside of SGLang's processes alone.
"""

import copy
import gc
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.linear import LinearBase
from sglang.srt.models.llama import LlamaForCausalLM, LlamaModel
from sglang.srt.models.ministral3 import Ministral3ForCausalLM, Ministral3Model
from sglang.srt.models.registry import ModelRegistry
from sglang.srt.runtime_context import get_parallel, get_server_args
from torch import Tensor, nn

from recguide.engine.checkpoints import HEAD, HEADS, HEADS_BY_PREFIX, OTHER_PARTS, RECOMPUTED
from recguide.engine.sglang_adapters import Cut, DraftUpdate, Routing, cut_of, merge
from recguide.engine.sglang_config import ARCHITECTURE, register_configs
from recguide.engine.sglang_options import read_options
from recguide.engine.sglang_updates import AdapterPlan, adapter_plan
from recguide.traces.checks import require

if TYPE_CHECKING:
    from sglang.srt.layers.quantization.base_config import QuantizationConfig
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, PPProxyTensors
    from transformers import PretrainedConfig

ALGORITHM = "RECGUIDE"
PERIOD = 16384
"""Positions up to which queries are not scaled, where a configuration does not say."""
# where our projections are in a layer of SGLang's
_PLACES = {
    "qkv": "self_attn.qkv_proj",
    "out": "self_attn.o_proj",
    "gate_up": "mlp.gate_up_proj",
    "down": "mlp.down_proj",
}


class DraftingLlama(LlamaModel):
    """SGLang's decoder with routed updates, and an embedding of the mask token's own."""

    plan: AdapterPlan | None = None

    def adapt(self, plan: AdapterPlan, hidden_size: int, merge_drafts: bool) -> None:
        """Make room for an adapter; its numbers come behind the weights."""
        self.plan, self.routing, self.merge_drafts = plan, Routing(), merge_drafts
        self.cuts = {name: self._cut(name) for name in self._names()}
        updates = {name: self._update(name, rank) for name in self.cuts if (rank := self._rank(name))}
        self.updates = nn.ModuleDict({name.replace(".", "_"): update for name, update in updates.items()})
        self.mask_embedding: nn.Parameter | None = None
        if plan.embeds_mask:
            self.mask_embedding = nn.Parameter(torch.zeros(hidden_size), requires_grad=False)

    def _names(self) -> list[str]:
        return [f"layers.{index}.{name}" for index in range(self.start_layer, self.end_layer) for name in _PLACES]

    def _rank(self, name: str) -> int:
        assert self.plan is not None
        return self.plan.draft_ranks.get(name.split(".")[2], 0)

    def _update(self, name: str, rank: int) -> DraftUpdate:
        assert self.plan is not None
        dtype = self.plan.dtype or torch.get_default_dtype()
        return DraftUpdate(self.projection(name), rank, self.cuts[name], self.routing, dtype)

    def projection(self, name: str) -> LinearBase:
        """SGLang's projection by our name, ``layers.<i>.<projection>``."""
        _, index, kind = name.split(".")
        return self.layers[int(index)].get_submodule(_PLACES[kind])

    def _cut(self, name: str) -> Cut:
        assert self.plan is not None
        config, kind = self.plan.config, name.split(".")[2]
        queries, keys = ((heads * config.head_dim, heads) for heads in (config.num_heads, config.num_kv_heads))
        parts = (queries, keys, keys) if kind == "qkv" else ((config.intermediate_size,) * 2,) * 2
        parallel = get_parallel()
        return cut_of(self.projection(name), parts, parallel.tp_rank, parallel.tp_size)

    @torch.no_grad()
    def load_adapter(self) -> None:
        """Read the adapter: what acts on every token goes into the weights, which have just been loaded."""
        if self.plan is None:
            return
        read = self.plan.read()
        for name in self.cuts:
            if name in read.shared:
                merge(self.projection(name), self.cuts[name], *read.shared[name])
            if name in read.draft:
                update = self.updates[name.replace(".", "_")]
                assert isinstance(update, DraftUpdate)
                update.load(*read.draft[name])
        if self.mask_embedding is not None:
            assert read.mask_embedding is not None
            self.mask_embedding.copy_(read.mask_embedding)
        self.merge_updates()

    @torch.no_grad()
    def merge_updates(self) -> None:
        """Keep weights with the updates merged, if asked to, once both have their numbers, drawn ones included."""
        if self.plan is None or not self.merge_drafts:
            return
        for name in filter(self._rank, self.cuts):
            update = self.updates[name.replace(".", "_")]
            assert isinstance(update, DraftUpdate)
            update.merge(self.projection(name))

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: "ForwardBatch",
        input_embeds: Tensor | None = None,
        pp_proxy_tensors: "PPProxyTensors | None" = None,
    ) -> Tensor:
        """Hidden states ``[tokens, hidden]``, as SGLang's own, with the adapter on draft tokens."""
        if self.plan is not None:
            self.routing.follow(forward_batch.spec_info)
            if self.mask_embedding is not None and input_embeds is None:
                masks = (input_ids == self.plan.mask_id)[:, None]
                input_embeds = torch.where(masks, self.mask_embedding, self.embed_tokens(input_ids))
        hidden: Tensor = super().forward(input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors)
        return hidden


class ShortLlama(LlamaModel):
    """What Ministral 3 of SGLang's makes first, all of whose layers it makes anew: with one of them."""

    def __init__(
        self, config: "PretrainedConfig", quant_config: "QuantizationConfig | None" = None, prefix: str = ""
    ) -> None:
        short = copy.copy(config)
        short.num_hidden_layers = 1
        super().__init__(config=short, quant_config=quant_config, prefix=prefix)
        self.config = config


class DraftingMinistral3(DraftingLlama, Ministral3Model, ShortLlama):
    """The same of Ministral 3."""


class LlamaSelfSpeculator(LlamaForCausalLM):
    """Llama and what is built like it, SmolLM2 among them."""

    mask_id: int
    draft_shift: int
    decoder = DraftingLlama

    def _init_model(
        self, config: "PretrainedConfig", quant_config: "QuantizationConfig | None" = None, prefix: str = ""
    ) -> DraftingLlama:
        model = self.decoder(config=config, quant_config=quant_config, prefix=prefix)
        args = get_server_args()
        if args.speculative_algorithm == ALGORITHM:
            plan = adapter_plan(args.model_path, args.speculative_draft_model_path)
            self.mask_id, self.draft_shift = plan.mask_id, plan.draft_shift
            merged = read_options(args.speculative_adaptive_config).merge_drafts
            require(bool(plan.draft_ranks) or not merged, "merge_drafts", True, "false: the model has no draft adapter")
            model.adapt(plan, config.hidden_size, merged)
        return model

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Weights by any of the names that the family is stored under, then the adapter."""
        super().load_weights(renamed(weights))
        self.model.load_adapter()

    def post_load_weights(self) -> None:
        """SGLang asks for it where it draws weights, and so loads none."""
        self.model.merge_updates()


class Ministral3SelfSpeculator(LlamaSelfSpeculator, Ministral3ForCausalLM):
    """Ministral 3 and Nemotron-Labs-Diffusion."""

    decoder = DraftingMinistral3

    def _init_model(
        self, config: "PretrainedConfig", quant_config: "QuantizationConfig | None" = None, prefix: str = ""
    ) -> DraftingLlama:
        model = super()._init_model(config, quant_config, prefix)
        if len(model.layers) != config.num_hidden_layers:
            raise RuntimeError(f"SGLang's Ministral 3 keeps {len(model.layers)} layer of {config.num_hidden_layers}")
        free()
        period = getattr(config, "original_max_position_embeddings", PERIOD)
        if (get_server_args().context_length or config.max_position_embeddings) <= period:
            # queries are scaled by 1 up to there: eight launches a layer for nothing
            for layer in model.layers:
                layer.self_attn.llama_4_scaling_beta = None
        return model


def free() -> None:
    """Give back the memory of what SGLang has made and replaced, before it looks how much there is for keys.

    Its weights know who loads them, and so lie in cycles; each layer of Ministral 3 has an attention of Llama's there.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def renamed(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Weights by Llama's names, parts of other jobs left out."""
    prefixes = sorted(filter(None, HEADS_BY_PREFIX), key=len, reverse=True)
    for name, tensor in weights:
        if OTHER_PARTS.intersection(name.split(".")) or name.endswith(RECOMPUTED) or name.startswith("base_model."):
            continue
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        yield (HEAD if name in HEADS else f"model.{name.removeprefix(prefix)}"), tensor


def register_models() -> None:
    """Put them in the place of SGLang's; the family that it does not know is new."""
    register_configs()
    ModelRegistry.models["LlamaForCausalLM"] = LlamaSelfSpeculator
    for name in (ARCHITECTURE, "Ministral3ForCausalLM"):
        ModelRegistry.models[name] = Ministral3SelfSpeculator
