"""The steps behind `recguide bench serve`."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import typer

from recguide.engine.adapters import drafts_merged
from recguide.engine.bench_load import BenchLoad, load_of
from recguide.engine.bench_serve_command import ServeOptions
from recguide.engine.environment import command_line, machine_of
from recguide.engine.garbage import settled, young_alone
from recguide.engine.inputs import counts_up_to
from recguide.engine.loading import LoadedModel, open_model
from recguide.engine.pages import pages_that_fit
from recguide.engine.policyof import UNKNOWN, costs_of, policy_of, rounds_named
from recguide.engine.provenance import provenance_of
from recguide.engine.runlog import answered
from recguide.engine.served import NOTE, ServedRun
from recguide.engine.serving import MAX_RUNNING, Engine, EngineConfig
from recguide.engine.sizes import profiled_sizes
from recguide.sim.arrivals import Clients
from recguide.sim.batching import batching_named
from recguide.sim.detailed import detailed
from recguide.sim.figures import Figures, parse_goodput, parse_percentiles
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.memory import Limits
from recguide.sim.metrics import metrics_of
from recguide.traces.dense import Provenance
from recguide.traces.documents import write_json
from recguide.traces.errors import InputError
from recguide.traces.files import write_trace

SAVE_EVERY_S = 5.0
IDLE_S = 0.02


@dataclass(slots=True)
class Bench:
    """A run while it happens."""

    options: ServeOptions
    model: LoadedModel
    load: BenchLoad
    engine: Engine
    figures: Figures
    served: ServedRun = field(default_factory=ServedRun)
    refused: Counter[str] = field(default_factory=Counter)
    saved_s: float = 0.0


def run(options: ServeOptions) -> dict[str, Any]:
    """Serve the load; gives the figures, which are in the result file too."""
    bench = _prepared(options)
    _warm_up(bench)
    clients = bench.load.clients(options)
    with settled(), young_alone():
        bench.engine.restart()
        while _advance(bench, clients):
            if options.result is not None and bench.engine.now - bench.saved_s > SAVE_EVERY_S:
                bench.saved_s = bench.engine.now
                _save(options, _document(bench, complete=False))
    document = _document(bench, complete=True)
    if options.result is not None:
        _save(options, document)
    if options.save_trace is not None:
        write_trace(bench.served.trace(_provenance(bench)), options.save_trace)
        typer.echo(f"{options.save_trace}: {len(bench.served.answered())} requests", err=True)
    return {name: value for name, value in document.items() if not isinstance(value, list)}


def _prepared(options: ServeOptions) -> Bench:
    figures = Figures(parse_percentiles([options.metric_percentiles]), parse_goodput(options.goodput))
    batching = batching_named(options.batching)
    costs = costs_of(options.profile)
    model = open_model(options.model, options.adapter, options.device, options.dtype, options.merge_drafts)
    load = load_of(options, model)
    # forced acceptance is that of whatever model was recorded
    state = UNKNOWN if options.force_acceptance else model.state
    policy = policy_of(options.policy, options.block_sizes, model.config.name, costs, state)
    context = options.max_model_len or min(load.longest(options.block_sizes[-1]), model.config.max_context)
    limits = _limits(options, model, context)
    sizes = profiled_sizes(options.profile, model.decoder, options.dtype)
    config = EngineConfig(
        options.block_sizes, limits, context, batching, enforce_eager=options.enforce_eager, sizes=sizes
    )
    return Bench(options, model, load, Engine(model.decoder, policy, config, load.judge), figures)


def _limits(options: ServeOptions, model: LoadedModel, context: int) -> Limits:
    """As many requests as are in flight, and pages for all of them as far as there is memory."""
    running = options.max_num_seqs or options.max_concurrency or MAX_RUNNING
    size = options.kv_page_size
    each = -(-(context + options.block_sizes[-1]) // size)
    pages = running * each
    if options.kv_tokens is not None:
        pages = options.kv_tokens // size
    else:
        pages = min(pages, pages_that_fit(model.config, size, model.decoder.device, model.decoder.dtype))
    if pages < 1:
        raise InputError(f"--kv-tokens: room for {pages * size} tokens, allowed: at least one page of {size}")
    return Limits(options.max_num_batched_tokens, options.prefill_chunk, running, size, pages)


def _warm_up(bench: Bench) -> None:
    """Serve a few requests of the load first; nothing of them is in the results."""
    for row in range(min(bench.options.num_warmups, len(bench.load))):
        bench.load.send(bench.engine, row)
    bench.engine.drain()
    if bench.engine.forwards.graphs:
        most = min(bench.options.max_concurrency or MAX_RUNNING, bench.engine.limits.max_running or 0)
        typer.echo(f"{bench.engine.prepare(counts_up_to(most))} kinds of rounds are prepared", err=True)


def _advance(bench: Bench, clients: Clients) -> bool:
    """Take in what is due and take a step; False when everything is served."""
    engine = bench.engine
    for arrival in clients.due(engine.now, engine.in_flight):
        try:
            bench.load.send(engine, arrival.row, arrival.arrival_s)
        except InputError as error:
            bench.refused[str(error)] += 1
    if engine.in_flight:
        changes = engine.step()
        if bench.options.save_trace is not None:
            bench.served.see(changes)
    elif clients.next is None:
        return False
    else:
        time.sleep(min(max(clients.next.arrival_s - engine.now, 0.0), IDLE_S))
    return True


def _document(bench: Bench, complete: bool) -> dict[str, Any]:
    options = bench.options
    closed = options.request_rate == float("inf")
    run = bench.engine.replay(options.max_concurrency, closed=closed)
    whole = answered(run)
    figures: Mapping[str, Any] = {}
    if len(whole.request):
        figures = metrics_of(whole, rounds_named(options.block_sizes, bench.model.config.name), bench.figures)
    document = {**_about(bench), "complete": complete, **figures, **_counts(bench), **_times(bench, run)}
    return detailed(whole, document) if options.save_detailed and len(whole.request) else document


def _about(bench: Bench) -> dict[str, Any]:
    options = bench.options
    rate = options.request_rate
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "recguide",
        "backend": "recguide",
        "label": options.label,
        "model_id": options.model,
        "tokenizer_id": options.model,
        "request_rate": "inf" if rate == float("inf") else rate,
        "burstiness": options.burstiness,
        "policy": options.policy,
        "batching": options.batching,
        "block_sizes": ",".join(map(str, options.block_sizes)),
        "acceptance": bench.load.judge.label if bench.load.judge is not None else "the model's own",
        "temperature": options.temperature,
        "adapter": options.adapter,
        "merge_drafts": drafts_merged(bench.model.decoder),
        "adapter_check": asdict(bench.engine.adapter),
        "dtype": options.dtype,
        **machine_of(bench.model.decoder.device),
        **bench.engine.forwards.told(),
        "command": command_line(),
    }


def _counts(bench: Bench) -> dict[str, Any]:
    finished = bench.engine.log.totals.finished
    return {
        "num_prompts": len(bench.load),
        "failed": bench.refused.total() + finished["error"],
        "refused": dict(bench.refused),
        "finish_reasons": dict(finished),
        "kv_pages": bench.engine.limits.kv_pages,
        "max_context": bench.engine.max_context,
    }


def _times(bench: Bench, run: Replay) -> dict[str, Any]:
    """Where the time of rounds went: forwards by the device's clock, the host's own work, and neither."""
    log, rounds = bench.engine.log, run.steps["block_size"] != PREFILL_STEP
    seconds, count = run.steps["seconds"], int(rounds.sum())
    round_s, forward_s, waited_s = (
        float(np.array(spent)[rounds].sum()) for spent in (seconds, log.forward_s, log.waited_s)
    )
    host_s, idle_s = round_s - waited_s, round_s - forward_s
    return {
        "prefill_s": float(seconds[~rounds].sum()),
        "round_s": round_s,
        "draft_s": sum(log.draft_s),
        "forward_s": forward_s,
        "host_s": host_s,
        "idle_s": idle_s,
        "mean_host_ms": host_s / count * 1e3 if count else None,
        "mean_idle_ms": idle_s / count * 1e3 if count else None,
        "between_steps_s": float(run.steps["start_s"][-1] + seconds[-1] - seconds.sum()) if len(seconds) else None,
    }


def _save(options: ServeOptions, document: Mapping[str, Any]) -> None:
    assert options.result is not None
    write_json(options.result, document)


def _provenance(bench: Bench) -> Provenance:
    options, model, engine = bench.options, bench.model, bench.engine
    longest = max(wish.max_new_tokens for wish in bench.load.wishes)
    return provenance_of(
        model,
        options.dtype,
        prompt_set_sha256="0" * 64,
        block_sizes=options.block_sizes,
        max_output_tokens=longest,
        max_context=engine.max_context,
        command="recguide bench serve",
        note=NOTE,
    )
