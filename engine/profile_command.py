"""`recguide profile`: measures forward times on this machine and writes the profile that simulations read."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recguide.engine.shared_options import DTYPES, MergeDrafts, parse_block_sizes, told_of_drafts, whole_numbers
from recguide.traces.checks import require_place
from recguide.traces.errors import InputError

PROMPTS = "16,64,128,192,256,384,512,768,1024,1536,2048"
LAYOUTS = "rows,quadratic,adaptive,allocation"

if TYPE_CHECKING:
    from recguide.engine.loading import LoadedModel
    from recguide.engine.places import Grid
    from recguide.engine.profiling import Effort


def profile(
    model: Annotated[str, typer.Argument(help="smollm2-135m, nld-3b, nld-8b, nld-14b, or a Hugging Face directory")],
    output: Annotated[Path, typer.Option(help="the CSV file to write")],
    adapter: Annotated[str | None, typer.Option(help="adapter file, or the name of a shipped one")] = None,
    merge_drafts: MergeDrafts = None,
    requests: Annotated[str, typer.Option(help="requests in a forward")] = "1,2,3,4,6,8,12,16,24,32,48,64,96,128",
    contexts: Annotated[str, typer.Option(help="cached tokens of each request")] = "64,512,2048",
    block_sizes: Annotated[str, typer.Option(help="block sizes to draft and verify")] = "4,8,16,32",
    prefill: Annotated[str, typer.Option(help="prompt tokens of a prefill")] = PROMPTS,
    layout_requests: Annotated[int, typer.Option(help="measure rows and quadratic layouts up to this many")] = 8,
    layouts: Annotated[str, typer.Option(help="those to measure beside rounds of one block size for all")] = LAYOUTS,
    repeats: Annotated[int, typer.Option(min=1, help="interleaved passes over all places")] = 5,
    least_ms: Annotated[float, typer.Option(min=0, help="steps at a place in a pass fill this time, 8 at most")] = 60.0,
    warm_ms: Annotated[float, typer.Option(min=0, help="so long a place's work goes on before steps count")] = 150.0,
    seconds: Annotated[float, typer.Option(min=1, help="no further pass after this time, but two at least")] = 600.0,
    dtype: Annotated[str, typer.Option(help="bf16 or fp32")] = "bf16",
    device: Annotated[str, typer.Option()] = "auto",
    pin: Annotated[bool, typer.Option("--pin", help="keep the thread that serves on the fastest CPU")] = False,
) -> None:
    """Time steps of the serving engine: forwards of every kind by the GPU's clock, and what the host adds to them.

    Data: one line with the file written and its rows, on stdout. The file is there after the second pass already, and
    each further pass replaces it.
    """
    from recguide.engine.loading import open_model
    from recguide.engine.pinning import pin_to_fastest
    from recguide.engine.places import Grid
    from recguide.engine.profiling import Effort

    require_place(output, "--output")
    unknown = set(layouts.replace(" ", "").split(",")) - {*LAYOUTS.split(","), ""}
    if unknown:
        raise InputError(f"--layouts: found {sorted(unknown)[0]!r}, allowed: {LAYOUTS.replace(',', ', ')}")
    if dtype not in DTYPES:
        raise InputError(f"--dtype: found {dtype!r}, allowed: {', '.join(sorted(DTYPES))}")
    loaded = open_model(model, adapter or None, device, dtype, merge_drafts)
    grid = Grid(
        whole_numbers(requests, "--requests"),
        whole_numbers(contexts, "--contexts"),
        parse_block_sizes(block_sizes),
        whole_numbers(prefill, "--prefill"),
        layout_requests,
        tuple(name.strip() for name in layouts.split(",") if name.strip()),
    )
    effort = Effort(repeats, least_ms * 1e-3, seconds, warm_ms * 1e-3)
    if pin:
        pin_to_fastest()
    count = _measure(loaded, grid, effort, output, _header(loaded, dtype))
    typer.echo(f"{output}\t{count} rows")


def _measure(loaded: "LoadedModel", grid: "Grid", effort: "Effort", output: Path, header: dict[str, str]) -> int:
    """Write the profile after every pass; gives its number of rows."""
    from recguide.engine.hosts import smoothed, told_of_planes
    from recguide.engine.profiling import measure, product_rows, rows, speed, station_for
    from recguide.sim.costs import write_profile

    count, station = 0, station_for(loaded.decoder, grid)
    header |= station.forwards.told()
    products = product_rows(station.forwards.sizes)
    for passed in measure(station, grid, effort, _say):
        timed = rows(passed.timings)
        found = smoothed(timed)
        whole = found + products
        write_profile(output, header | speed(passed.loop) | told_of_planes(timed, found), whole)
        count = len(whole)
    return count


def _say(text: str) -> None:
    typer.echo(f"{datetime.now():%H:%M:%S} {text}", err=True)


def _header(loaded: "LoadedModel", dtype: str) -> dict[str, str]:
    from recguide.engine.adapters import drafts_merged
    from recguide.engine.environment import command_line, machine_of

    device = loaded.decoder.device
    return {
        "model": loaded.config.name,
        "weights_sha256": loaded.weights_sha256,
        "adapter_sha256": loaded.adapter_sha256 or "none",
        "dtype": dtype,
        **told_of_drafts(drafts_merged(loaded.decoder)),
        **machine_of(device),
        "command": command_line(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "attention": "row attention over pages, contexts a page apart, steps of the serving engine by CUDA graphs"
        if device.type == "cuda"
        else "torch masked attention, steps of the serving engine, eager",
        "spread": "half the distance of the quartiles over the repeats",
    }
