"""Times of single kernels as a forward meets them: replayed from a CUDA graph, with nothing left in the L2 cache."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.engine.clocks import device_seconds, wall_seconds
from recguide.engine.graphs import recorded, run_aside
from recguide.engine.profiling import summary

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Effort:
    """Calls in a graph and replays of it, fewer where a call takes long; CPUs time every call of as many."""

    calls: int = 16
    replays: int = 7
    graph_s: float = 4e-3

    def for_calls_of(self, once_s: float) -> "Effort":
        """The same with no more calls in a graph than fill ``graph_s``, but one."""
        calls = max(1, min(self.calls, int(self.graph_s / max(once_s, 1e-9))))
        return Effort(calls, self.replays if calls > 1 else min(self.replays, 3), self.graph_s)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this machine was seen to reach, in the same run: bytes a second of a copy, read and written counted both,
    and operations a second of a matrix product of random bfloat16."""

    copy_bytes_s: float
    matmul_flop_s: float

    def floor_s(self, num_bytes: float, flop: float) -> float:
        """The least seconds for so many bytes and operations."""
        return max(num_bytes / self.copy_bytes_s, flop / self.matmul_flop_s)


def seconds(run: Run, effort: Effort, device: torch.device) -> tuple[float, float]:
    """Median seconds of one call, and half the distance between the quartiles over the replays.

    On a GPU, graphs hold the calls, each behind a read of more than the L2 cache holds, and reads alone in the same
    number: the difference is the calls'. What is read leaves nothing to be written back, as a write would.
    """
    if device.type != "cuda":
        return spread_of([wall_seconds(run) for _ in range(effort.calls)])
    flushed = torch.ones(2**26, device=device)
    into = torch.empty((), device=device)

    def flush() -> None:
        torch.amax(flushed, 0, out=into)

    def both() -> None:
        flush()
        run()

    effort = effort.for_calls_of(device_seconds(run))
    with_calls, without = _captured(both, effort.calls), _captured(flush, effort.calls)
    found = [(_replay_s(with_calls) - _replay_s(without)) / effort.calls for _ in range(effort.replays)]
    return spread_of(found)


def hot_seconds(run: Run, effort: Effort) -> float:
    """The same on a GPU without those reads: small launches find their inputs in the L2 cache."""
    effort = effort.for_calls_of(device_seconds(run))
    graph = _captured(run, effort.calls)
    return spread_of([_replay_s(graph) / effort.calls for _ in range(effort.replays)])[0]


def ceilings(device: torch.device) -> Ceilings:
    """Measured on 2 GiB and 8192 x 8192 x 8192; on a CPU on less, for the form's sake."""
    gpu = device.type == "cuda"
    source = torch.empty(2**30 if gpu else 2**20, dtype=torch.int16, device=device)
    target = torch.empty_like(source)
    size = 8192 if gpu else 256
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    product = torch.empty_like(a)
    copy_s = _repeated_s(lambda: target.copy_(source), gpu)
    matmul_s = _repeated_s(lambda: torch.mm(a, b, out=product), gpu)
    return Ceilings(2 * source.nbytes / copy_s, 2 * size**3 / matmul_s)


def _repeated_s(run: Run, gpu: bool) -> float:
    """Median seconds of one of ten calls, after three."""
    for _ in range(3):
        run()
    return statistics.median(device_seconds(run) if gpu else wall_seconds(run) for _ in range(10))


def _captured(run: Run, calls: int) -> torch.cuda.CUDAGraph:
    # no call's output outlives it, or the next one would get other memory
    def repeated() -> None:
        for _ in range(calls):
            run()

    run_aside(run)
    graph = recorded(repeated)
    graph.replay()
    return graph


def _replay_s(graph: torch.cuda.CUDAGraph) -> float:
    return device_seconds(graph.replay)


def spread_of(samples: Sequence[float]) -> tuple[float, float]:
    """Their median, and half the distance between their quartiles."""
    found = summary(samples)
    return found.median_s, found.spread_s


def largest_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference of two outputs; infinity where one of them is no number."""
    return float((found.double() - expected).abs().nan_to_num(torch.inf).max())
