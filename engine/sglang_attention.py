"""Our row attention over SGLang's KV pool, as its attention backend; loaded inside of SGLang's processes alone.

Forwards of the plugin bring `BlockForward`, whose rows say what each token sees. Everything else, prefill above all, is
left to the backend that SGLang has for the device: Triton's on GPUs, torch's on the CPU.
"""

from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool
from sglang.srt.server_args import add_attention_backend_choices
from torch import Tensor

from recguide.engine.sglang_inputs import BlockForward
from recguide.kernels.layouts import Rows
from recguide.kernels.row_attention import DTYPES, HEAD_DIMS, row_attention, row_attention_reference
from recguide.kernels.row_plan import RowPlan, Tile, tile_for
from recguide.traces.errors import InputError

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


def paged(buffer: Tensor, page_size: int) -> Tensor:
    """A layer's keys or values ``[slots, heads, dim]`` as ``[pages, page_size, heads, dim]``, on the same memory."""
    pages = buffer.shape[0] // page_size
    return buffer[: pages * page_size].unflatten(0, (pages, page_size))


def write_and_read(
    pool: MHATokenToKVPool, layer: "RadixAttention", slots: Tensor, k: Tensor, v: Tensor, page_size: int
) -> tuple[Tensor, Tensor]:
    """Put keys and values of tokens into their slots; gives all of the layer's, in pages."""
    heads, dim = layer.tp_k_head_num, layer.qk_head_dim
    pool.set_kv_buffer(layer, KVWriteLoc(slots, None), k.view(-1, heads, dim), v.view(-1, heads, dim))
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
    return paged(keys, page_size), paged(values, page_size)


class ReferenceRows(TorchNativeAttnBackend):
    """On the CPU, for tests: plain torch in double precision, one request after the other."""

    def __init__(self, model_runner: "ModelRunner") -> None:
        super().__init__(model_runner)
        self.page_size: int = model_runner.page_size

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
        keys, values = write_and_read(self.token_to_kv_pool, layer, forward_batch.out_cache_loc, k, v, self.page_size)
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out, _ = row_attention_reference(q, keys, values, block.rows, layer.scaling)
        # tokens that fill a shape up are of no request
        return out.nan_to_num(0.0).to(q.dtype).flatten(1)


class RowPlans:
    """Plans of row attention, one for each size of forward, and where results go."""

    def __init__(self, heads: tuple[int, int], head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        if head_dim not in HEAD_DIMS or dtype not in DTYPES:
            raise InputError(
                f"--attention-backend {NAME}: heads of {head_dim} and keys in {dtype}; "
                f"allowed: {HEAD_DIMS}, {', '.join(map(str, DTYPES))}"
            )
        self.heads, self.head_dim, self.dtype, self.device = heads, head_dim, dtype, device
        self._plans: dict[tuple[int, int], RowPlan] = {}
        self._parts: dict[Tile, tuple[Tensor, Tensor]] = {}
        self._out: dict[int, Tensor] = {}

    def plan(self, rows: Rows) -> RowPlan:
        """The plan of forwards with so many requests and tokens. Results in parts are large: a tile's plans share."""
        key = rows.num_requests, rows.visible.shape[0]
        if key not in self._plans:
            tile = tile_for(-(-key[1] // key[0]) * (self.heads[0] // self.heads[1]), self.head_dim, self.dtype)
            plan = RowPlan(*key, self.heads, self.head_dim, self.device, tile)
            plan.partial, plan.partial_lse = self._parts.setdefault(tile, (plan.partial, plan.partial_lse))
            self._plans[key] = plan
        return self._plans[key]

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, rows: Rows, scale: float) -> Tensor:
        """Attention ``[tokens, heads * dim]``. Tokens of no request get something finite: what was there before."""
        out = self._out.get(len(q))
        if out is None:
            out = self._out[len(q)] = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        return row_attention(q, keys, values, rows, self.plan(rows), scale=scale, out=out).flatten(1)
