"""The commands of the console script on a machine where the package is not installed: command.py COMMAND ..."""

import sys
from importlib import import_module

import typer

NAMES = {
    "adapt": "recguide.engine.adapt_command:adapt",
    "profile": "recguide.engine.profile_command:profile",
    "record": "recguide.engine.record_command:record",
    "traces": "recguide.traces.commands:app",
}
module, name = NAMES[sys.argv.pop(1)].split(":")
command = getattr(import_module(module), name)
command() if isinstance(command, typer.Typer) else typer.run(command)
