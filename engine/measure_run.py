"""The steps behind `recguide measure`: which runs a campaign still lacks, and one file for each."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from recguide.engine.adapters import drafts_merged
from recguide.engine.campaign import Found, Server, Stop, closed_loop, engine_config, staggered
from recguide.engine.environment import command_line, gpu_name, machine_of
from recguide.engine.garbage import settled
from recguide.engine.loading import LoadedModel, open_model
from recguide.engine.measure_command import Key, MeasureOptions
from recguide.engine.pinning import loop_s, pin_to_fastest
from recguide.engine.policyof import costs_of, identity_of, policy_of
from recguide.engine.served import NOTE
from recguide.engine.shared_options import told_of_drafts
from recguide.engine.sizes import profiled_sizes
from recguide.engine.station import Station
from recguide.sim.campaigns import Manifest, PointKey, manifest_of
from recguide.sim.costs import CostModel
from recguide.sim.measurement import (
    ALL,
    ROLES,
    About,
    Measurement,
    name_of,
    read_measurement,
    served_path,
    write_measurement,
)
from recguide.sim.methods import Policy
from recguide.sim.metrics import metrics_of
from recguide.sim.rounds import Ints, rounds_of
from recguide.sim.sweep import only_datasets, serving_order
from recguide.traces.checks import require
from recguide.traces.datasets import read_prompts
from recguide.traces.dense import DenseTrace, Provenance
from recguide.traces.errors import InputError
from recguide.traces.files import read_traces, write_trace


@dataclass(frozen=True, slots=True)
class Task:
    """One run to make."""

    key: PointKey
    repeat: int
    role: str = ROLES[0]


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that the runs need."""

    options: MeasureOptions
    model: LoadedModel
    trace: DenseTrace
    prompts: Mapping[str, Sequence[int]] | None
    costs: CostModel | None
    command: str
    machine: Mapping[str, str]
    profile: Mapping[str, str] = field(default_factory=dict)
    """The one that policies decide by, as runs name it."""
    session: int = 0
    servers: dict[str, Server] = field(default_factory=dict)
    """By dataset. All of them have the same engine."""

    def policy(self, name: str) -> Policy:
        """A fresh policy: one that learns must not remember other runs."""
        origin = self.trace.provenance
        state = origin.weights_sha256, origin.adapter_sha256 or ""
        return policy_of(name, origin.block_sizes, origin.model, self.costs, state)

    def server(self, dataset: str) -> Server:
        """What serves requests of a dataset, or of all."""
        if dataset not in self.servers:
            station = next((server.station for server in self.servers.values()), None) or self._station()
            trace = only_datasets(self.trace, [] if dataset == ALL else [dataset])
            self.servers[dataset] = Server(station, trace, self.prompts)
        return self.servers[dataset]

    def _station(self) -> Station:
        options = self.options
        keys = _keys(options)
        config = engine_config(self.trace.provenance, max(count for _, _, count in keys), options.batching,
                               options.max_batched_tokens, options.kv_tokens)  # fmt: skip
        policies = [self.policy(name) for name in {name for name, _, _ in keys}]
        decoder = self.model.decoder
        sizes = profiled_sizes(options.profile, decoder, options.dtype)
        return Station(decoder, policies, replace(config, sizes=sizes), time.perf_counter)


def run(options: MeasureOptions) -> Iterator[tuple[Path, float]]:
    """Make the runs that are not there yet; gives each file with its tokens per second, and at the end how many lack.

    ValueError before anything runs for whatever cannot be served.
    """
    started = time.monotonic()
    bench = _prepared(options)
    points = tuple(PointKey(*key) for key in (*options.points, *options.more))
    for key in points:
        bench.policy(key.policy)
        only_datasets(bench.trace, [] if key.dataset == ALL else [key.dataset])
    manifest = manifest_of(options.output, Manifest(options.repeats, points, _setup(bench)))
    bench = replace(bench, session=manifest.sessions)
    tasks = _tasks(options)
    anchors = [Task(PointKey(*key), 1, ROLES[1]) for key in options.anchors] if tasks else []
    if options.pin:
        pin_to_fastest()
    with settled():
        for task in (*anchors, *tasks):
            if time.monotonic() - started > options.time_limit:
                break
            yield _measured(bench, task)


