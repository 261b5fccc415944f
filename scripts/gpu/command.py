"""The console script where the package is not installed: `command.py ...` does what `recguide ...` does."""

import os
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def describe(folder: Path) -> None:
    """Write into ``folder`` what an installer would: the version, and which function each entry point is."""
    info = folder / f"recguide-{PROJECT['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: recguide\nVersion: {PROJECT['version']}\n")
    lines = []
    for group, entries in PROJECT["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


with TemporaryDirectory() as scratch:
    describe(Path(scratch))
    sys.path.insert(0, scratch)
    # processes that it starts find the entry points, too: SGLang's, that of the plugin
    os.environ["PYTHONPATH"] = os.pathsep.join([scratch, *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.argv[0] = "recguide"
    from recguide.sim.cli import main

    main()
