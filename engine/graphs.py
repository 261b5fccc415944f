"""Work recorded as CUDA graphs."""

from collections.abc import Callable
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
    """``work``, all of whose kernels have run before, as a graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory):
        work()
    return graph
