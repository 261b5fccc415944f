"""The command `recguide reproduce`."""

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="table1, fig2, fig3, repository, table2, table3, fig5, table4, table5, table6, heldout; default all."
        ),
    ] = None,
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "--output", help="Gets reproduce.html and reproduce.json.")
    ] = Path("results/reproduce"),
    trace: Annotated[list[str], typer.Option(help="Recorded traces to set beside; shipped ones by name.")] = [  # noqa: B006 - typer copies it
        "smollm2-135m"
    ],
    profile: Annotated[str, typer.Option(help="Their GPU profile.")] = "smollm2-135m-h200",
    recorded: Annotated[bool, typer.Option(help="Set the recorded traces beside.")] = True,
    requests: Annotated[int, typer.Option(min=8, help="Synthetic requests of each benchmark.")] = 64,
) -> None:
    """Put every table and figure of the paper beside ours: NLD-8B and 14B, simulated from published statistics."""
    # scipy and plotly are not needed to print the help of the commands
    from recguide.sim.paper.reproduce_run import run_reproduce

    run_reproduce(what or [], output_dir, trace if recorded else [], profile, requests)
