"""How long a GPU has nothing to do between the forwards of rounds, from the times of its kernels as CUPTI has them."""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from recguide.engine.device_round import DeviceRounds
from recguide.kernels import round_state as rs

Span = tuple[float, float, str]
"""Start, end and name of a kernel, in microseconds."""
BEHIND = ("_statistics_kernel", "_advance_kernel")
"""What runs behind a forward."""


def idle_of(runner: DeviceRounds, toy: bool) -> dict[str, Any]:
    """Idle time around the kernels behind each forward, and the time of a forward, without and with a profiler."""
    launches = 2 if toy else 6
    # two launches to capture and warm up
    for _ in range(2):
        runner.launch(64 + runner.most_tokens * launches * 3)
    wall_us = _wall_us(runner, launches)
    told: dict[str, Any] = {"forward_wall_us": wall_us / (launches * runner.forwards)}
    if not toy:
        told |= gaps(_kernels(runner, launches), runner.forwards)
    state = runner.requests.state
    return told | {"still_running": int((state[:, rs.PHASE] != rs.DONE).sum()), "rounds_done": int(state[0, rs.ROUNDS])}


def _wall_us(runner: DeviceRounds, launches: int) -> float:
    if runner.cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(launches):
        runner.launch(64 + runner.most_tokens * launches * 3)
    if runner.cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e6


def _kernels(runner: DeviceRounds, launches: int) -> list[Span]:
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(launches):
            runner.launch(64 + runner.most_tokens * launches * 3)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    busy = ("kernel", "gpu_memcpy", "gpu_memset")
    spans = [(e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("cat") in busy]
    return sorted(spans)


def gaps(spans: list[Span], forwards: int) -> dict[str, Any]:
    """From the end of each forward to the start of the next: in all, without any kernel, and within one graph."""
    ends = [i for i, span in enumerate(spans) if span[2].startswith(BEHIND[1])]
    between, idle = [], []
    for i in ends[:-1]:
        first = i
        while first and spans[first - 1][2].startswith(BEHIND[0]):
            first -= 1
        until = spans[i + 1][0]
        before = max(end for _, end, _ in spans[max(0, first - 3) : first])
        between.append(until - before)
        idle.append(until - before - _covered(spans[first : i + 1], before, until))
    inside = [x for i, x in enumerate(idle) if (i + 1) % forwards]
    across = [x for i, x in enumerate(idle) if not (i + 1) % forwards]
    total = spans[-1][1] - spans[0][0]
    busy = _covered(spans, spans[0][0], spans[-1][1])
    count = len(spans) / max(1, len(ends))
    return {
        "between_us": statistics.median(between),
        "idle_us": statistics.median(idle),
        "idle_inside_us": statistics.median(inside) if inside else float("nan"),
        "idle_across_us": statistics.median(across) if across else float("nan"),
        "idle_most_us": max(idle),
        "busy_share": busy / total,
        "forward_traced_us": total / max(1, len(ends)),
        "kernels_each": count,
    }


def _covered(spans: list[Span], first: float, last: float) -> float:
    """How much of a time some kernel runs."""
    covered, until = 0.0, first
    for start, end, _ in spans:
        start, end = max(start, until), min(end, last)
        if end > start:
            covered, until = covered + end - start, end
    return covered
