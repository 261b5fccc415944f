"""What this machine has, asked without loading torch."""

import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

SIMULATION = ("joblib", "matplotlib", "numpy", "pandas", "plotly", "pyarrow", "rich", "scipy", "simpy", "typer")
ENGINE = ("torch", "triton", "tokenizers", "safetensors", "gguf")
SERVE = ("prometheus-client", "pydantic", "starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class Machine:
    """Versions of what is installed, None where it is not, and the GPUs by name with their driver."""

    python: str
    packages: dict[str, str | None]
    gpus: tuple[str, ...]
    driver: str | None


def this_machine() -> Machine:
    """Ask the interpreter, the installed distributions and nvidia-smi."""
    packages = {name: _version(name) for name in ("recguide", *SIMULATION, *ENGINE, *SERVE)}
    lines = _nvidia_smi()
    gpus = tuple(line.partition(", ")[0] for line in lines)
    return Machine(platform.python_version(), packages, gpus, lines[0].partition(", ")[2] if lines else None)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _nvidia_smi() -> list[str]:
    """One line a GPU, "name, driver"; none where there is no driver."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []
