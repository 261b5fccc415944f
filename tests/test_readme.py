"""The README shows what its commands really print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = [
    block
    for block in re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    if re.match(r"\$ recguide .*\n[^$]", block)
]


def test_there_are_three_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_what_stands_below_it(example: str, tmp_path: Path):
    command, printed = example.split("\n", 1)
    program = Path(sys.executable).with_name("recguide")
    run = subprocess.run(
        command.removeprefix("$ ").replace("recguide", str(program), 1),
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    trimmed = [line.rstrip() for line in run.stdout.splitlines()]

    assert trimmed == printed.splitlines()
