"""Times the serving engine's own forwards and steps on one GPU, beside the matrix products that no forward is without.

usage: time_engine.py MODEL OUT_FOLDER "PART SECONDS [PART'S OPTIONS]" ...     TOY=1: a tiny model on a CPU
  compile SHARE/SHARES        kernels of every kind of round, into Triton's cache
  steps C,C,...               AR steps at a context of 512, and products alone: steps.csv
  overlap C,C,...             AR steps whose kernels begin while the one before them ends, and not: overlap.csv
  kernels C,C,...             seconds of each kernel in such a step: kernels.csv
  sizes [SECONDS_FORWARDS]    products of one layer and of the head at every size, which sizes move: sizes.csv; then
                              rounds of the engine at these, filled up to them and further: sizes-rounds.csv
  host C POLICY               what the host does in such rounds, by cProfile: host.log
  serve C POLICY [POLICY ...] rounds of forced acceptance, the same requests under each policy: serve.csv
"""

import cProfile
import csv
import json
import os
import pstats
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from time_sizes import forwards_at, size_rows, started
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.profiler import ProfilerActivity, profile

from recguide.engine.adapters import merge_drafts, merges_drafts, projections
from recguide.engine.clocks import device_seconds, wall_seconds
from recguide.engine.environment import machine_of
from recguide.engine.forced import Forced
from recguide.engine.graphs import captured
from recguide.engine.inputs import counts_up_to
from recguide.engine.model import Decoder, ModelConfig
from recguide.engine.policyof import costs_of, policy_of
from recguide.engine.requests import Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.shapes import SHAPES, add_random_draft_adapter, random_decoder
from recguide.engine.sizes import FillSizes
from recguide.kernels import launches
from recguide.sim.log import PREFILL_STEP
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy
from recguide.sim.paper.acceptance import paper_trace
from recguide.traces.dense import DenseTrace
from recguide.traces.files import read_traces, resolve_traces

TOY = bool(os.environ.get("TOY"))
GRID = (4, 8, 16, 32)
CONTEXT = 24 if TOY else 512
STEPS = 6 if TOY else 48
MOST = 4 if TOY else 128
ROOM = 1024
TINY = ModelConfig("toy", 24, 2, 6, 2, 8, 40, 128, 1e4, 1e-5, False, 4096, 3, (2, 7))
PROFILE = os.environ.get("PROFILE", "nld-8b-h200")
TRACE = os.environ.get("TRACE", "paper:8b")
MERGED = {"--merge-drafts": True, "--no-merge-drafts": False}
PARTS: dict[str, Callable[["Bench", float, list[str]], None]] = {}


def say(text: str) -> None:
    """Progress, with the time."""
    print(f"{time.strftime('%T')} {text}", flush=True)


