"""The console script where the package is not installed: `command.py ...` does what `recguide ...` does."""

import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def describe(folder: Path) -> None:
    """Write into ``folder`` what an installer would: the version, and which function each command is."""
    info = folder / f"recguide-{PROJECT['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: recguide\nVersion: {PROJECT['version']}\n")
    commands = PROJECT["entry-points"]["recguide.commands"]
    lines = [f"{name} = {target}" for name, target in commands.items()]
    (info / "entry_points.txt").write_text("\n".join(["[recguide.commands]", *lines]) + "\n")


with TemporaryDirectory() as scratch:
    describe(Path(scratch))
    sys.path.insert(0, scratch)
    sys.argv[0] = "recguide"
    from recguide.sim.cli import main

    main()
