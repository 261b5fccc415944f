"""Running `recguide` inside the test's own process."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from recguide.sim.cli import main


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it wrote."""

    code: object
    stdout: str
    stderr: str


Recguide = Callable[..., Done]
"""Runs the console script with these arguments."""


def runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Recguide:
    """A function that runs the console script: what the fixture `recguide` gives."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr("sys.argv", ["recguide", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        written = capsys.readouterr()
        return Done(stop.value.code or 0, written.out, written.err)

    return run
