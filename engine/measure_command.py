"""`recguide measure`: the serving engine over policies, concurrencies and datasets, one file a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from recguide.engine.shared_options import DTYPES, MergeDrafts
from recguide.sim.measurement import ACCEPTANCE, ALL
from recguide.traces.checks import require
from recguide.traces.errors import InputError

AGAIN = 75
"""The exit code while runs lack: sysexits' EX_TEMPFAIL."""
Key = tuple[str, str, int]
"""Policy, dataset, concurrency."""


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """The command line, parsed and checked."""

    model: str
    trace: tuple[str, ...]
    profile: str | None
    adapter: str | None
    merge_drafts: bool | None
    points: tuple[Key, ...]
    more: tuple[Key, ...]
    """That are measured when all repeats of the others are there."""
    anchors: tuple[Key, ...]
    output: Path
    repeats: int
    requests_each: int
    least_requests: int
    steady_s: float | None
    warm_s: float
    """Seconds of serving before each run that is measured."""
    time_limit: float
    acceptance: str
    dataset_path: tuple[Path, ...]
    batching: str
    max_batched_tokens: int
    kv_tokens: int | None
    seed: int
    dtype: str
    device: str
    pin: bool = False


def measure(
    model: Annotated[str, typer.Argument(help="smollm2-135m, nld-8b, ..., or a Hugging Face directory")],
    trace: Annotated[list[str], typer.Option(help="trace with the requests: file, folder, or shipped name")],
    output_dir: Annotated[Path, typer.Option(help="the campaign's folder; the same command goes on there")],
    policy: Annotated[
        list[str], typer.Option(help="policy by name (docs/policies.md), NAME@1,2,4 at these concurrencies alone")
    ],
    max_concurrency: Annotated[str, typer.Option("--max-concurrency", "--concurrency", help="a list with commas")],
    dataset: Annotated[list[str] | None, typer.Option(help="its requests alone; default: all, mixed")] = None,
    more: Annotated[
        list[str] | None, typer.Option(help="POLICY@C or POLICY@C@DATASET, measured behind all others")
    ] = None,
    anchor: Annotated[
        list[str] | None, typer.Option(help="POLICY@C, measured anew at the start of every session; shows drift")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="for policies that look at costs")] = None,
    adapter: Annotated[str | None, typer.Option(help="adapter file, or the name of a shipped one")] = None,
    merge_drafts: MergeDrafts = None,
    acceptance: Annotated[str, typer.Option(help="model: its own; forced: the trace's, at real shapes")] = "model",
    dataset_path: Annotated[
        list[Path] | None, typer.Option(help="the prompts that were recorded, where the trace has no token ids")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="of each point, in interleaved passes")] = 3,
    requests_each: Annotated[int, typer.Option(min=1, help="requests for each place in flight")] = 4,
    least_requests: Annotated[int, typer.Option(min=1, help="requests of a run at least")] = 8,
    steady_seconds: Annotated[float | None, typer.Option(help="stop a run after so long with all places taken")] = None,
    warm_seconds: Annotated[float, typer.Option(min=0, help="serve the same for so long before each run")] = 0.0,
    time_limit: Annotated[float, typer.Option(help="seconds after which no further run starts")] = math.inf,
    batching: Annotated[str, typer.Option(help="as of recguide sweep")] = "bucket",
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="prompt tokens of one prefill step")] = 2048,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="tokens that the KV cache holds; default: all")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the order in which requests are sent")] = 0,
    dtype: Annotated[str, typer.Option(help="bf16 or fp32")] = "bf16",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    pin: Annotated[bool, typer.Option("--pin", help="keep the thread that serves on the fastest CPU")] = False,
) -> None:
    """Serve recorded requests in closed loops, and write what every step did and took, for `recguide validate`.

    Data: on stdout, a line for each run: its file, and its tokens per second. Runs that are there are not made again.
    Exit code 75 means that the time limit came first, and the same command goes on.
    """
    require(acceptance in ACCEPTANCE, "--acceptance", acceptance, " or ".join(ACCEPTANCE))
    require(dtype in DTYPES, "--dtype", dtype, " or ".join(DTYPES))
    require(steady_seconds is None or 0 < steady_seconds < math.inf, "--steady-seconds", steady_seconds, "above 0")
    require(math.isfinite(warm_seconds), "--warm-seconds", warm_seconds, "a number of seconds")
    require(time_limit > 0, "--time-limit", time_limit, "above 0")
    require(output_dir.is_dir() or not output_dir.exists(), "--output-dir", str(output_dir), "a folder, or a new name")
    keys = grid_of(policy, whole_numbers(max_concurrency), dataset or [ALL])
    options = MeasureOptions(
        model=model,
        trace=tuple(trace),
        profile=profile,
        adapter=adapter,
        merge_drafts=merge_drafts,
        points=keys,
        more=tuple(dict.fromkeys(key for key in map(parse_point, more or []) if key not in keys)),
        anchors=tuple(parse_anchor(text) for text in anchor or []),
        output=output_dir,
        repeats=repeats,
        requests_each=requests_each,
        least_requests=least_requests,
        steady_s=steady_seconds,
        warm_s=warm_seconds,
        time_limit=time_limit,
        acceptance=acceptance,
        dataset_path=tuple(dataset_path or ()),
        batching=batching,
        max_batched_tokens=max_num_batched_tokens,
        kv_tokens=kv_tokens,
        seed=seed,
        dtype=dtype,
        device=device,
        pin=pin,
    )
    _run(options)


