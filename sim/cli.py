"""The console script `recguide`: its commands are entry points, so each folder brings its own and loads only when called."""

import sys
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

GROUP = "recguide.commands"


def command_of(entry: EntryPoint) -> click.Command:
    """The command behind an entry point: a typer app, or a plain function that becomes one."""
    target: Any = entry.load()
    if isinstance(target, typer.Typer):
        return typer.main.get_command(target)
    app = typer.Typer(add_completion=False)
    app.command(name=entry.name)(target)
    return typer.main.get_command(app)


class InstalledCommands(TyperGroup):
    """The commands of every installed folder, each imported when it is first asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, sorted."""
        return sorted(entry_points(group=GROUP).names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command by name, or None when there is no such command."""
        for entry in entry_points(group=GROUP, name=cmd_name):
            return command_of(entry)
        return None


app = typer.Typer(cls=InstalledCommands, no_args_is_help=True, add_completion=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("recguide"))
        raise typer.Exit


@app.callback()
def recguide(
    _version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Simulate, record, profile and serve diffusion-AR self-speculation."""


def main() -> None:
    """Run the console script: bad input exits 2 with one message on stderr."""
    try:
        app()
    except (ValueError, FileNotFoundError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
