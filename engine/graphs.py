"""Work recorded as CUDA graphs."""

import gc
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


def captured(work: Callable[[], object], memory: "_POOL_HANDLE | None" = None) -> torch.cuda.CUDAGraph:
    """``work`` as a graph, in memory that other graphs share; it runs once before."""
    run_aside(work)
    return recorded(work, memory)


def run_aside(work: Callable[[], object]) -> None:
    """Run it on a stream of its own: what the first run of a kernel sets up must not be recorded."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)


def recorded(work: Callable[[], object], memory: "_POOL_HANDLE | None" = None) -> torch.cuda.CUDAGraph:
    """``work``, all of whose kernels have run before, as a graph.

    Unlike ``torch.cuda.graph`` it neither collects garbage nor gives cached memory back, which took longer than the
    recording itself. Garbage waits for its end: what is freed meanwhile may be what no recording permits.
    """
    graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
    torch.cuda.synchronize()
    gc.disable()
    try:
        with torch.cuda.stream(_recording_stream(torch.cuda.current_device())):
            graph.capture_begin(pool=memory)
            try:
                work()
            finally:
                graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    return graph


@lru_cache(maxsize=8)
def _recording_stream(device: int) -> torch.cuda.Stream:
    """One for all recordings: matrix products set memory aside for every stream."""
    return torch.cuda.Stream(device)
