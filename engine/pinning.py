"""The thread that serves kept on one CPU, for measurements: where others share a machine, CPUs are not equally fast."""

import os
import time

LOOPS = 20000


def loop_s() -> float:
    """Seconds of some Python work that is always the same: how fast the CPU is that this runs on."""
    started, total = time.perf_counter(), 0
    for number in range(LOOPS):
        total += number & 7
    return time.perf_counter() - started


def pin_to_fastest(rounds: int = 5) -> tuple[int, float] | None:
    """Keep this thread on the CPU that is fastest now; gives its number and :func:`loop_s` there.

    None where threads cannot be kept anywhere.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    allowed = os.sched_getaffinity(0)
    found: dict[int, float] = {}
    for _ in range(rounds):
        for cpu in allowed:
            os.sched_setaffinity(0, {cpu})
            found[cpu] = max(found.get(cpu, 0.0), loop_s())
    best = min(found, key=found.__getitem__)
    os.sched_setaffinity(0, {best})
    return best, found[best]
