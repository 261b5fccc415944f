"""`recguide validate`: simulated runs against measured ones."""

from pathlib import Path
from typing import Annotated

import typer

from recguide.sim.config import named_path
from recguide.traces.checks import require

COSTS = ("profile", "cpu-speed", "corrected", "even-steps")


def validate(
    campaign: Annotated[Path, typer.Argument(parser=named_path, metavar="FOLDER", help="what recguide measure wrote")],
    trace: Annotated[list[str], typer.Option(help="The trace that was served: file, folder, or shipped name.")],
    profile: Annotated[str, typer.Option(help="The profile of the GPU and model: file, or shipped name.")],
    output_dir: Annotated[
        Path, typer.Option(parser=named_path, metavar="FOLDER", help="Where validation.json and the page go.")
    ] = Path("validation-results"),
    policy: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    max_concurrency: Annotated[
        list[str] | None, typer.Option("--max-concurrency", "--concurrency", help="Only these; a list with commas.")
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    metric_percentiles: Annotated[str, typer.Option(help="Of the latencies; a list with commas. 99 always is.")] = "99",
    seen_concurrency: Annotated[
        list[str] | None, typer.Option(help="Used in profile or fit, so not held out; those profiled always are.")
    ] = None,
    seen_dataset: Annotated[
        list[str] | None, typer.Option(help="The same; those that policy files were fitted on always are.")
    ] = None,
    seen_policy: Annotated[list[str] | None, typer.Option(help="The same; repeatable.")] = None,
    max_mean_error: Annotated[float, typer.Option(min=0, help="Of the aggregate throughput, 0.02 is 2%.")] = 0.02,
    max_worst_error: Annotated[float, typer.Option(min=0, help="The same at the worst point.")] = 0.05,
    max_per_request_error: Annotated[float, typer.Option(min=0, help="Mean, of the throughput per request.")] = 0.03,
    max_tpot_error: Annotated[float, typer.Option(min=0, help="Of the p99 TPOT, at the worst point.")] = 0.10,
    min_tau: Annotated[float, typer.Option(min=-1, max=1, help="Of the policy ranking, ties left out.")] = 1.0,
    max_hypervolume_error: Annotated[float, typer.Option(min=0, help="At the worst frontier.")] = 0.02,
    min_agreement: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of rounds whose block size was foretold.")
    ] = None,
    max_octaves: Annotated[float | None, typer.Option(min=0, help="By which crossovers with AR may be off.")] = None,
    min_repeats: Annotated[int, typer.Option(min=1, help="Measured runs that every point must have.")] = 3,
    costs: Annotated[
        str,
        typer.Option(
            help="profile, cpu-speed (its host as slow as the CPU was in each run), "
            "corrected (by steps served at other C), or even-steps (fitted to every 2nd)."
        ),
    ] = "profile",
    cross_model: Annotated[
        bool, typer.Option("--cross-model", help="Allow the acceptance of one model on the costs of another.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Compare what was measured on other hardware or weights; it says so.")
    ] = False,
) -> None:
    """Compare the simulator with what the serving engine did, point by point, and say where a difference comes from.

    Exit code 1 where a threshold is not kept or a measurement is missing. docs/validate.md explains every figure.
    """
    # pyarrow and scipy are not needed to print the help of the commands
    from recguide.sim.figures import parse_percentiles
    from recguide.sim.sweep_run import parse_concurrencies
    from recguide.validation.validate_run import ValidateOptions, run
    from recguide.validation.verdict import Thresholds

    require(costs in COSTS, "--costs", costs, ", ".join(COSTS))
    thresholds = Thresholds(
        mean_error=max_mean_error,
        worst_error=max_worst_error,
        per_request_error=max_per_request_error,
        tpot_error=max_tpot_error,
        tau=min_tau,
        hypervolume_error=max_hypervolume_error,
        agreement=min_agreement,
        octaves=max_octaves,
        repeats=min_repeats,
    )
    options = ValidateOptions(
        campaign=campaign,
        trace=tuple(trace),
        profile=profile,
        output=output_dir,
        policies=tuple(policy or ()),
        concurrencies=tuple(parse_concurrencies(max_concurrency or [])),
        datasets=tuple(dataset or ()),
        percentiles=parse_percentiles([metric_percentiles, "99"]),
        seen=(
            tuple(map(str, parse_concurrencies(seen_concurrency or []))),
            tuple(seen_dataset or ()),
            tuple(seen_policy or ()),
        ),
        thresholds=thresholds,
        costs=costs,
        cross_model=cross_model,
        force=force,
    )
    if not run(options):
        raise typer.Exit(1)
