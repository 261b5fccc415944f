"""The steps behind `recguide bench sglang`."""

import gzip
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import typer

from recguide.engine.bench_load import BenchLoad, load_of
from recguide.engine.bench_sglang_command import BASELINES, SglangOptions
from recguide.engine.environment import chosen_device, command_line, machine_of
from recguide.engine.measure_run import trace_identity
from recguide.engine.sglang_client import Asked, Run, Seen
from recguide.engine.sglang_jobs import log_of, serve_all
from recguide.engine.sglang_options import plan_of
from recguide.engine.sglang_seen import client_figures, client_run, read_seen, same_outputs, server_figures
from recguide.engine.sglang_server import Model, Place, arguments_of, model_of
from recguide.engine.sglang_times import host_times
from recguide.engine.shared_options import told_of_drafts
from recguide.sim.campaigns import Manifest, PointKey, manifest_of
from recguide.sim.detailed import detailed
from recguide.sim.figures import Figures
from recguide.sim.measurement import (
    ALL,
    SUFFIX,
    name_of,
    read_measurement,
    served_path,
    write_measurement,
)
from recguide.traces.documents import write_json, write_text
from recguide.traces.errors import InputError
from recguide.traces.files import read_trace, write_trace

TRACE = "forced.parquet"


@dataclass(frozen=True, slots=True)
class Bench:
    """What all engines have in common."""

    options: SglangOptions
    model: Model
    load: BenchLoad
    device: torch.device
    scratch: Path
    session: int = 1


@dataclass(frozen=True, slots=True)
class Job:
    """One engine, and its runs."""

    name: str
    folder: Path
    runs: Sequence[Run]

    @property
    def path(self) -> Path:
        """What its client reads."""
        return self.folder / "job.json"


def run(options: SglangOptions) -> bool:
    """Serve with every engine, and write what was found; gives whether one of them failed."""
    device = chosen_device(options.device)
    model = model_of(options.model, options.adapter, options.dtype)
    load = load_of(options, model.loaded())
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(options, model, load, device, Path(scratch))
        if load.judge is not None:
            write_trace(load.judge.trace, bench.scratch / TRACE)
        jobs = [_job(bench, *policy) for policy in options.policy]
        if find_spec("sglang") is None:
            raise InputError("SGLang: found none, allowed: 0.5.17 or 0.5.23; pip install 'recguide[sglang]'")
        options.result_dir.mkdir(exist_ok=True)
        wanted = _wanted(options, model, load, machine_of(device))
        if wanted.points:
            bench = replace(bench, session=manifest_of(options.result_dir, wanted).sessions)
        failed = serve_all(jobs, options.time_limit, options.together)
        entries = [entry for job in jobs for entry in _entries(bench, job, jobs[0])]
        for job in jobs:
            write_text(options.result_dir / f"{name_of(job.name, ALL, 0, 0).partition('-all-')[0]}.log", log_of(job))
    typer.echo(json.dumps(entries, indent=1))
    return failed


def _wanted(options: SglangOptions, model: Model, load: BenchLoad, machine: dict[str, str]) -> Manifest:
    """The campaign that our policies' runs make up."""
    ours = [(name, levels) for name, levels in options.policy if name not in BASELINES]
    points = tuple(PointKey(name, ALL, count) for name, levels in ours for count in levels)
    setup = {
        "engine": "sglang",
        "model": model.config.name,
        "weights_sha256": model.weights_sha256,
        "dtype": options.dtype,
        "gpu": machine["gpu"],
        **told_of_drafts(options.merge_drafts),
        "acceptance": "model" if load.judge is None else "forced",
        "trace": None if load.judge is None else trace_identity(load.judge.trace),
        "batching": options.batching,
    }
    return Manifest(options.repeats, points, setup)


def _job(bench: Bench, name: str, levels: Sequence[int]) -> Job:
    """Everything that an engine's client reads, in a folder of its own."""
    names = [policy for policy, _ in bench.options.policy]
    folder = bench.scratch / str(names.index(name))
    folder.mkdir()
    pairs = [(repeat, level) for repeat in range(1, bench.options.repeats + 1) for level in levels]
    runs = [_run(bench, folder, level, repeat) for repeat, level in pairs]
    place = Place(bench.device, max(levels), folder, bench.scratch / TRACE)
    engine = arguments_of(bench.options, bench.model, bench.load, name, place)
    if name not in BASELINES:
        # what the plugin would refuse is refused before anything starts
        plan_of(SimpleNamespace(**{"served_model_name": None, "tp_size": 1, **engine}))
    content = {
        "engine": engine,
        "load": [asdict(asked) for asked in _asked(bench)],
        "stream": bench.options.stream,
        "runs": [asdict(each) for each in runs],
    }
    job = Job(name, folder, runs)
    write_json(job.path, content)
    return job


def _run(bench: Bench, folder: Path, concurrency: int, repeat: int) -> Run:
    options = bench.options
    count = max(options.requests_each * concurrency, options.least_requests)
    rows = [row % len(bench.load) for row in range(count)]
    warmups = min(count, options.warmups_each * concurrency)
    return Run(concurrency, rows, warmups, str(folder / f"seen-{concurrency}-{repeat}.json"), repeat)