def _tasks(options: MeasureOptions) -> list[Task]:
    """Runs that lack, those of the first points before those of the others."""
    stages = ([PointKey(*key) for key in keys] for keys in (options.points, options.more))
    return [task for points in stages for task in pending(options.output, points, options.repeats)]


def pending(folder: Path, points: Sequence[PointKey], repeats: int) -> list[Task]:
    """Runs that lack, pass by pass, every second one backwards, so that a steady drift cancels out."""
    passes = [points if repeat % 2 else points[::-1] for repeat in range(1, repeats + 1)]
    tasks = [Task(key, repeat) for repeat, keys in enumerate(passes, 1) for key in keys]
    return [task for task in tasks if not (folder / name_of(*task.key, task.repeat)).exists()]


def _prepared(options: MeasureOptions) -> Bench:
    trace = read_traces(options.trace)
    model = open_model(options.model, options.adapter, options.device, options.dtype, options.merge_drafts)
    forced = options.acceptance == "forced"
    if not forced:
        _check_model(model, trace.provenance)
    context = model.config.max_context
    require(trace.provenance.max_context <= context, "trace: max_context", trace.provenance.max_context,
            f"at most {context}, the model's")  # fmt: skip
    costs = costs_of(options.profile)
    prompts = None if forced else prompts_of(named_by(_keys(options), trace), model, options.dataset_path)
    machine = machine_of(model.decoder.device)
    return Bench(options, model, trace, prompts, costs, command_line(), machine, identity_of(options.profile))


def _keys(options: MeasureOptions) -> tuple[Key, ...]:
    return (*options.points, *options.more, *options.anchors)


def named_by(keys: Sequence[Key], trace: DenseTrace) -> DenseTrace:
    """The requests of the datasets that points name: nobody needs prompts of others."""
    named = {dataset for _, dataset, _ in keys}
    return trace if ALL in named else only_datasets(trace, sorted(named))


def _check_model(model: LoadedModel, origin: Provenance) -> None:
    """What is served must be what was recorded."""
    for name, here, there in (
        ("model", model.config.name, origin.model),
        ("weights_sha256", model.weights_sha256, origin.weights_sha256),
        ("adapter_sha256", model.adapter_sha256, origin.adapter_sha256),
    ):
        require(here == there, name, here, f"{there!r}, the trace's, or --acceptance forced")


def prompts_of(trace: DenseTrace, model: LoadedModel, paths: Sequence[Path]) -> dict[str, Sequence[int]]:
    """Token ids of each request: those of the trace, or out of the prompt files that it was recorded from."""
    found: dict[str, Sequence[int]] = {
        request.request_id: request.prompt_ids.tolist() for request in trace.requests if request.prompt_ids is not None
    }
    texts = {prompt.prompt_id: prompt for prompt in read_prompts(paths)} if paths else {}
    for request in trace.requests:
        name = request.request_id
        if name in found:
            continue
        if name not in texts or texts[name].sha256 != request.prompt_sha256 or model.tokenizer is None:
            raise InputError(f"request {name!r}: no prompt; allowed: traces with token ids, or --dataset-path with it")
        found[name] = model.tokenizer.encode_chat(texts[name].text)
        require(len(found[name]) == request.prompt_tokens, f"request {name!r}: prompt tokens", len(found[name]),
                request.prompt_tokens)  # fmt: skip
    return found


def trace_identity(trace: DenseTrace) -> dict[str, object]:
    """What a measurement says about the trace that its requests are of."""
    kept = ("model", "weights_sha256", "adapter_sha256", "prompt_set_sha256", "max_output_tokens", "max_context")
    return {name: getattr(trace.provenance, name) for name in kept}


