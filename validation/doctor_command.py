"""`recguide doctor`: what is missing, what does not match, and the command that mends it."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from recguide.validation.doctor import FAILURE, Diagnosis, examine
from recguide.validation.machine import this_machine


def doctor(
    trace: Annotated[list[str] | None, typer.Option(help="trace to look at (file, folder or shipped name)")] = None,
    profile: Annotated[str | None, typer.Option(help="profile to look at (file or shipped name)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="a JSON list in place of the table")] = False,
) -> None:
    """Look at packages, GPU, a profile and traces: do they go together, here? Exit 1 when something must be mended.

    Without --trace and --profile the shipped ones of smollm2-135m are looked at.
    """
    asked = bool(trace or profile)
    found = examine(
        this_machine(), trace or ([] if asked else ["smollm2-135m"]), profile if asked else "smollm2-135m-h200"
    )
    if as_json:
        typer.echo(json.dumps([asdict(diagnosis) for diagnosis in found], indent=1))
    else:
        Console().print(_table(found))
    if any(diagnosis.state == FAILURE for diagnosis in found):
        raise typer.Exit(1)


def _table(found: list[Diagnosis]) -> Table:
    # paths are longer than what a narrow screen has for a word
    columns = (Column(name, overflow="fold") for name in ("what", "state", "found", "what helps"))
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for diagnosis in found:
        table.add_row(diagnosis.subject, diagnosis.state, diagnosis.found, diagnosis.remedy)
    return table
