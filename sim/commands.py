"""The command `recguide sweep`."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recguide.sim.config import ConfigFile, PrintConfig, Settings, as_yaml, resolved

if TYPE_CHECKING:
    from rich.console import Console

    from recguide.sim.costs import Profile
    from recguide.traces.dense import DenseTrace

POLICIES = ["ar", "fixed:8", "fixed:16", "fixed:32", "recipe", "oracle"]
NO_LIMIT = 0
CONCURRENCIES = ["1,2,4,8,16,32,64,128"]
NOT_SHARED = {
    "trace",
    "profile",
    "policy",
    "max_concurrency",
    "output_dir",
    "jobs",
    "backend",
    "cross_model",
    "report",
    "force",
}
"""Options that do not decide what every point is: the first four count point by point, or by their content."""


def sweep(
    ctx: typer.Context,
    trace: Annotated[list[str], typer.Option(help="A trace: file, folder, or shipped name. May be repeated.")],
    profile: Annotated[str, typer.Option(help="A GPU profile: file, or shipped name.")],
    policy: Annotated[
        list[str], typer.Option(help="Name and options (docs/policies.md), or FILE.py:function. Repeatable.")
    ] = POLICIES,
    max_concurrency: Annotated[
        list[str] | None,
        typer.Option(
            "--max-concurrency",
            "--concurrency",
            help="Requests in flight; a list with commas. Default: 1,2,4,...,128, or no limit where requests have "
            "arrival times.",
        ),
    ] = None,
    request_rate: Annotated[float | None, typer.Option(help="Requests per second, at random times; inf.")] = None,
    request_rate_mode: Annotated[str | None, typer.Option(help="poisson (default) or constant gaps.")] = None,
    burstiness: Annotated[float | None, typer.Option(help="Shape of Gamma gaps: 1 Poisson, less is burstier.")] = None,
    arrivals: Annotated[Path | None, typer.Option(help="A file of arrival times and lengths to replay.")] = None,
    time_scale: Annotated[float | None, typer.Option(help="Arrival times are multiplied by it.")] = None,
    lengths: Annotated[Path | None, typer.Option(help="A file whose lengths alone are used.")] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip and count rows of it that are at fault.")] = False,
    no_stitch: Annotated[
        bool, typer.Option("--no-stitch", help="Refuse outputs longer than the recorded request drawn for them.")
    ] = False,
    num_prompts: Annotated[
        int | None, typer.Option("--num-prompts", "--num-requests", min=1, help="Requests to serve; default: all.")
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only requests of this dataset. May be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order in which requests are sent.")] = 0,
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "--output", help="The folder of the results; a second run goes on there.")
    ] = Path("results"),
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one a core. Results do not depend on it.")] = 0,
    backend: Annotated[str, typer.Option(help="loky: processes here; ray or dask: a cluster.")] = "loky",
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens of one prefill step.")] = 2048,
    prefill_chunk: Annotated[
        int | None, typer.Option(min=1, help="Split prompts into steps of so many tokens.")
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Requests that the server runs at a time.")] = None,
    kv_page_size: Annotated[int | None, typer.Option(min=1, help="Tokens of a KV page (16).")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that the KV cache holds; default: all.")] = None,
    total_kv_pages: Annotated[int | None, typer.Option(min=1, help="The same in pages.")] = None,
    goodput: Annotated[
        list[str] | None, typer.Option(help="What a good request does not exceed: 'ttft:500 tpot:50', in ms.")
    ] = None,
    metric_percentiles: Annotated[str, typer.Option(help="Of the latencies; a list with commas.")] = "99",
    bootstrap: Annotated[int, typer.Option(min=0, help="Resamples for confidence intervals; 0: none.")] = 0,
    save_detailed: Annotated[
        bool, typer.Option("--save-detailed", help="Also write every point as vllm bench serve --save-detailed does.")
    ] = False,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Keep sums alone, for runs too long to be kept: no report, no steady window."),
    ] = False,
    batching: Annotated[
        str,
        typer.Option(help="Of unequal blocks: bucket, bucket:oldest, bucket:round-robin, pad or ragged."),
    ] = "bucket",
    cross_model: Annotated[
        bool, typer.Option("--cross-model", help="Allow the acceptance of one model on the costs of another.")
    ] = False,
    report: Annotated[bool, typer.Option(help="Also write report.html, one page with every figure.")] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Go on where results would be worthless; they say so.")
    ] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    print_config: PrintConfig = False,
) -> None:
    """Replay a trace under policies and concurrencies, and draw the frontier of their throughputs."""
    # pyarrow and matplotlib are not needed to print the help of the commands
    from rich.console import Console

    from recguide.sim.backends import check_backend
    from recguide.sim.costs import read_profile, resolve_profile
    from recguide.sim.environment import environment
    from recguide.sim.fidelity import check_fidelity, fidelity_warnings, labelled
    from recguide.sim.figures import Figures, parse_goodput, parse_percentiles
    from recguide.sim.guards import check_points, check_sources, settle
    from recguide.sim.load_options import check_stream, limits_of, load_of
    from recguide.sim.reporting import FILE, page_of
    from recguide.sim.results import as_json, write_results
    from recguide.sim.scenario import Scenario
    from recguide.sim.store import Store, inputs_hash, labels_of
    from recguide.sim.sweep import only_datasets, warnings_of
    from recguide.sim.sweep import sweep as run_sweep
    from recguide.sim.tables import UNLIMITED, table_of
    from recguide.traces.files import read_traces

    if print_config:
        typer.echo(as_yaml(resolved(ctx)), nl=False)
        raise typer.Exit
    words = Console(stderr=True)
    load_options = {
        "request-rate": request_rate,
        "request-rate-mode": request_rate_mode,
        "burstiness": burstiness,
        "arrivals": arrivals,
        "time-scale": time_scale,
        "lengths": lengths,
        "lenient": lenient,
        "no-stitch": no_stitch,
        "prefill-chunk": prefill_chunk,
        "max-num-seqs": max_num_seqs,
        "kv-page-size": kv_page_size,
        "kv-tokens": kv_tokens,
        "total-kv-pages": total_kv_pages,
    }
    load = load_of(load_options, num_prompts, seed)
    levels = max_concurrency or (CONCURRENCIES if load.closed else [])
    concurrencies = parse_concurrencies(levels) or [NO_LIMIT]
    scenario = Scenario(
        load,
        limits_of(load_options, max_num_batched_tokens),
        Figures(parse_percentiles([metric_percentiles]), parse_goodput(goodput or []), bootstrap, seed),
        output_dir if save_detailed else None,
        stream,
    )
    check_folder(output_dir)
    check_backend(backend)
    check_stream(stream, {"save-detailed": save_detailed, "bootstrap": bootstrap})
    report = report and not stream
    costs = read_profile(resolve_profile(profile))
    recorded = only_datasets(read_traces(trace), dataset or [])
    check_fidelity(recorded, policy)
    title = labelled(recorded, title_of(recorded, costs, cross_model))
    found = check_sources(recorded, costs)
    settle(found, force)
    shared = {name: value for name, value in resolved(ctx).items() if name not in NOT_SHARED}
    store = Store(output_dir, inputs_hash(recorded, costs, shared), labels_of(recorded))
    with progress_on(words, len({"ar", *policy}) * len(set(concurrencies))) as done:
        points = run_sweep(
            recorded,
            costs.costs(),
            policy,
            concurrencies,
            num_prompts=num_prompts,
            seed=seed,
            jobs=jobs or -1,
            backend=backend,
            scenario=scenario,
            batching=batching,
            store=store,
            done=done,
        )
    found += check_points(points, costs.costs(), recorded.provenance.block_sizes)
    warnings = [*fidelity_warnings(recorded), *settle(found, force), *warnings_of(points, len(recorded.requests))]
    options = {
        "seed": seed,
        "num_prompts": num_prompts,
        "max_num_batched_tokens": max_num_batched_tokens,
        "batching": batching,
        **{
            name.replace("-", "_"): str(value) if isinstance(value, Path) else value
            for name, value in load_options.items()
        },
    }
    if store.reused:
        words.print(f"{store.reused} of {len(points)} points were in {store.folder} already", highlight=False)
    origin = about(recorded, costs, warnings, options)
    page = page_of(points, origin, title, store, recorded, costs) if report else None
    texts = {FILE: page, "config.resolved.yaml": as_yaml(resolved(ctx)), "env.json": as_json(environment(costs.header))}
    plot = write_results(output_dir, points, origin, title, texts)
    store.keep_only(points)
    screen = Console()
    width = screen.width if screen.is_terminal else UNLIMITED
    table, hidden = table_of(points, title, width)
    Console(width=width).print(table)
    if hidden:
        words.print(hidden, style="dim", highlight=False)
    for warning in warnings:
        words.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
    if report:
        typer.echo(output_dir / FILE)
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


@contextmanager
def progress_on(words: "Console", total: int) -> Iterator[Callable[[], None]]:
    """A line on stderr about points done and time left while a sweep runs, where somebody looks at it."""
    from rich.progress import Progress

    with Progress(console=words, transient=True, disable=not words.is_terminal) as bar:
        task = bar.add_task("points", total=total)
        yield lambda: bar.advance(task)


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

    from recguide.traces.sparse import is_reduced

    counts = Counter(request.dataset for request in trace.requests)
    return {
        "reduced_fidelity": is_reduced(trace),
        "cross_model": trace.provenance.model != profile.header["model"],
        "options": options,
        "warnings": list(warnings),
        "datasets": dict(sorted(counts.items())),
        "trace": asdict(trace.provenance),
        "profile": dict(profile.header),
    }
