"""Processor time of the serving engine's host for each step: everything but forwards, of a tiny model on a CPU.

    python benchmarks/host.py [--steps 300] [--profile ROWS] ["C POLICY" ...]

Requests play a synthetic trace, as in measurements on a GPU. ``exposed`` is what a GPU would wait for: from the start
of a step to its first forward, and from where what was found is asked for to the step's end; the rest runs beside
forwards. Both are also told without what playing the trace takes, which no server does (``own``, ``own exposed``), and
as multiples of a fixed piece of Python and small numpy calls, which tells machines apart.
"""

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from tiny import TINY

from recguide.engine.clocks import Stopwatch
from recguide.engine.forced import Forced
from recguide.engine.forwards import Forwards
from recguide.engine.policyof import costs_of, policy_of
from recguide.engine.scores import Scores
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.shapes import random_decoder
from recguide.sim.adaptive import adaptive
from recguide.sim.fitting import fit_in_sample
from recguide.sim.joint_fit import fit_joint
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy
from recguide.sim.paper.acceptance import paper_trace
from recguide.sim.sharing import Allocation
from recguide.traces.dense import DenseTrace

GRID = (4, 8, 16, 32)
ROOM = 1024
QUIET = 0.05
"""The quantile that is told: machines are busy with other things too."""
FITTED = ("adaptive", "allocation", "joint")
POINTS = (
    *("1 ar", "1 fixed:16", "1 overlap:B=16", "128 ar", "128 fixed:8", "128 adaptive"),
    *("8 overlap:B=16", "1 joint", "8 joint", "32 joint", "8 allocation", "64 allocation"),
)


class Marks(Stopwatch):
    """Notes when a step's forwards run, in processor time, and lets no profiler see them."""

    def __init__(self, forwards: Forwards, profiler: cProfile.Profile | None) -> None:
        super().__init__(forwards.device)
        self.profiler, self._read = profiler, forwards.read
        self.restart()
        forwards.read = self.read  # type: ignore[method-assign]
        forwards.watch = self

    def restart(self) -> None:
        """A step begins."""
        self.begun, self.asked, self.inside, self.played, self.played_late = 0.0, 0.0, 0.0, 0.0, 0.0

    def played_by(self, ask: Callable[..., Scores]) -> Callable[..., Scores]:
        """What a judge is asked for, in processor time of its own."""

        def timed(*asked: object) -> Scores:
            begin = time.process_time()
            scores = ask(*asked)
            took = time.process_time() - begin
            self.played += took
            self.played_late += took if self.asked else 0.0
            return scores

        return timed

    def figures(self, begin: float, end: float) -> tuple[float, float, float, float]:
        """Seconds of the host in a step, those that a device would wait for, and both without playing the trace."""
        host, exposed = end - begin - self.inside, self.begun - begin + end - self.asked
        return host, exposed, host - self.played, exposed - self.played_late

    def run(self, work: Callable[[], None]) -> None:
        """Do a forward."""
        begin = time.process_time()
        if self.profiler is not None:
            self.profiler.disable()
        super().run(work)
        if self.profiler is not None:
            self.profiler.enable()
        self.begun = self.begun or begin
        self.inside += time.process_time() - begin

    def read(self, *found: torch.Tensor) -> object:
        """What was found is asked for."""
        self.asked = time.process_time()
        return self._read(*found)


def engine_for(name: str, count: int) -> tuple[Engine, Forced]:
    """An engine for so many requests, and who sends them."""
    trace = paper_trace("8b")
    order = np.random.default_rng(0).permutation(len(trace.requests))
    mixed = [trace.requests[row] for row in order]
    kept = tuple(r for r in mixed if r.output_tokens > 300 and r.prompt_tokens + r.output_tokens < ROOM - 64)
    decoder = random_decoder(replace(TINY, num_layers=1, max_context=4096), "cpu", torch.float32, 0)
    judge = Forced(replace(trace, requests=kept), decoder.config)
    limits = Limits(8192, max_running=count, kv_pages=count * (ROOM + 64) // 16)
    known = name not in FITTED
    policy = policy_of(name, GRID, "nld-8b", costs_of("nld-8b-h200")) if known else fitted(name, judge.trace, count)
    return Engine(decoder, policy, EngineConfig(GRID, limits, ROOM, rounded=True), judge), judge


def fitted(name: str, trace: DenseTrace, count: int) -> Policy:
    """A policy that looks back, out of some of the requests that it serves."""
    some, costs = replace(trace, requests=trace.requests[:60]), costs_of("nld-8b-h200")
    assert costs is not None
    found = fit_in_sample(some, costs, concurrencies=(count,))
    if name == "joint":
        return replace(fit_joint(some, costs, found), costs=costs)
    return adaptive(found) if name == "adaptive" else Allocation(found, costs)


def measured(point: str, steps: int, profiler: cProfile.Profile | None) -> list[float]:
    """:meth:`Marks.figures` of a round where little else disturbs it."""
    count, name = int(point.split()[0]), point.split()[1]
    engine, judge = engine_for(name, count)
    marks, sent, found = Marks(engine.forwards, profiler), 0, []
    for name in ("drafted", "verified"):
        setattr(judge, name, marks.played_by(getattr(judge, name)))
    while len(found) < steps:
        while engine.in_flight < count:
            judge.send(engine, sent % len(judge.trace.requests))
            sent += 1
        if engine.scheduler.waiting:
            engine.step()
            continue
        marks.restart()
        if profiler is not None:
            profiler.enable()
        begin = time.process_time()
        engine.step()
        end = time.process_time()
        if profiler is not None:
            profiler.disable()
        found.append(marks.figures(begin, end))
    quiet: list[float] = np.quantile(found, QUIET, axis=0).tolist()
    return quiet


def unit() -> float:
    """Seconds of a fixed piece of work like the host's."""
    times, numbers = [], np.arange(128)
    for _ in range(300):
        begin = time.process_time()
        for _ in range(20):
            kept = [int(number) for number in np.cumsum(numbers)[:32]]
            np.repeat(numbers, 2)[: sum(kept) % 7 + 1].copy()
        times.append(time.process_time() - begin)
    return float(np.quantile(times, QUIET))


def main() -> None:
    """Print a line a point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*", default=POINTS)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--profile", type=int, default=0, metavar="ROWS")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{'C policy':18} {'host us':>8} {'exposed':>8} {'own':>8} {'own exposed':>12} "
        f"{'host / unit':>12} {'exposed / unit':>14}"
    )
    for point in args.points:
        profiler = cProfile.Profile() if args.profile else None
        before = unit()
        host, exposed, *own = measured(point, args.steps, profiler)
        one = (before + unit()) / 2
        times = f"{host * 1e6:8.0f} {exposed * 1e6:8.0f} {own[0] * 1e6:8.0f} {own[1] * 1e6:12.0f}"
        print(f"{point:18} {times} {host / one:12.2f} {exposed / one:14.2f}", flush=True)
        if profiler is not None:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(args.profile)


if __name__ == "__main__":
    main()
