"""What a measurement has to say about the machine and the code that made it."""

import os
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from recguide.traces.errors import InputError


def engine_commit() -> str:
    """The git commit of this code, "+changes" where the checkout has uncommitted ones; else the release.

    RECGUIDE_COMMIT, when set, is taken at its word: for a copy of a checkout that left its .git behind.
    """
    told = os.environ.get("RECGUIDE_COMMIT")
    if told:
        return told
    commit = _output_of("git", "rev-parse", "HEAD")
    if commit:
        return commit + ("+changes" if _output_of("git", "status", "--porcelain", "--", ".") else "")
    try:
        return f"recguide {version('recguide')}"
    except PackageNotFoundError:
        return "unknown"


def command_line() -> str:
    """The command that this process runs, as a user types it, wherever the console script lies."""
    return shlex.join(["recguide", *sys.argv[1:]])


def gpu_name(device: torch.device) -> str:
    """The name of the GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def driver_version(device: torch.device) -> str:
    """The version of NVIDIA's driver, "none" on the CPU, "unknown" where nobody tells."""
    if device.type != "cuda":
        return "none"
    found = _output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return found.splitlines()[0] if found else "unknown"


def machine_of(device: torch.device) -> dict[str, str]:
    """What every measurement says: GPU, driver, torch, and the commit of this code."""
    return {
        "gpu": gpu_name(device),
        "driver": driver_version(device),
        "torch": str(torch.__version__),
        "engine_commit": engine_commit(),
    }


def chosen_device(name: str) -> torch.device:
    """The device of that name; "auto" is the GPU where there is one. ValueError when there is no such device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device {name!r}: not a device; allowed: auto, cpu, cuda, cuda:0, ...") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def _output_of(*command: str) -> str:
    """What a command prints, or nothing when it fails or is not installed."""
    try:
        done = subprocess.run(command, cwd=Path(__file__).resolve().parent, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