class Bench:
    """A model, and where results go."""

    def __init__(self, name: str, folder: Path, layers: int | None = None) -> None:
        self.name, self.folder = name, folder
        config = TINY if TOY else SHAPES[name]
        device, dtype = ("cpu", torch.float32) if TOY else ("cuda", torch.bfloat16)
        shape = config if layers is None else replace(config, num_layers=layers)
        self.decoder = random_decoder(shape, device, dtype, 0)
        add_random_draft_adapter(self.decoder, 8 if TOY else 128)
        if merges_drafts(MERGED.get(os.environ.get("DRAFTS", "")), self.decoder.device):
            merge_drafts(self.decoder)
        self._sizes: FillSizes | None = None
        self._trace: DenseTrace | None = None
        say(f"{name}: {shape.num_layers} layers are ready")

    @property
    def trace(self) -> DenseTrace:
        """Where acceptance comes from."""
        if self._trace is None:
            kind, _, which = TRACE.partition(":")
            self._trace = paper_trace(which) if kind == "paper" else read_traces(resolve_traces(TRACE))
        return self._trace

    def engine(self, policy: Policy, most: int, context: int, judge: Forced | None = None) -> Engine:
        """One for so many requests."""
        pages = most * (-(-(context + 64) // 16))
        limits = Limits(8192, max_running=most, kv_pages=pages)
        made = Engine(self.decoder, policy, EngineConfig(GRID, limits, context, sizes=self._sizes), judge)
        # they are timed once, and are those of the model
        self._sizes = made.forwards.sizes
        return made

    def named(self, name: str, most: int) -> Policy:
        """A policy of the catalogue."""
        return policy_of(name, GRID, self.name, costs_of(PROFILE))

    def write(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Rows as a file, with where they come from above them."""
        about = {
            **machine_of(self.decoder.device),
            "model": self.name,
            "created": time.strftime("%FT%TZ", time.gmtime()),
        }
        with (self.folder / name).open("w", newline="") as file:
            file.writelines(f"# {key}: {value}\n" for key, value in about.items())
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def products(decoder: Decoder, tokens: int) -> Callable[[], None]:
    """All matrix products of a forward that scores every token, and nothing else; a CUDA graph on a GPU."""
    generator = torch.Generator(decoder.device).manual_seed(1)
    inputs: dict[int, Tensor] = {}
    work = [linear.weight for _, linear in projections(decoder)] + [decoder.head]
    for weight in work:
        shape = tokens, weight.shape[1]
        if shape[1] not in inputs:
            inputs[shape[1]] = torch.randn(shape, device=decoder.device, dtype=decoder.dtype, generator=generator)

    def run() -> None:
        with torch.no_grad():
            for weight in work:
                F.linear(inputs[weight.shape[1]], weight)

    return captured(run).replay if decoder.device.type == "cuda" else run


def timed(work: Callable[[], object], count: int = 20) -> float:
    """Median milliseconds of five runs of so many, one behind the other."""
    clock = wall_seconds if TOY else device_seconds
    work()
    return statistics.median(clock(work, count) for _ in range(5)) * 1e3


def stepping(bench: Bench, counts: Sequence[int]) -> Iterator[tuple[int, Engine]]:
    """An engine with so many requests that all decode at about this context, for each count."""
    engine = bench.engine(bench.named("ar", MOST), max(counts), CONTEXT + 128)
    rng = np.random.default_rng(0)
    for count in counts:
        engine.restart()
        engine.prepare([count])
        prompts = (
            rng.integers(200, bench.decoder.config.vocab_size, (count, CONTEXT - STEPS // 2)).tolist()
            if not TOY
            else [[5] * (CONTEXT - 3)] * count
        )
        lives = [engine.add(prompt, Wish(10**6, eos_ids=())) for prompt in prompts]
        while len(engine.scheduler.running) < count:
            engine.step()
        yield count, engine
        for live in lives:
            engine.cancel(live)


def steps(bench: Bench, seconds: float, options: list[str]) -> None:
    """AR steps, of which the log has all times, beside products alone; twice, for clocks drift."""
    counts, rows, until = [int(count) for count in options[0].split(",")], [], time.monotonic() + seconds
    alone = {count: products(bench.decoder, count) for count in counts}
    for count, engine in stepping(bench, [*counts, *counts]):
        rows.append(_stepped(engine, count, alone[count]))
        say(json.dumps(rows[-1]))
        bench.write("steps.csv", rows)
        if time.monotonic() > until:
            break


def _stepped(engine: Engine, count: int, alone: Callable[[], None]) -> dict[str, Any]:
    before = timed(alone)
    for _ in range(STEPS):
        engine.step()
    log, last = engine.log, slice(-STEPS, None)
    assert log.log is not None
    walls = [step.seconds for step in log.log.steps[last]]
    whole, forward, waited = (np.array(x) * 1e3 for x in (walls, log.forward_s[last], log.waited_s[last]))
    graphs = engine.forwards.captured
    medians = {
        "step_ms": whole,
        "forward_ms": forward,
        "replay_ms": timed(graphs[-1].replay) if graphs else float("nan"),
        "products_ms": before,
        "products_after_ms": timed(alone),
        "host_ms": whole - waited,
        "idle_ms": whole - forward,
    }
    found = {name: round(float(np.median(values)), 4) for name, values in medians.items()}
    return {"requests": count, "context": CONTEXT, **found, "step_p90_ms": round(float(np.quantile(whole, 0.9)), 4)}


def overlap(bench: Bench, seconds: float, options: list[str]) -> None:
    """AR steps with and without launches that overlap, in turn; the same graphs otherwise."""
    counts, rows, until = [int(count) for count in options[0].split(",")], [], time.monotonic() + seconds
    least, alone = launches.LEAST_CAPABILITY, {count: products(bench.decoder, count) for count in counts}
    for turn in range(4):
        # no GPU is so capable
        launches.LEAST_CAPABILITY = least if turn % 2 == 0 else 99
        for count, engine in stepping(bench, counts):
            rows.append({"overlap": turn % 2 == 0, **_stepped(engine, count, alone[count])})
            say(json.dumps(rows[-1]))
        bench.write("overlap.csv", rows)
        if turn % 2 and time.monotonic() > until:
            break
    launches.LEAST_CAPABILITY = least


def sizes(bench: Bench, seconds: float, options: list[str]) -> None:
    """Which sizes are slow, and what it saves to fill forwards up further."""
    start = started(bench.decoder, say)
    rows = size_rows(bench.decoder, seconds, 64 if TOY else 4096, start)
    bench.write("sizes.csv", rows)
    for row in rows:
        say(" ".join(map(str, row.values())))
    # where nothing moves, there are rounds to be seen all the same
    moved = {64: 72} if TOY else start.moved_tokens
    until, found = time.monotonic() + float((options or ["60"])[0]), []
    for row in forwards_at(bench.decoder, moved, 8 if TOY else MOST, CONTEXT, until):
        found.append(row)
        say(json.dumps(row))
        bench.write("sizes-rounds.csv", found)


def host(bench: Bench, seconds: float, options: list[str]) -> None:
    """Where the host's time goes in rounds of forced acceptance."""
    count, name = int(options[0]), options[1]
    judge = Forced(shuffled(bench.trace), bench.decoder.config)
    engine = bench.engine(bench.named(name, count), count, ROOM, judge)
    if engine.forwards.graphs:
        engine.prepare([count])
    for row in range(count):
        judge.send(engine, row)
    while engine.scheduler.waiting:
        engine.step()
    profiler, until = cProfile.Profile(), time.monotonic() + seconds
    profiler.enable()
    for _ in range(60):
        if engine.in_flight < count or time.monotonic() > until:
            break
        engine.step()
    profiler.disable()
    with (bench.folder / "host.log").open("a") as file:
        file.write(f"{count} {name}\n")
        pstats.Stats(profiler, stream=file).sort_stats("tottime").print_stats(30)


def kernels(bench: Bench, seconds: float, options: list[str]) -> None:
    """What each kernel of a step takes, and how many of it there are."""
    rows: list[dict[str, Any]] = []
    for count, engine in stepping(bench, [int(c) for c in options[0].split(",")]):
        for _ in range(3):
            engine.step()
        with profile(activities=[ProfilerActivity.CPU if TOY else ProfilerActivity.CUDA]) as found:
            for _ in range(4):
                engine.step()
        times = [
            (e.key[:90], e.count / 4, (e.cpu_time_total if TOY else e.device_time_total) / 4)
            for e in found.key_averages()
        ]
        for name, number, spent in sorted(times, key=lambda each: -each[2])[:24]:
            rows.append({"requests": count, "kernel": name, "count": number, "us": round(spent, 2)})
        bench.write("kernels.csv", rows)
        for row in rows[-24:-10]:
            say(f"{row['requests']} {row['us']:9.1f} us {row['count']:5.0f} {row['kernel'][:80]}")


def serve(bench: Bench, seconds: float, options: list[str]) -> None:
    """Serve the same requests under each policy, at most so many seconds each."""
    count, rows = int(options[0]), []
    judge = Forced(shuffled(bench.trace), bench.decoder.config)
    for name in options[1:]:
        engine = bench.engine(bench.named(name, count), count, ROOM, judge)
        started = time.monotonic()
        kinds = engine.prepare(counts_up_to(count)) if engine.forwards.graphs else 0
        prepared_s = time.monotonic() - started
        served(engine, judge, count, 1, seconds)
        engine.restart()
        served(engine, judge, count, 2 if count > 8 else 6, seconds)
        row = {"requests": count, "policy": name, "kinds": kinds, "prepare_s": round(prepared_s, 1), **figures(engine)}
        rows.append(row)
        say(json.dumps(row))
        bench.write(f"serve-c{count}.csv", rows)
        del engine


def shuffled(trace: DenseTrace) -> DenseTrace:
    """Requests of all data sets mixed, those that fit into the context."""
    order = np.random.default_rng(0).permutation(len(trace.requests))
    mixed = [trace.requests[row] for row in order]
    return replace(trace, requests=tuple(r for r in mixed if r.prompt_tokens + r.output_tokens < ROOM - 64))


def served(engine: Engine, judge: Forced, count: int, each: int, seconds: float) -> None:
    """A closed loop of ``each`` times as many requests, cut after some seconds."""
    left, lives, until = list(range(min(count * each, len(judge.trace.requests)))), [], time.monotonic() + seconds
    while (left or engine.in_flight) and time.monotonic() < until:
        while left and engine.in_flight < count:
            lives.append(judge.send(engine, left.pop(0)))
        engine.step()
        if count > 8 and not left and each > 1 and engine.in_flight < count:
            # the end, where places stay empty, is no measure of this concurrency
            break
    for live in lives:
        engine.cancel(live)


def figures(engine: Engine) -> dict[str, Any]:
    """Tokens a second of rounds, and where the time of a round went."""
    log = engine.log
    assert log.log is not None
    rounds = np.array([step.block_size != PREFILL_STEP for step in log.log.steps])
    whole = np.array([step.seconds for step in log.log.steps])
    parts = {"draft": log.draft_s, "forward": log.forward_s, "waited": log.waited_s}
    spent = {name: np.array(values)[rounds] for name, values in parts.items()}
    emitted = log.totals.output_tokens - log.totals.requests
    means = {f"{name}_ms": round(float(values.mean()) * 1e3, 4) for name, values in spent.items()}
    return {
        "steps": int(rounds.sum()), "emitted": emitted, "round_s": round(float(whole[rounds].sum()), 3),
        "tokens_per_s": round(emitted / whole[rounds].sum(), 1),
        "tokens_per_s_with_prefills": round(log.totals.output_tokens / whole.sum(), 1),
        "step_ms": round(float(whole[rounds].mean()) * 1e3, 4), **means,
        "host_ms": round(float((whole[rounds] - spent["waited"]).mean()) * 1e3, 4),
        "host_median_ms": round(float(np.median(whole[rounds] - spent["waited"])) * 1e3, 4),
        "idle_ms": round(float((whole[rounds] - spent["forward"]).mean()) * 1e3, 4),
        "mean_in_round": round(float(np.array([step.requests for step in log.log.steps])[rounds].mean()), 2),
        "most_ms": round(float(whole[rounds].max()) * 1e3, 2),
    }  # fmt: skip


def compile_kernels(bench: Bench, seconds: float, options: list[str]) -> None:
    """Run rounds of every kind and count at one layer, a share of them in each of several processes."""
    share, shares = map(int, options[0].split("/"))
    kinds = [
        (name, count)
        for count in (1, 2, 4, 8, 16, 32, 64, 128)
        for name in ("ar", "overlap:B=16", "overlap:B=32", "window")
    ]
    for name, count in [kind for kind in kinds if kind[1] <= MOST][share::shares]:
        engine = bench.engine(bench.named(name, count), count, 1024)
        engine.forwards.graphs = False
        engine.prepare([count])
    say(f"share {share}: compiled")


PARTS |= {
    "compile": compile_kernels,
    "steps": steps,
    "overlap": overlap,
    "kernels": kernels,
    "serve": serve,
    "host": host,
    "sizes": sizes,
}


def main() -> None:
    """As the command line says."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(name, folder, 1 if sys.argv[3].startswith("compile") else None)
    for part in sys.argv[3:]:
        kind, seconds, *options = part.split()
        try:
            PARTS[kind](bench, float(seconds), options)
        except Exception:  # what other parts find is worth having
            traceback.print_exc()


if __name__ == "__main__":
    main()
