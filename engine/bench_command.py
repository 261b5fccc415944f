"""`recguide bench`: times of our kernels beside those of others, each checked before it is timed."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recguide.engine.bench_match_command import match
from recguide.engine.bench_serve_command import serve
from recguide.engine.bench_sglang_command import sglang
from recguide.engine.shared_options import whole_numbers
from recguide.traces.checks import require_place
from recguide.traces.errors import InputError

if TYPE_CHECKING:
    import torch

    from recguide.engine.bench_run import Result
    from recguide.engine.bench_shapes import Shape
    from recguide.engine.bench_timing import Ceilings

app = typer.Typer(help="Serve loads and time kernels on this machine.", no_args_is_help=True, add_completion=False)


@app.callback()
def bench() -> None:
    """Serve loads and time kernels on this machine."""


app.command()(serve)
app.command()(match)
app.command()(sglang)


@app.command()
def kernels(
    output: Annotated[Path, typer.Option(help="the CSV file to write")],
    models: Annotated[str, typer.Option(help="whose heads: nld-8b, smollm2-135m")] = "nld-8b,smollm2-135m",
    requests: Annotated[str, typer.Option(help="requests in a launch")] = "1,2,4,8,32,64",
    prefixes: Annotated[str, typer.Option(help="cached tokens of each request")] = "1024,4096,16384",
    layouts: Annotated[str, typer.Option(help="rows of each request")] = ",".join(
        ("decode", "verify-8", "verify-16", "verify-32", "rows-16", "quadratic-16")
    ),
    methods: Annotated[str, typer.Option(help="what to time")] = "row-attention,plan,launch-a-row,sdpa,flex,flashinfer",
    seconds: Annotated[float, typer.Option(min=1, help="begin no further shape after this time")] = 600.0,
    seed: Annotated[int, typer.Option(help="of the inputs")] = 0,
    device: Annotated[str, typer.Option()] = "auto",
) -> None:
    """Time attention over shared prefixes, beside others' kernels and the floor that this machine's own rates set.

    Data: one line with the file written and its rows, on stdout. A result that is wrong, a method that is not there
    and a shape that found no time are rows or words, and counted. Exits 1 when a result is wrong,
    or a kernel of ours failed.
    """
    import torch

    from recguide.engine.bench_run import is_bad, measure, write_results
    from recguide.engine.bench_timing import ceilings
    from recguide.engine.environment import chosen_device

    require_place(output, "--output")
    wanted = _names(methods, "--methods")
    shapes = list(
        _shapes(models, whole_numbers(requests, "--requests"), whole_numbers(prefixes, "--prefixes"), layouts)
    )
    place = chosen_device(device)
    rates = ceilings(place)
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    found: list[Result] = []
    header = _header(place, rates, seed)
    for result in measure(shapes, wanted, rates, seconds, place, dtype, seed, _say):
        found.append(result)
        write_results(output, header, found)
    typer.echo(f"{output}\t{len(found)} rows")
    for note, count in Counter(result.note for result in found if result.note).items():
        _say(f"{count} rows: {note}")
    if any(is_bad(result) for result in found):
        raise typer.Exit(1)


def _names(text: str, option: str) -> list[str]:
    """The parts of a comma list; which are allowed, the option's dictionary says."""
    from recguide.engine.bench_methods import METHODS
    from recguide.engine.bench_shapes import HEADS, LAYOUTS

    allowed = {"--methods": list(METHODS), "--models": list(HEADS), "--layouts": list(LAYOUTS)}[option]
    names = text.split(",")
    for name in names:
        if name not in allowed:
            raise InputError(f"{option}: found {name!r}, allowed: {', '.join(allowed)}")
    return names


def _shapes(models: str, requests: tuple[int, ...], prefixes: tuple[int, ...], layouts: str) -> "Iterator[Shape]":
    """Every launch of the grid, the small ones first."""
    from recguide.engine.bench_shapes import PAGE_SIZE, Shape

    for prefix in prefixes:
        if prefix % PAGE_SIZE:
            raise InputError(f"--prefixes: found {prefix}, allowed: multiples of {PAGE_SIZE}")
    for model in _names(models, "--models"):
        for count in requests:
            for prefix in prefixes:
                for layout in _names(layouts, "--layouts"):
                    yield Shape(model, count, prefix, layout)


def _say(text: str) -> None:
    typer.echo(f"{datetime.now():%H:%M:%S} {text}", err=True)


def _header(device: "torch.device", rates: "Ceilings", seed: int) -> dict[str, str]:
    import triton

    from recguide.engine.environment import command_line, machine_of

    gpu = device.type == "cuda"
    return {
        **machine_of(device),
        "triton": triton.__version__,
        "command": command_line(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "copy_gb_s": f"{rates.copy_bytes_s / 1e9:.0f}",
        "matmul_tflop_s": f"{rates.matmul_flop_s / 1e12:.1f}",
        "dtype": "bf16" if gpu else "fp32",
        "seed": str(seed),
        "timing": "CUDA graph replay, L2 flushed before each call, not so for hot" if gpu else "eager, clocked",
        "spread": "half the distance of the quartiles over the replays",
    }
