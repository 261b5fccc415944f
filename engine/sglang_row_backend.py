"""The backend of GPUs: the row kernel for forwards of the plugin, and SGLang's Triton backend for prefill."""

from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from torch import Tensor

from recguide.engine.row_plans import RowPlans
from recguide.engine.sglang_attention import write_and_read
from recguide.engine.sglang_inputs import BlockForward

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


class KernelRows(TritonAttnBackend):
    """One launch for all rows of all requests, planned on the device: a CUDA graph reads the layout of the day."""

    def __init__(self, model_runner: "ModelRunner", *others: object, **named: object) -> None:
        super().__init__(model_runner, *others, **named)
        device, dtype = torch.device(model_runner.device), model_runner.kv_cache_dtype
        heads = self.num_head, self.num_kv_head
        self.plans = RowPlans(heads, model_runner.model_config.head_dim, dtype, device)

    def init_forward_metadata(self, forward_batch: "ForwardBatch") -> None:
        """Outside of graphs: both of the below."""
        if isinstance(forward_batch.spec_info, BlockForward):
            self.init_forward_metadata_in_graph(forward_batch)
        else:
            super().init_forward_metadata(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch: "ForwardBatch", in_capture: bool = False) -> None:
        """Nothing for forwards of the plugin: their rows lie on the device already."""
        if not isinstance(forward_batch.spec_info, BlockForward):
            super().init_forward_metadata_out_graph(forward_batch, in_capture)

    def init_forward_metadata_in_graph(self, forward_batch: "ForwardBatch") -> None:
        """Plan the rows, once for all layers."""
        block = forward_batch.spec_info
        if isinstance(block, BlockForward):
            self.plans.plan(block.rows).update(block.rows)
        else:
            super().init_forward_metadata_in_graph(forward_batch)

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: "RadixAttention",
        forward_batch: "ForwardBatch",
        save_kv_cache: bool = True,
        **others: object,
    ) -> Tensor:
        """Attention ``[tokens, heads * dim]``."""
        block = forward_batch.spec_info
        if not isinstance(block, BlockForward):
            extended: Tensor = super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **others)
            return extended
        slots = forward_batch.out_cache_loc
        keys, values = write_and_read(self.token_to_kv_pool, layer, slots, k, v, self.page_size)
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        return self.plans.attend(q, keys, values, block.rows, layer.scaling)
