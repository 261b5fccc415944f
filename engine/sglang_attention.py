"""Our row attention over SGLang's KV pool, as its attention backend; loaded inside of SGLang's processes alone.

Forwards of the plugin bring `BlockForward`, whose rows say what each token sees. Everything else, prefill above all, is
left to the backend that SGLang has for the device: Triton's on GPUs, torch's on the CPU.
"""

from typing import TYPE_CHECKING

from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool
from sglang.srt.server_args import add_attention_backend_choices
from torch import Tensor

from recguide.engine.row_plans import paged
from recguide.engine.sglang_inputs import BlockForward
from recguide.kernels.layouts import Rows
from recguide.kernels.row_attention import row_attention_reference

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

NAME = "recguide"
"""`--attention-backend recguide`, on GPUs."""


def register_backends() -> None:
    """Make the backend known to SGLang.

    On the CPU it stands in for `torch_native`: SGLang takes a name that it does not know for one that runs on Triton.
    """

    @register_attention_backend("torch_native")
    def on_cpu(runner: "ModelRunner") -> AttentionBackend:
        return ReferenceRows(runner)

    @register_attention_backend(NAME)
    def on_gpu(runner: "ModelRunner") -> AttentionBackend:
        # it asks for a GPU as it is loaded
        from recguide.engine.sglang_row_backend import KernelRows

        return KernelRows(runner)

    add_attention_backend_choices([NAME])


class RowsBackend(AttentionBackend):
    """Forwards of the plugin by their rows; stands in front of the backend that does all others."""

    page_size: int
    token_to_kv_pool: MHATokenToKVPool

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, rows: Rows, scale: float) -> Tensor:
        """Attention ``[tokens, heads * dim]`` over keys and values in pages; finite for tokens of no request."""
        raise NotImplementedError

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
        """Attention ``[tokens, heads * dim]`` of a forward of ours, or what SGLang computes for one of its own."""
        block = forward_batch.spec_info
        if not isinstance(block, BlockForward):
            extended: Tensor = super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **others)
            return extended
        keys, values = self._write_and_read(layer, forward_batch.out_cache_loc, k, v)
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        return self.attend(q, keys, values, block.rows, layer.scaling)

    def _write_and_read(self, layer: "RadixAttention", slots: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put keys and values of tokens into their slots; gives all of the layer's, in pages."""
        pool, heads, dim = self.token_to_kv_pool, layer.tp_k_head_num, layer.qk_head_dim
        pool.set_kv_buffer(layer, KVWriteLoc(slots, None), k.view(-1, heads, dim), v.view(-1, heads, dim))
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        return paged(keys, self.page_size), paged(values, self.page_size)


class ReferenceRows(RowsBackend, TorchNativeAttnBackend):
    """On the CPU, for tests: plain torch in double precision, one request after the other."""

    def __init__(self, model_runner: "ModelRunner") -> None:
        super().__init__(model_runner)
        self.page_size = model_runner.page_size

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, rows: Rows, scale: float) -> Tensor:
        """By the reference."""
        out, _ = row_attention_reference(q, keys, values, rows, scale)
        # tokens that fill a shape up are of no request
        return out.nan_to_num(0.0).to(q.dtype).flatten(1)
