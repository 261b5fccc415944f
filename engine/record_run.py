"""The steps behind `recguide record`: prompts and model in, dataset by dataset through the recorder, files out."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from recguide.engine.adapters import draft_only_decoder
from recguide.engine.environment import chosen_device
from recguide.engine.groups import Encoded, sizes_for
from recguide.engine.loading import LoadedModel, adapted, adapter_ranks, find_adapter, load_model
from recguide.engine.parts import Parts
from recguide.engine.provenance import provenance_of
from recguide.engine.record import TOO_LONG, Listener, Recorder, record_datasets
from recguide.engine.record_command import Options
from recguide.engine.shared_options import DTYPES
from recguide.traces.checks import require
from recguide.traces.datasets import Prompt, prompt_set_sha256, read_prompts
from recguide.traces.dense import DenseTrace, Provenance
from recguide.traces.errors import InputError
from recguide.traces.files import write_trace
from recguide.traces.merges import merge_traces

Dropped = dict[str, dict[str, int]]


def run(options: Options) -> list[tuple[Path, DenseTrace]]:
    """Record what the options ask for; gives the files written, with what is in them."""
    prompts = read_prompts(options.paths, None if options.seed is not None else options.limit)
    if options.seed is not None:
        prompts = drawn(prompts, options.limit, options.seed)
    recorder = _recorder(options, prompt_set_sha256(prompts))
    kept, dropped = _encoded(recorder, prompts[options.shard[0] - 1 :: options.shard[1]])
    folder = options.output.with_name(f"{options.output.name}.parts")
    parts = Parts(folder, recorder.provenance, options.with_token_ids)
    stems = {dataset: _stem(options, dataset) for dataset in kept}
    with _listening(sum(map(len, kept.values()))) as listener:
        traces, names = record_datasets(recorder, kept, parts, stems, listener)
    written = _written(options, traces, dropped)
    parts.remove(names)
    return written


def drawn(prompts: Sequence[Prompt], limit: int | None, seed: int) -> list[Prompt]:
    """At most ``limit`` prompts of each dataset, drawn at random and left in their order."""
    generator = random.Random(seed)
    by_dataset: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_dataset.setdefault(prompt.dataset, []).append(index)
    chosen = [generator.sample(rows, min(limit or len(rows), len(rows))) for rows in by_dataset.values()]
    return [prompts[index] for index in sorted(index for rows in chosen for index in rows)]


def _recorder(options: Options, prompt_set: str) -> Recorder:
    # fp32 means fp32: no TensorFloat-32 inside
    torch.set_float32_matmul_precision("highest")
    device, dtype = chosen_device(options.device), getattr(torch, DTYPES[options.dtype])
    adapter = None if options.adapter is None else find_adapter(options.adapter, options.model)
    shared_rank, draft_rank = (0, 0) if adapter is None else adapter_ranks(adapter)
    base = load_model(options.model, device, dtype)
    if base.tokenizer is None:
        raise InputError(f"model {options.model!r}: has no tokenizer, so it cannot read prompts")
    model = base if adapter is None else adapted(base, adapter)
    # merging draft updates saves a fifth of the work; in bf16 it would round them away
    drafter = draft_only_decoder(model.decoder) if draft_rank and dtype is torch.float32 else None
    provenance = _provenance(options, model, prompt_set)
    verifier_before = base.decoder if shared_rank else None
    return Recorder(model, verifier_before, provenance, sizes_for(device), options.with_token_ids, drafter)


def _provenance(options: Options, model: LoadedModel, prompt_set: str) -> Provenance:
    limit = model.config.max_context
    context = limit if options.max_context is None else options.max_context
    require(2 <= context <= limit, "--max-context", context, f"2 to {limit}, the model's")
    return provenance_of(
        model,
        options.dtype,
        prompt_set_sha256=prompt_set,
        block_sizes=options.block_sizes,
        max_output_tokens=options.max_output_tokens,
        max_context=context,
        command=options.command,
    )


def _encoded(recorder: Recorder, prompts: Sequence[Prompt]) -> tuple[dict[str, list[Encoded]], Dropped]:
    """Prompts as token ids, by dataset; and how many were left out because they fill the context."""
    assert recorder.model.tokenizer is not None
    kept: dict[str, list[Encoded]] = {}
    dropped: Dropped = {}
    for prompt in prompts:
        ids = recorder.model.tokenizer.encode_chat(prompt.text)
        if len(ids) < recorder.provenance.max_context:
            kept.setdefault(prompt.dataset, []).append(Encoded(prompt, ids))
        else:
            reasons = dropped.setdefault(prompt.dataset, {TOO_LONG: 0})
            reasons[TOO_LONG] += 1
    for dataset, reasons in dropped.items():
        typer.echo(f"{dataset}: left out {reasons[TOO_LONG]} {TOO_LONG}", err=True)
    require(bool(kept), "prompts", "none that fits", f"prompts of less than {recorder.provenance.max_context} tokens")
    return kept, dropped


def _written(
    options: Options, traces: Mapping[str, DenseTrace], dropped: Mapping[str, Mapping[str, int]]
) -> list[tuple[Path, DenseTrace]]:
    """Write one file, or one a dataset; what was left out before recording is counted in each."""
    if options.into_folder:
        options.output.mkdir(exist_ok=True)
        files = {
            options.output / f"{_stem(options, dataset)}.parquet": _with_dropped(
                trace, {dataset: dropped.get(dataset, {})}
            )
            for dataset, trace in traces.items()
        }
    else:
        merged = merge_traces([(Path(dataset), trace) for dataset, trace in traces.items()])
        files = {options.output: _with_dropped(merged, dropped)}
    for path, trace in files.items():
        write_trace(trace, path)
    return list(files.items())


def _stem(options: Options, dataset: str) -> str:
    return quote(dataset, safe="") + (f"-{options.shard_name}" if options.shard_name else "")


def _with_dropped(trace: DenseTrace, dropped: Mapping[str, Mapping[str, int]]) -> DenseTrace:
    """The trace with these counts added to its own; no reason is in both."""
    own = trace.provenance.dropped
    both = {dataset: {**dropped.get(dataset, {}), **own.get(dataset, {})} for dataset in {**dropped, **own}}
    kept = {dataset: reasons for dataset, reasons in both.items() if reasons}
    return replace(trace, provenance=replace(trace.provenance, dropped=kept))


@contextmanager
def _listening(total: int) -> Iterator[Listener]:
    """A bar of finished requests on stderr, or lines with the time of day where stderr is a file."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield _lines(total)
        return
    columns = ("recording", BarColumn(), MofNCompleteColumn(), "requests", TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("requests", total=total)
        yield Listener(lambda count: progress.advance(task, count), progress.console.log)


def _lines(total: int) -> Listener:
    done = 0

    def say(text: str) -> None:
        typer.echo(f"{datetime.now():%H:%M:%S} {text}", err=True)

    def finished(count: int) -> None:
        nonlocal done
        done += count
        say(f"{done} of {total} requests")

    return Listener(finished, say)
