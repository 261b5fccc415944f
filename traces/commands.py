"""The commands of `recguide traces`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from recguide.traces.import_command import import_trace

app = typer.Typer(help="Look at recorded traces, and import others.", no_args_is_help=True, add_completion=False)


@app.callback()
def traces() -> None:
    """Look at recorded traces, and import others."""


app.command("import")(import_trace)


@app.command()
def show(
    trace: Annotated[list[str], typer.Argument(help="Files, folders of *.parquet, or names of shipped traces.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object instead.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw confidence, margin and agreement into this PNG.")] = None,
) -> None:
    """Show where a trace comes from, and what acceptance it holds."""
    # numpy, pyarrow and matplotlib are not needed to print the help of the commands
    from recguide.traces.checks import require_place
    from recguide.traces.files import read_traces
    from recguide.traces.summaries import summarise
    from recguide.traces.tables import tables

    require_place(plot, "--plot")
    summary = summarise(read_traces(trace))
    if plot is not None:
        from recguide.traces.plots import plot_trace

        plot_trace(summary.confidence, summary.offsets, summary.provenance.model, plot)
    if as_json:
        typer.echo(json.dumps(asdict(summary), indent=1, allow_nan=False))
    else:
        # columns narrower than that lose figures
        Console(width=max(Console().width, 40)).print(*tables(summary), sep="\n")
