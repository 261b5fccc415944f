"""Forwards through a model of SGLang over its KV pool, padding-free, by CUDA graph replay on a GPU.

They are those of our own engine (`engine/forwards.py`) in everything but where hidden states come from: shapes, graphs,
statistics and noise are the same, and so are all the ways that run on them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakSet

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from torch import Tensor

from recguide.engine.adapters import PROJECTIONS
from recguide.engine.forwards import Forwards
from recguide.engine.inputs import Inputs, Shape
from recguide.engine.model import Decoder, Draft, ModelConfig
from recguide.engine.pages import PagedCache
from recguide.engine.requests import Live
from recguide.engine.scores import Scores
from recguide.engine.sglang_inputs import BlockForward, PooledInputs
from recguide.engine.sizes import PLAIN, FillSizes, fill_sizes

_KNOWN: "WeakSet[SglangForwards]" = WeakSet()


def join_all() -> None:
    """Let what SGLang launches from now on run behind all forwards of this process that run ahead."""
    for forwards in _KNOWN:
        forwards.join()


@dataclass(frozen=True, slots=True)
class SglangBackbone:
    """SGLang's model in the place of our own decoder."""

    runner: Any
    """SGLang's ``ModelRunner``."""
    config: ModelConfig
    gpus: int = 1
    """That share each layer."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.head.device

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        return self.head.dtype

    @property
    def layers(self) -> list[list[Tensor]]:
        """The weights ``[out, in]`` of each layer's products; none where SGLang has them in another form."""
        model = self.runner.model.model
        which = range(model.start_layer, model.end_layer)
        linears = [[model.projection(f"layers.{index}.{name}") for name in PROJECTIONS] for index in which]
        layers: list[list[Any]] = [[getattr(linear, "weight", None) for linear in layer] for layer in linears]
        weights = [weight for layer in layers for weight in layer]
        plain = all(weight is not None and weight.dim() == 2 and weight.dtype == self.dtype for weight in weights)
        return layers if plain else []

    @property
    def sizes(self) -> FillSizes:
        """What forwards are filled up to. GPUs that share layers must agree on it, so there nothing moves."""
        layers = self.layers if self.device.type == "cuda" and self.gpus == 1 else []
        return fill_sizes(layers, self.head) if layers else PLAIN

    @property
    def head(self) -> Tensor:
        """The output projection ``[vocabulary, hidden]``, or this GPU's part of it."""
        weight: Tensor = self.runner.model.lm_head.weight
        return weight if self.gpus > 1 else weight[: self.config.vocab_size]


@dataclass(frozen=True, slots=True)
class SglangPool:
    """SGLang's pages in the place of our own cache."""

    page_size: int


class SglangForwards(Forwards):
    """Runs forwards of SGLang's model; pieces are of requests that are ``SglangLive``."""

    def __init__(self, backbone: SglangBackbone, page_size: int, graphs: bool) -> None:
        self.runner, self.gpus = backbone.runner, backbone.gpus
        self.req_to_token: Tensor = self.runner.req_to_token_pool.req_to_token
        most_pages = self.req_to_token.shape[1] // page_size
        stands_in = cast(Decoder, backbone), cast(PagedCache, SglangPool(page_size))
        super().__init__(*stands_in, graphs, None, most_pages, backbone.sizes)
        self._stream = torch.cuda.Stream(self.device) if self.cuda else None
        _KNOWN.add(self)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is launched in here runs on a stream of its own, behind all that SGLang has launched so far.

        SGLang waits for its stream at the end of every step, and so for nothing that runs ahead.
        """
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let what SGLang launches from now on run behind all of that."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _new_inputs(self, shape: Shape) -> Inputs:
        return PooledInputs(shape, self.device, self.req_to_token, self.cache.page_size)

    def hidden(self, inputs: Inputs, draft: dict[str, Draft]) -> Tensor:
        """Hidden states ``[1, tokens, hidden]`` of SGLang's model."""
        assert isinstance(inputs, PooledInputs)
        batch = self._batch(inputs)
        backend = self.runner.attn_backend
        with forward_context(ForwardContext(attn_backend=backend)):
            backend.init_forward_metadata_in_graph(batch)
            hidden: Tensor = self.runner.model.model(batch.input_ids, batch.positions, batch)
        return hidden[None]

    def _batch(self, inputs: PooledInputs) -> ForwardBatch:
        """SGLang's description of the forward."""
        positions = inputs["positions"].long()
        told = BlockForward(inputs.rows, inputs["gate"].bool(), inputs.shape.draft, positions)
        return ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=inputs.shape.requests,
            input_ids=self._tokens(inputs).long(),
            req_pool_indices=inputs["pool"],
            seq_lens=inputs["prefix"],
            out_cache_loc=inputs.slots,
            seq_lens_sum=0,
            positions=positions,
            spec_info=told,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )

    def _capture(self, inputs: Inputs) -> torch.cuda.CUDAGraph:
        if self.gpus == 1:
            return super()._capture(inputs)
        from sglang.srt.distributed.parallel_state import graph_capture

        # what GPUs exchange has to know that it is recorded
        with graph_capture():
            return super()._capture(inputs)

    def _logits(self, hidden: Tensor) -> Tensor:
        part = super()._logits(hidden)
        if self.gpus == 1:
            return part
        from sglang.srt.distributed import tensor_model_parallel_all_gather

        whole: Tensor = tensor_model_parallel_all_gather(part)
        return whole[:, : self.decoder.config.vocab_size].contiguous()

    @torch.no_grad()
    def of_prefill(self, logits: Tensor, lives: Sequence[Live]) -> Scores:
        """What the logits ``[requests, vocabulary]`` behind these requests' last known tokens say."""
        noise = None
        if any(live.wish.temperature > 0 for live in lives):
            wishes = [live.wish for live in lives]
            heat = torch.tensor([wish.temperature for wish in wishes], device=self.device)
            numbers = [[wish.seed for wish in wishes], [live.known for live in lives]]
            seeds, about = torch.tensor(numbers, device=self.device)
            noise = heat, seeds, about
        return self.read(self._packed(self._picked(logits, noise)))
