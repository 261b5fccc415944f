"""The console script `recguide`: its commands are entry points, so each folder brings its own."""

import errno
import sys
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from recguide.traces.errors import InputError

GROUP = "recguide.commands"
NOT_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""What a path on the command line may lead to."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""What a disk may answer to a write; nobody's input is at fault, and no code."""
BROUGHT_BY = {
    "engine": ("gguf", "huggingface_hub", "jinja2", "safetensors", "tokenizers", "torch", "triton"),
    "engine,serve": ("prometheus_client", "pydantic", "starlette", "uvicorn"),
}
"""Modules that a simulation does without, by the extras that bring them."""
# typer carries its own copy of click, and not under a public name: these two are
Command = TyperCommand | TyperGroup


def command_of(entry: EntryPoint) -> Command:
    """The command behind an entry point: a typer app, or a plain function that becomes one."""
    target: Any = entry.load()
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False)
        target.command(name=entry.name)(function)
    # boxes cut the names of options off on a screen of 80 columns
    target.rich_markup_mode = None
    command = cast(Command, typer.main.get_command(target))
    command.name = entry.name
    return command


class InstalledCommands(TyperGroup):
    """The commands of every installed folder, each imported when it is first asked for."""

    def list_commands(self, ctx: object) -> list[str]:
        """Names of all commands, sorted."""
        return sorted(entry_points(group=GROUP).names)

    def get_command(self, ctx: object, cmd_name: str) -> Command | None:
        """Load one command by name, or None when there is no such command."""
        for entry in entry_points(group=GROUP, name=cmd_name):
            return command_of(entry)
        return None


app = typer.Typer(cls=InstalledCommands, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("recguide"))
        raise typer.Exit


@app.callback()
def recguide(
    _version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Simulate, record, profile and serve diffusion-AR self-speculation."""


def with_dashes(word: str) -> str:
    """An option spelt with underscores as vLLM's users may spell it, ``--max_concurrency=8``, as ours; others as is."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word


def _extra_with(module: str | None) -> str | None:
    """The extras that bring a module, if it is of any."""
    name = (module or "").partition(".")[0]
    return next((extra for extra, modules in BROUGHT_BY.items() if name in modules), None)


def main() -> None:
    """Run the console script: bad input exits 2 with one message on stderr, any other error 1 with a traceback.

    A package that is not there, and that an extra brings, exits 2 too; a disk that takes nothing more 1 with a message.
    """
    try:
        app(args=[with_dashes(word) for word in sys.argv[1:]])
    except (InputError, *NOT_THERE) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if (extra := _extra_with(error.name)) is None:
            raise
        typer.echo(f"error: {error}; pip install 'recguide[{extra}]' brings it", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
