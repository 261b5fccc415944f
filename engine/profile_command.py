"""`recguide profile`: measures forward times on this machine and writes the profile that simulations read."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recguide.engine.shared_options import DTYPES, whole_numbers
from recguide.traces.errors import InputError

if TYPE_CHECKING:
    from recguide.engine.loading import LoadedModel
    from recguide.engine.profiling import Effort, Grid


def profile(
    model: Annotated[str, typer.Argument(help="smollm2-135m, nld-3b, nld-8b, nld-14b, or a Hugging Face directory")],
    output: Annotated[Path, typer.Option(help="the CSV file to write")],
    adapter: Annotated[str | None, typer.Option(help="adapter file, or the name of a shipped one")] = None,
    requests: Annotated[str, typer.Option(help="requests in a forward")] = "1,2,4,8,16,32,64,128",
    contexts: Annotated[str, typer.Option(help="cached tokens of each request")] = "64,512,2048",
    block_sizes: Annotated[str, typer.Option(help="block sizes to draft and verify")] = "4,8,16,32",
    prefill: Annotated[str, typer.Option(help="prompt tokens of a prefill")] = "64,256,512,1024,2048",
    layout_requests: Annotated[int, typer.Option(help="measure rows and quadratic layouts up to this many")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="interleaved passes over all shapes")] = 5,
    least_ms: Annotated[float, typer.Option(min=0, help="replays of a shape in a pass fill this time")] = 8.0,
    seconds: Annotated[float, typer.Option(min=1, help="no further pass after this time, but two at least")] = 600.0,
    dtype: Annotated[str, typer.Option(help="bf16 or fp32")] = "bf16",
    device: Annotated[str, typer.Option()] = "auto",
) -> None:
    """Time draft, verify, one-token, four-row, quadratic and prefill forwards, and the host's share of a round.

    Data: one line with the file written and its rows, on stdout. The file is there after the second pass already, and
    each further pass replaces it.
    """
    from recguide.engine.loading import open_model
    from recguide.engine.profiling import Effort, Grid

    if not output.parent.is_dir():
        raise InputError(f"--output: {output.parent}: no such directory")
    if dtype not in DTYPES:
        raise InputError(f"--dtype: found {dtype!r}, allowed: {', '.join(sorted(DTYPES))}")
    loaded = open_model(model, adapter or None, device, dtype)
    grid = Grid(
        whole_numbers(requests, "--requests"),
        whole_numbers(contexts, "--contexts"),
        whole_numbers(block_sizes, "--block-sizes"),
        whole_numbers(prefill, "--prefill"),
        layout_requests,
    )
    count = _measure(loaded, grid, Effort(repeats, least_ms * 1e-3, seconds), output, _header(loaded, dtype))
    typer.echo(f"{output}\t{count} rows")


def _measure(loaded: "LoadedModel", grid: "Grid", effort: "Effort", output: Path, header: dict[str, str]) -> int:
    """Write the profile after every pass; gives its number of rows."""
    from recguide.engine.host import measure_host
    from recguide.engine.profiling import measure, rows
    from recguide.sim.costs import write_profile

    # a fifth of the time for the host, whose shapes are few
    shares = [replace(effort, seconds=effort.seconds * share) for share in (0.2, 0.8)]
    host_times = measure_host(loaded.decoder, grid.requests, (1, *grid.block_sizes), shares[0], _say)
    count = 0
    for forward_times in measure(loaded.decoder, list(grid.shapes()), shares[1], _say):
        found = rows({**forward_times, **host_times})
        write_profile(output, header, found)
        count = len(found)
    return count


def _say(text: str) -> None:
    typer.echo(f"{datetime.now():%H:%M:%S} {text}", err=True)


def _header(loaded: "LoadedModel", dtype: str) -> dict[str, str]:
    from recguide.engine.environment import command_line, machine_of

    device = loaded.decoder.device
    return {
        "model": loaded.config.name,
        "weights_sha256": loaded.weights_sha256,
        "adapter_sha256": loaded.adapter_sha256 or "none",
        "dtype": dtype,
        **machine_of(device),
        "command": command_line(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "attention": "torch flash kernel, equal contexts, CUDA graph replay; rows and quadratic see all their tokens"
        if device.type == "cuda"
        else "torch masked attention, eager",
        "spread": "half the distance of the quartiles over the repeats",
    }
