"""The command `recguide sweep`."""

from pathlib import Path
from typing import Annotated

import typer

from recguide.sim.config import ConfigFile, PrintConfig, Settings, as_yaml, named_path, resolved

POLICIES = ["ar", "fixed:8", "fixed:16", "fixed:32", "recipe", "oracle"]


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
    request_rate: Annotated[
        list[str] | None, typer.Option(help="Requests per second, at random times, or inf; a list with commas.")
    ] = None,
    request_rate_mode: Annotated[str | None, typer.Option(help="poisson (default) or constant gaps.")] = None,
    burstiness: Annotated[float | None, typer.Option(help="Shape of Gamma gaps: 1 Poisson, less is burstier.")] = None,
    arrivals: Annotated[
        Path | None, typer.Option(parser=named_path, metavar="FILE", help="Arrival times and lengths to replay.")
    ] = None,
    time_scale: Annotated[float | None, typer.Option(help="Arrival times are multiplied by it.")] = None,
    lengths: Annotated[
        Path | None, typer.Option(parser=named_path, metavar="FILE", help="A file whose lengths alone are used.")
    ] = None,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Skip and count rows of --arrivals or --lengths that are at fault.")
    ] = False,
    no_stitch: Annotated[
        bool, typer.Option("--no-stitch", help="Refuse outputs longer than the recorded request drawn for them.")
    ] = False,
    num_prompts: Annotated[
        int | None, typer.Option("--num-prompts", "--num-requests", min=1, help="Requests to serve; default: all.")
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only requests of this dataset. May be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order in which requests are sent.")] = 0,
    output_dir: Annotated[
        Path,
        typer.Option(
            "--output-dir",
            "--output",
            parser=named_path,
            metavar="FOLDER",
            help="Where the results go; a second run goes on there.",
        ),
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
    prefix_reuse: Annotated[
        bool, typer.Option("--prefix-reuse", help="Prompts skip the pages that earlier ones began with.")
    ] = False,
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
        typer.Option("--stream", help="Keep sums alone, for runs too long to be kept: no report, no rows a request."),
    ] = False,
    batching: Annotated[
        str,
        typer.Option(
            help="Of unequal blocks: bucket (bucket:fullest), bucket:oldest, bucket:round-robin, pad, ragged."
        ),
    ] = "bucket",
    cross_model: Annotated[
        bool, typer.Option("--cross-model", help="Allow the acceptance of one model on the costs of another.")
    ] = False,
    report: Annotated[
        bool | None, typer.Option("--report/--no-report", help="Whether to write report.html; default: yes.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Go on where results would be worthless; they say so.")
    ] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    print_config: PrintConfig = False,
) -> None:
    """Replay a trace under policies and concurrencies, and draw the frontier of their throughputs."""
    # pyarrow and matplotlib are not needed to print the help of the commands
    from recguide.sim.sweep_run import run_sweep

    if print_config:
        typer.echo(as_yaml(resolved(ctx)), nl=False)
        raise typer.Exit
    run_sweep(ctx.params, resolved(ctx))
