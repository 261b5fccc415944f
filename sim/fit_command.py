"""The command `recguide fit`."""

from pathlib import Path
from typing import Annotated

import typer


def fit(
    trace: Annotated[list[str], typer.Option(help="A dense trace: file, folder, or shipped name. May be repeated.")],
    profile: Annotated[str, typer.Option(help="A GPU profile: file, or shipped name.")],
    output: Annotated[Path, typer.Option(help="The policy file.")] = Path("policy.json"),
    max_concurrency: Annotated[
        list[str] | None, typer.Option("--max-concurrency", "--concurrency", help="Loads; a list with commas.")
    ] = None,
    block_sizes: Annotated[
        str | None, typer.Option(help="Candidates, with commas; default: 8,16,32 as far as they were recorded.")
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only requests of this dataset. May be repeated.")] = None,
    bins: Annotated[int, typer.Option(min=1, help="Of certainty.")] = 24,
    head: Annotated[
        int | None, typer.Option(min=1, help="Average entropy over the first few decisions of a round alone.")
    ] = None,
    bonus: Annotated[bool, typer.Option(help="Whether the bonus token is one of the decisions.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of the mixture of block sizes that is walked through.")] = 0,
    joint: Annotated[
        Path | None, typer.Option(help="Also fit rows and block sizes together, into this policy file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="A PNG of V_B and the decisions; default: beside OUTPUT.")] = None,
    cross_model: Annotated[
        bool, typer.Option("--cross-model", help="Allow the acceptance of one model on the costs of another.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Go on where the profile is of other weights.")] = False,
) -> None:
    """Fit the adaptive policy to a trace and a profile, and say what it gains on requests that it has not seen."""
    # scipy and matplotlib are not needed to print the help of the commands
    from recguide.sim.fit_run import Fit, run_fit
    from recguide.sim.history import Signal
    from recguide.traces.checks import require_place

    # the plot's name is made of it
    require_place(output, "--output")
    wanted = Fit(
        tuple(trace),
        profile,
        output,
        tuple(max_concurrency or ()),
        block_sizes,
        tuple(dataset or ()),
        Signal(head, bonus),
        bins,
        seed,
        joint,
        plot or output.with_suffix(".png"),
        cross_model,
        force,
    )
    run_fit(wanted)
