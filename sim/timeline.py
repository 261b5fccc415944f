"""A simulated run as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times are in microseconds.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recguide.sim.costs import CostModel
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.rounds import AR
from recguide.sim.waterfall import parts_of

Event = dict[str, Any]
GPUS, BUCKETS, REQUESTS = 1, 2, 3
"""Process numbers: Perfetto shows each as a group of tracks."""
FORWARDS, HOST = 1, 2
"""Tracks of the GPU beside that of its steps."""


def timeline(run: Replay, names: Sequence[str], about: Mapping[str, Any], costs: CostModel, planner: str = "") -> str:
    """The run as JSON, a track for each GPU, bucket and request; ``names`` are those of the recorded requests.

    ``costs`` are those of the run, by which its steps fall into forwards and the host's time, with the policy's
    ``planner`` (:func:`recguide.sim.methods.planned_by`).
    """
    events = [*_names(run, names), *_steps(run), *_forwards(run, costs, planner), *_queues(run), *_emissions(run)]
    events += _counters(run)
    whole = {"displayTimeUnit": "ms", "otherData": dict(about), "traceEvents": events}
    return json.dumps(whole, allow_nan=False, separators=(",", ":")) + "\n"


def _names(run: Replay, names: Sequence[str]) -> Iterator[Event]:
    yield from (_meta("process_name", pid, 0, name) for pid, name in ((1, "GPUs"), (2, "buckets"), (3, "requests")))
    for tid, name in ((0, "GPU 0"), (FORWARDS, "GPU 0: forwards"), (HOST, "host")):
        yield _meta("thread_name", GPUS, tid, name)
    for size in sorted(set(run.steps["block_size"].tolist())):
        yield _meta("thread_name", BUCKETS, size, _bucket(size))
    for sent, row in enumerate(run.request.tolist()):
        yield _meta("thread_name", REQUESTS, sent, f"{sent}: {names[row]}")


def _meta(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _bucket(size: int) -> str:
    return {PREFILL_STEP: "prefill", AR: "AR steps"}.get(size, f"B = {size}")


def _steps(run: Replay) -> Iterator[Event]:
    """Every step twice: on its GPU, and on the track of its bucket."""
    fields = ("requests", "query_tokens", "draft_tokens", "padding", "context_tokens", "in_flight", "outside")
    columns = [run.steps[name].tolist() for name in ("start_s", "seconds", "block_size", *fields)]
    for start_s, seconds, size, *values in zip(*columns, strict=True):
        known = dict(zip(fields, values, strict=True))
        name = f"{_bucket(size)} x {known['requests']}"
        for pid, tid in ((GPUS, 0), (BUCKETS, size)):
            yield _slice(name, "step", pid, tid, start_s, seconds) | {"args": known}


def _forwards(run: Replay, costs: CostModel, planner: str) -> Iterator[Event]:
    """The parts of every step: its forwards one after the other, then the host."""
    for step, parts in enumerate(parts_of(run, costs, planner)):
        now = float(run.steps["start_s"][step])
        for name, seconds in parts.items():
            if seconds > 0:
                yield _slice(name, "forward", GPUS, HOST if name == "host" else FORWARDS, now, seconds)
            now += seconds


def _slice(name: str, category: str, pid: int, tid: int, start_s: float, seconds: float) -> Event:
    times = {"ts": round(start_s * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, **times}


def _queues(run: Replay) -> Iterator[Event]:
    """From a request's arrival to the start of its prefill."""
    for sent, (arrival_s, started_s) in enumerate(zip(run.arrival_s.tolist(), run.started_s.tolist(), strict=True)):
        if started_s > arrival_s:
            yield _slice("waits", "queue", REQUESTS, sent, arrival_s, started_s - arrival_s)


def _emissions(run: Replay) -> Iterator[Event]:
    """On a request's track: each step that it was in, and the tokens that it emitted."""
    start_s, seconds = run.steps["start_s"].tolist(), run.steps["seconds"].tolist()
    columns = (run.emission_request, run.emission_step, run.emission_block_size, run.emission_tokens)
    for sent, step, size, tokens in zip(*(column.tolist() for column in columns), strict=True):
        name = f"{_bucket(size)}: {tokens} token{'s' * (tokens != 1)}"
        known = {"tokens": tokens, "block_size": size, "step": step}
        yield _slice(name, "round", REQUESTS, sent, start_s[step], seconds[step]) | {"args": known}


def _counters(run: Replay) -> Iterator[Event]:
    counts = {"requests in flight": run.steps["in_flight"], "KV pages": run.kv_pages}
    for name, values in counts.items():
        for start_s, value in zip(
            run.steps["start_s"].tolist(), [] if values is None else values.tolist(), strict=False
        ):
            yield {"ph": "C", "name": name, "pid": GPUS, "ts": round(start_s * 1e6, 3), "args": {"count": value}}