def _asked(bench: Bench) -> Iterator[Asked]:
    options, load = bench.options, bench.load
    for row, (prompt, wish) in enumerate(zip(load.prompts, load.wishes, strict=True)):
        sampling: dict[str, Any] = {"max_new_tokens": wish.max_new_tokens, "temperature": wish.temperature}
        sampling["ignore_eos"] = options.ignore_eos or load.judge is not None
        if load.judge is not None:
            sampling["custom_params"] = {"recguide_row": row}
        elif wish.temperature:
            sampling["sampling_seed"] = wish.seed
        yield Asked([int(token) for token in prompt], sampling)


def _entries(bench: Bench, job: Job, first: Job) -> Iterator[dict[str, Any]]:
    """The figures of an engine's runs, as far as it came; outputs are compared with those of the first engine."""
    known = outputs_of(first)
    for number, served in enumerate(job.runs):
        if Path(served.result).exists():
            yield _entry(bench, job, number, known)


def outputs_of(job: Job) -> dict[int, list[int]]:
    """What an engine answered to each row of the load, in the first run that had it."""
    paths = [Path(run.result) for run in reversed(job.runs)]
    return {each.row: each.output for path in paths if path.exists() for each in read_seen(path) if not each.error}


def _entry(bench: Bench, job: Job, number: int, known: Mapping[int, list[int]]) -> dict[str, Any]:
    """The figures of a run, which are written."""
    served, options = job.runs[number], bench.options
    seen = read_seen(Path(served.result))
    errors = [each.error for each in seen if each.error]
    document: dict[str, Any] = {**_about(bench, job.name), "repeat": served.repeat, "failed": len(errors)}
    document["errors_told"] = sorted(set(errors))
    if len(errors) == len(seen):
        return document
    client = client_run(seen, [len(prompt) for prompt in bench.load.prompts], served.concurrency)
    document |= client_figures(client, Figures(), options.stream)
    if verified := sum(each.verified for each in seen):
        tokens = sum(each.tokens[-1] - 1 for each in seen if each.tokens)
        document |= {"num_rounds": verified, "accept_length": tokens / verified}
    if bench.load.judge is None and not options.temperature:
        document["same_outputs"] = same_outputs(seen, known)
    # the log has a run of warm-ups in front of each
    logged = job.folder / "log" / f"run-{2 * number + 2:04d}.json.gz"
    if logged.exists():
        document |= _kept(bench, job.name, served, logged)
    name = name_of(job.name, ALL, served.concurrency, served.repeat)
    path = options.result_dir / name.replace(SUFFIX, ".figures.json")
    write_json(path, {**detailed(client, document), **_said(bench, seen)})
    return document


def _said(bench: Bench, seen: Sequence[Seen]) -> dict[str, Any]:
    """What was answered to which prompts; what random weights say is of no use to anybody."""
    if bench.load.judge is not None:
        return {}
    return {"rows": [each.row for each in seen], "output_ids": [each.output for each in seen]}


def _about(bench: Bench, name: str) -> dict[str, Any]:
    options, judge = bench.options, bench.load.judge
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "sglang",
        "backend": "sglang",
        "model_id": options.model,
        "tokenizer_id": options.model,
        "request_rate": "inf",
        "policy": name,
        "batching": options.batching,
        "block_sizes": ",".join(map(str, options.block_sizes)),
        "acceptance": judge.label if judge is not None and name not in BASELINES else "the model's own",
        "temperature": options.temperature,
        "adapter": options.adapter,
        "merge_drafts": options.merge_drafts and name not in BASELINES,
        "weights": bench.model.told,
        "dtype": options.dtype,
        "streamed": options.stream,
        **machine_of(bench.device),
        **_versions(),
        "command": command_line(),
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"sglang": version("sglang"), "transformers": version("transformers")}


def _kept(bench: Bench, name: str, served: Run, logged: Path) -> dict[str, Any]:
    """The plugin's own log of a run as a measurement of the campaign; gives the figures that are only there."""
    measured, options = read_measurement(logged), bench.options
    about = replace(
        measured.about,
        policy=name,
        concurrency=served.concurrency,
        repeat=served.repeat,
        session=bench.session,
        trace={} if bench.load.judge is None else trace_identity(bench.load.judge.trace),
        origin={**measured.about.origin, "weights_sha256": bench.model.weights_sha256, "command": command_line()},
    )
    path = options.result_dir / about.name
    figures = figures_in(logged)
    run = replace(measured.run, concurrency=served.concurrency)
    write_measurement(path, replace(measured, about=about, run=run), figures)
    if served_path(logged).exists():
        write_trace(read_trace(served_path(logged)), served_path(path))
    return {**server_figures(figures), **host_times(measured.run.steps, measured.forward_s), "measurement": path.name}


def figures_in(logged: Path) -> dict[str, Any]:
    """The figures of a measurement, without its lists."""
    document = json.loads(gzip.decompress(logged.read_bytes()))
    return {name: value for name, value in document.items() if not isinstance(value, list | dict)}
