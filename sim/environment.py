"""What a results folder says about the machine and the code that made it."""

import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from recguide.sim.store import code_hash

PACKAGES = ("joblib", "numpy", "pandas", "plotly", "pyarrow", "scipy", "simpy")


def environment(profile: Mapping[str, str]) -> dict[str, Any]:
    """Versions here, and the GPU, driver and torch of the profile; neither time nor machine name."""
    return {
        "recguide": version("recguide"),
        "code_sha256": code_hash(),
        "git_commit": _commit(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: version(name) for name in PACKAGES},
        "profile": {key: profile.get(key) for key in ("gpu", "driver", "torch", "engine_commit")},
    }


def _commit() -> str | None:
    """The commit of a checkout that holds this file, or None."""
    here = Path(__file__).resolve()
    try:
        git = ["git", "-C", str(here.parent), "log", "-1", "--format=%H", "--", "."]
        done = subprocess.run(git, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
