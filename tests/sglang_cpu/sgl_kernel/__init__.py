"""What SGLang's CPU engine calls of sgl-kernel for a dense text model, in torch.

The CPU build of sgl-kernel is on no package index. Written from the calls in SGLang 0.5.17: it serves tests of the
scheduler, the caches and our plugin, and says nothing of sgl-kernel itself. Functions beyond these raise.
"""

import ctypes
from collections.abc import Callable

import torch

__version__ = "0.4.5"


def _spans(rows, starts, ends):
    return zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)


def assign_req_to_token_pool_cpu(rows, table, starts, ends, slots, *_):
    """Write each request's new slots into its row of the table, one request's after the other's."""
    done = 0
    for row, start, end in _spans(rows, starts, ends):
        table[row, start:end] = slots[done : done + end - start].to(table.dtype)
        done += end - start


def assign_extend_cache_locs_cpu(rows, table, starts, ends, slots, *_):
    """Read them from there."""
    done = 0
    for row, start, end in _spans(rows, starts, ends):
        slots[done : done + end - start] = table[row, start:end].to(slots.dtype)
        done += end - start


def copy_all_layer_kv_cache_cpu(addresses, strides, to, source):
    """Copy slots of the caches at these addresses, all read before any is written."""
    for address, stride in zip(addresses.tolist(), strides.tolist(), strict=True):
        slots = [ctypes.string_at(address + slot * stride, stride) for slot in source.tolist()]
        for slot, values in zip(to.tolist(), slots, strict=True):
            ctypes.memmove(address + slot * stride, values, stride)


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} is not among the functions written here")

    return refuse


def _rotate(values, cos, sin, neox):
    rotated, rest = values[..., : 2 * cos.shape[-1]], values[..., 2 * cos.shape[-1] :]
    halves = rotated.chunk(2, dim=-1) if neox else (rotated[..., ::2], rotated[..., 1::2])
    turned = (halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin)
    joined = torch.cat(turned, dim=-1) if neox else torch.stack(turned, dim=-1).flatten(-2)
    return torch.cat((joined, rest), dim=-1)


def _rotary_embedding(positions, query, key, head_size, cos_sin, is_neox):
    cos, sin = cos_sin[positions.flatten()][:, None].to(query.dtype).chunk(2, dim=-1)
    heads = [values.reshape(positions.numel(), -1, head_size) for values in (query, key)]
    return tuple(
        _rotate(each, cos, sin, is_neox).reshape(values.shape) for each, values in zip(heads, (query, key), strict=True)
    )


_library = torch.library.Library("sgl_kernel", "DEF")
_library.define(
    "rotary_embedding_cpu(Tensor positions, Tensor query, Tensor key, int head_size, Tensor cos_sin, bool is_neox)"
    " -> (Tensor, Tensor)"
)
_library.impl("rotary_embedding_cpu", _rotary_embedding, "CPU")
_library.define("init_cpu_threads_env(str cores) -> str")
_library.impl("init_cpu_threads_env", lambda cores: "", "CompositeExplicitAutograd")
