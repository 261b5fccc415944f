"""The command `recguide sweep`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from recguide.sim.costs import Profile
    from recguide.traces.dense import DenseTrace

POLICIES = ["ar", "fixed:8", "fixed:16", "fixed:32", "recipe", "oracle"]
CONCURRENCIES = ["1,2,4,8,16,32,64,128"]


def sweep(
    trace: Annotated[list[str], typer.Option(help="A trace: file, folder, or shipped name. May be repeated.")],
    profile: Annotated[str, typer.Option(help="A GPU profile: file, or shipped name.")],
    policy: Annotated[list[str], typer.Option(help="ar, fixed:B, recipe or oracle. May be repeated.")] = POLICIES,
    max_concurrency: Annotated[
        list[str], typer.Option("--max-concurrency", "--concurrency", help="Requests in flight; a list with commas.")
    ] = CONCURRENCIES,
    num_prompts: Annotated[
        int | None, typer.Option("--num-prompts", "--num-requests", min=1, help="Requests to serve; default: all.")
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only requests of this dataset. May be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order in which requests are sent.")] = 0,
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "--output", help="Gets results.parquet, results.json and frontier.png.")
    ] = Path("results"),
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one a core. Results do not depend on it.")] = 0,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens of one prefill step.")] = 2048,
    batching: Annotated[
        str, typer.Option(help="Unequal blocks: bucket (fullest first), bucket:oldest, bucket:round-robin, pad, ragged.")
    ] = "bucket",
    cross_model: Annotated[
        bool, typer.Option("--cross-model", help="Allow the acceptance of one model on the costs of another.")
    ] = False,
) -> None:
    """Replay a trace under policies and concurrencies, and draw the frontier of their throughputs."""
    # pyarrow and matplotlib are not needed to print the help of the commands
    from rich.console import Console

    from recguide.sim.costs import read_profile, resolve_profile
    from recguide.sim.memory import Limits
    from recguide.sim.results import table_of, write_results
    from recguide.sim.scenario import Scenario
    from recguide.sim.sweep import only_datasets, warnings_of
    from recguide.sim.sweep import sweep as run_sweep
    from recguide.traces.files import read_traces

    words = Console(stderr=True)
    concurrencies = parse_concurrencies(max_concurrency)
    check_folder(output_dir)
    costs = read_profile(resolve_profile(profile))
    recorded = only_datasets(read_traces(trace), dataset or [])
    title = title_of(recorded, costs, cross_model)
    with words.status(f"{len(recorded.requests)} recorded requests, {len(policy)} policies"):
        points = run_sweep(
            recorded,
            costs.costs(),
            policy,
            concurrencies,
            num_prompts=num_prompts,
            seed=seed,
            jobs=jobs or -1,
            scenario=Scenario(limits=Limits(max_batched_tokens=max_num_batched_tokens)),
            batching=batching,
        )
    warnings = warnings_of(points, len(recorded.requests))
    options = {
        "seed": seed,
        "num_prompts": num_prompts,
        "max_num_batched_tokens": max_num_batched_tokens,
        "batching": batching,
    }
    plot = write_results(output_dir, points, about(recorded, costs, warnings, options), title)
    width = None if Console().is_terminal else 120
    Console(width=width).print(table_of(points, title))
    for warning in warnings:
        words.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
    typer.echo(plot)


def parse_concurrencies(texts: Sequence[str]) -> list[int]:
    """Whole numbers of at least 1 from lists with commas."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"[0-9]{1,6}", part) or int(part) < 1:
            raise ValueError(
                f"max-concurrency: found {part!r}, allowed: whole numbers of at least 1, with commas between"
            )
    return [int(part) for part in parts]


def check_folder(folder: Path) -> None:
    """ValueError where results could not go, before anything is computed."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output-dir: found the file {folder}, allowed: a folder, or a new name")


def title_of(trace: "DenseTrace", profile: "Profile", cross_model: bool) -> str:
    """GPU, model and trace; ValueError where acceptance and costs are of two models and nobody allowed that."""
    recorded, profiled = trace.provenance.model, profile.header["model"]
    served = f"{len(trace.requests)} requests of {len({request.dataset for request in trace.requests})} datasets"
    if recorded == profiled:
        return f"{profile.header['gpu']}, {profiled}, {served}"
    if not cross_model:
        raise ValueError(
            f"{profile.path}: model: found {profiled!r}, but the trace is of {recorded!r}; "
            "--cross-model allows the acceptance of one model on the costs of another"
        )
    return f"CROSS-MODEL: acceptance of {recorded}, costs of {profiled} on {profile.header['gpu']}, {served}"


def about(trace: "DenseTrace", profile: "Profile", warnings: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """What the points come from, for the files."""
    from collections import Counter
    from dataclasses import asdict

    counts = Counter(request.dataset for request in trace.requests)
    return {
        "cross_model": trace.provenance.model != profile.header["model"],
        "options": options,
        "warnings": list(warnings),
        "datasets": dict(sorted(counts.items())),
        "trace": asdict(trace.provenance),
        "profile": dict(profile.header),
    }
