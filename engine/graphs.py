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
    """``work``, all of whose kernels have run before, as a graph."""
    return Recording(lambda cut: work(), memory).graphs[0]


class Recording:
    """``work``, all of whose kernels have run before, as graphs that follow each other.

    ``work`` calls what it is given wherever one is to end: the device begins with it while the host launches the next.
    To launch a forward of 400 kernels takes the host as long as the device needs for three of its layers.

    Unlike ``torch.cuda.graph`` it neither collects garbage nor gives cached memory back, which took longer than the
    recording itself. Garbage waits for its end: what is freed meanwhile may be what no recording permits.
    """

    def __init__(self, work: Callable[[Callable[[], None]], object], memory: "_POOL_HANDLE | None" = None) -> None:
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._memory = memory
        collecting = gc.isenabled()
        torch.cuda.synchronize()
        gc.disable()
        try:
            with torch.cuda.stream(_recording_stream(torch.cuda.current_device())):
                self._begin()
                try:
                    work(self._cut)
                finally:
                    self.graphs[-1].capture_end()
        finally:
            if collecting:
                gc.enable()

    def _begin(self) -> None:
        self.graphs.append(torch.cuda.CUDAGraph())
        self.graphs[-1].capture_begin(pool=self._memory)

    def _cut(self) -> None:
        self.graphs[-1].capture_end()
        # all of them share memory, for what one leaves the next one takes up
        self._memory = self._memory or self.graphs[0].pool()
        self._begin()

    def replay(self) -> None:
        """Launch all of it."""
        for graph in self.graphs:
            graph.replay()


@lru_cache(maxsize=8)
def _recording_stream(device: int) -> torch.cuda.Stream:
    """One for all recordings: matrix products set memory aside for every stream."""
    return torch.cuda.Stream(device)
