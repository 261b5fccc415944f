"""`recguide profile`: measures forward times on this machine and writes the profile that simulations read."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

    from recguide.engine.loading import LoadedModel


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """A comma list of positive whole numbers, ascending; ValueError names the option."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1 or list(numbers) != sorted(set(numbers)):
        raise ValueError(f"{option}: found {text!r}, allowed: ascending positive whole numbers, like 1,2,4")
    return numbers


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
    least_ms: Annotated[float, typer.Option(help="replays of a shape in a pass fill this time")] = 8.0,
    dtype: Annotated[str, typer.Option(help="bf16 or fp32")] = "bf16",
    device: Annotated[str, typer.Option()] = "auto",
) -> None:
    """Time draft, verify, one-token, four-row, quadratic and prefill forwards, and the host's share of a round."""
    from recguide.engine.environment import chosen_device
    from recguide.engine.host import measure_host
    from recguide.engine.profiling import Grid, measure, rows
    from recguide.sim.costs import write_profile

    if not output.parent.is_dir():
        raise ValueError(f"--output: {output.parent}: no such directory")
    loaded = _load(model, adapter, chosen_device(device), dtype)
    grid = Grid(
        whole_numbers(requests, "--requests"),
        whole_numbers(contexts, "--contexts"),
        whole_numbers(block_sizes, "--block-sizes"),
        whole_numbers(prefill, "--prefill"),
        layout_requests,
    )
    say = _say
    forward_times = measure(loaded.decoder, list(grid.shapes()), repeats, least_ms * 1e-3, say)
    host_times = measure_host(loaded.decoder, grid.requests, (1, *grid.block_sizes), repeats, say)
    write_profile(output, _header(loaded, loaded.decoder.device, dtype), rows({**forward_times, **host_times}))
    say(f"{output}: {len(forward_times) + len(host_times)} rows")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _load(model: str, adapter: str | None, device: "torch.device", dtype: str) -> "LoadedModel":
    import torch

    from recguide.engine.adapters import resolve_adapter
    from recguide.engine.loading import load_model
    from recguide.engine.shapes import SHAPES, add_random_draft_adapter

    dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32}
    if dtype not in dtypes:
        raise ValueError(f"--dtype: found {dtype!r}, allowed: {', '.join(dtypes)}")
    loaded = load_model(model, device, dtypes[dtype], resolve_adapter(adapter) if adapter else None)
    loaded.decoder.requires_grad_(False)
    if model in SHAPES:
        add_random_draft_adapter(loaded.decoder)
    return loaded


def _header(loaded: "LoadedModel", device: "torch.device", dtype: str) -> dict[str, str]:
    import torch

    from recguide.engine.environment import driver_version, engine_commit, gpu_name

    return {
        "model": loaded.config.name,
        "weights_sha256": loaded.weights_sha256,
        "adapter_sha256": loaded.adapter_sha256 or "none",
        "dtype": dtype,
        "gpu": gpu_name(device),
        "driver": driver_version(device),
        "torch": torch.__version__,
        "engine_commit": engine_commit(),
        "command": " ".join(["recguide", *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "attention": "torch flash kernel, equal contexts, CUDA graph replay; rows and quadratic see all their tokens"
        if device.type == "cuda"
        else "torch masked attention, eager",
        "spread": "half the distance of the quartiles over the repeats",
    }
