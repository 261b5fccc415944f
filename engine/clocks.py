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
        self.seconds: list[float] = []
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._spare: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def run(self, work: Callable[[], None]) -> None:
        """Do ``work`` and time it."""
        if not self.on_gpu:
            started = time.perf_counter()
            work()
            self.seconds.append(time.perf_counter() - started)
            return
        pair = self._spare.pop() if self._spare else (_event(), _event())
        pair[0].record()
        work()
        pair[1].record()
        self.events.append(pair)

    def first(self) -> float:
        """Seconds of the first run since the last taking; the device must have finished."""
        if self.on_gpu:
            self._measure(1)
        return self.seconds[0]

    def take(self) -> float:
        """Seconds of all runs since the last taking; the device must have finished."""
        if self.on_gpu:
            self._measure(len(self.events))
        total, self.seconds = sum(self.seconds), []
        return total

    def _measure(self, count: int) -> None:
        """Know the seconds of the next few runs, and use their events again."""
        for pair in self.events[:count]:
            self.seconds.append(pair[0].elapsed_time(pair[1]) * 1e-3)
            self._spare.append(pair)
        del self.events[:count]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
