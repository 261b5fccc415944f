"""Seconds that work takes: by the GPU's own clock, or by this process's."""

import time
from collections.abc import Callable

import torch


def device_seconds(work: Callable[[], object], count: int = 1) -> float:
    """Seconds of one of so many runs on the GPU, one right behind the other, which are waited for."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / count


def wall_seconds(work: Callable[[], object], count: int = 1) -> float:
    """Seconds of one of so many runs, where work is done when it returns."""
    started = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - started) / count


class Stopwatch:
    """The time that runs take, on a GPU by its own clock, so that nothing waits for them."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.seconds = 0.0
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._spare: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def run(self, work: Callable[[], None]) -> None:
        """Do ``work`` and time it."""
        if not self.on_gpu:
            started = time.perf_counter()
            work()
            self.seconds += time.perf_counter() - started
            return
        pair = self._spare.pop() if self._spare else (_event(), _event())
        pair[0].record()
        work()
        pair[1].record()
        self.events.append(pair)

    def take(self) -> float:
        """Seconds since the last taking; the device must have finished."""
        total: float = self.seconds + sum(start.elapsed_time(end) * 1e-3 for start, end in self.events)
        self._spare += self.events
        self.seconds, self.events = 0.0, []
        return total


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