def _run(options: MeasureOptions) -> None:
    from recguide.engine.measure_run import lacking, run

    for path, tokens_per_s in run(options):
        typer.echo(f"{path}\t{tokens_per_s:.1f} tokens/s")
    left = lacking(options)
    if left:
        typer.echo(f"{left} runs are still to be made: the same command goes on", err=True)
        raise typer.Exit(AGAIN)


def grid_of(policies: Sequence[str], concurrencies: Sequence[int], datasets: Sequence[str]) -> tuple[Key, ...]:
    """Every policy at every concurrency, or at those that it names itself, which must be among them."""
    own = dict(map(_own_levels, policies))
    for name, counts in own.items():
        wrong = [count for count in counts or () if count not in concurrencies]
        require(not wrong, f"--policy {name}: concurrency", wrong, f"those of --max-concurrency: {concurrencies}")
    return tuple(
        (name, where, count)
        for where in datasets
        for count in concurrencies
        for name, counts in own.items()
        if counts is None or count in counts
    )


def _own_levels(policy: str) -> tuple[str, tuple[int, ...] | None]:
    name, at, counts = policy.partition("@")
    return name, whole_numbers(counts) if at else None


def whole_numbers(text: str) -> tuple[int, ...]:
    """Concurrencies from a list such as ``1,8,64``."""
    parts = [part.strip() for part in text.split(",")]
    right = all(part.isdecimal() and int(part) >= 1 for part in parts) and len(set(parts)) == len(parts)
    require(right, "--max-concurrency", text, "whole numbers of at least 1 with commas between, each once")
    return tuple(map(int, parts))


def parse_anchor(text: str) -> Key:
    """A policy and a concurrency from a text such as ``fixed:16@8``."""
    policy, _, count = text.rpartition("@")
    if not policy or not count.isdecimal() or int(count) < 1:
        raise InputError(f"--anchor: found {text!r}, allowed: POLICY@C, as in fixed:16@8")
    return policy, ALL, int(count)


def parse_point(text: str) -> Key:
    """A point from a text such as ``fixed:16@8`` or ``fixed:16@8@gsm8k``."""
    policy, _, rest = text.partition("@")
    count, _, where = rest.partition("@")
    if not policy or not count.isdecimal() or int(count) < 1:
        raise InputError(f"--more: found {text!r}, allowed: POLICY@C or POLICY@C@DATASET, as in fixed:16@8@gsm8k")
    return policy, where or ALL, int(count)
