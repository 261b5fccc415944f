"""The backend of GPUs: the row kernel for forwards of the plugin, and SGLang's Triton backend for prefill."""

from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from torch import Tensor

from recguide.engine.row_plans import RowPlans
from recguide.engine.sglang_attention import RowsBackend
from recguide.engine.sglang_inputs import BlockForward
from recguide.kernels.layouts import Rows

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


class KernelRows(RowsBackend, TritonAttnBackend):
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

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, rows: Rows, scale: float) -> Tensor:
        """By the kernel."""
        return self.plans.attend(q, keys, values, rows, scale)