def _setup(bench: Bench) -> dict[str, object]:
    """What no two runs of a folder may differ in."""
    options, model = bench.options, bench.model
    return {
        **model.named,
        "dtype": options.dtype,
        "gpu": gpu_name(model.decoder.device),
        **told_of_drafts(drafts_merged(model.decoder)),
        "acceptance": options.acceptance,
        "trace": trace_identity(bench.trace),
        "requests_each": options.requests_each,
        "least_requests": options.least_requests,
        "steady_s": options.steady_s,
        "warm_s": options.warm_s,
        "seed": options.seed,
        "batching": options.batching,
        "max_batched_tokens": options.max_batched_tokens,
        "kv_tokens": options.kv_tokens,
    }


def _measured(bench: Bench, task: Task) -> tuple[Path, float]:
    options = bench.options
    server = bench.server(task.key.dataset)
    count = max(options.requests_each * task.key.concurrency, options.least_requests)
    stop, limits = Stop(options.steady_s), None
    first = options.output / name_of(*task.key, 1)
    if task.repeat > 1:
        # later repeats serve what the first one did
        known = read_measurement(first)
        count, limits = len(known.about.request_ids), known.limits
        stop = Stop(steps=len(known.run.steps["seconds"]) if known.stopped else None)
    rows = serving_order(len(server.trace.requests), count, options.seed)
    if options.steady_s is not None and limits is None:
        outputs = np.array([server.trace.requests[row].output_tokens for row in rows])
        most = server.trace.provenance.max_output_tokens
        limits = staggered(outputs, task.key.concurrency, most, options.seed)
    given = None if limits is None else limits.tolist()
    if options.warm_s:
        # a GPU that has idled has more power to spend than one that serves
        closed_loop(
            server, bench.policy(task.key.policy), rows, task.key.concurrency, given, Stop(whole_s=options.warm_s)
        )
    before_s = loop_s()
    found = closed_loop(server, bench.policy(task.key.policy), rows, task.key.concurrency, given, stop)
    return _written(bench, task, server, found, limits, (before_s + loop_s()) / 2)


def _written(
    bench: Bench, task: Task, server: Server, found: Found, limits: Ints | None, cpu_s: float
) -> tuple[Path, float]:
    """The run's file; ``cpu_s`` is the Python loop's time before and behind it, in the mean."""
    trace = server.trace
    names = [trace.requests[row].request_id for row in found.run.request.tolist()]
    told = {**server.station.forwards.told(), "python_loop_us": f"{cpu_s * 1e6:.0f}"}
    about = _about(bench, task, names, told)
    sent = len(found.run.request)
    own = replace(found.run, request=np.arange(sent))
    own_limits = None if limits is None else limits[:sent]
    measured = Measurement(about, own, found.draft_s, found.forward_s, own_limits, found.stopped)
    figures = metrics_of(own, rounds_of(trace))
    path = bench.options.output / about.name
    if found.served is not None and task.role == ROLES[0]:
        provenance = replace(trace.provenance, note=NOTE, engine_commit=about.origin["engine_commit"])
        write_trace(found.served.trace(provenance), served_path(path))
    write_measurement(path, measured, figures)
    return path, float(figures["steady_output_throughput"] or figures["output_throughput"] or 0)


def _about(bench: Bench, task: Task, names: Sequence[str], told: Mapping[str, str]) -> About:
    options, model = bench.options, bench.model
    origin = {
        "model": model.config.name,
        "weights_sha256": model.weights_sha256,
        "adapter_sha256": model.adapter_sha256 or "none",
        "dtype": options.dtype,
        **told_of_drafts(drafts_merged(model.decoder)),
        **bench.machine,
        **told,
        **bench.profile,
        "command": bench.command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return About(
        *task.key,
        task.repeat,
        task.role,
        bench.session,
        options.acceptance,
        options.batching,
        options.max_batched_tokens,
        options.kv_tokens,
        tuple(names),
        trace_identity(bench.trace),
        origin,
    )


def lacking(options: MeasureOptions) -> int:
    """Runs that are still to be made."""
    return len(_tasks(options))
