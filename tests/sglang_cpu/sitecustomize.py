"""Loaded by every Python that has this folder on its path, SGLang's subprocesses too."""

import importlib.util
import os
from pathlib import Path

import placeholders

MODELS = ("llama", "ministral3", "registry")


def _settings() -> dict[str, str]:
    """Variables of SGLang's: for the CPU, and without the hundred and more models that nobody asks for here."""
    settings = {"SGLANG_USE_CPU_ENGINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    found = importlib.util.find_spec("sglang")
    if found is not None and found.origin is not None:
        models = (Path(found.origin).parent / "srt" / "models").glob("*.py")
        settings["SGLANG_DISABLED_MODEL_ARCHS"] = ",".join(path.stem for path in models if path.stem not in MODELS)
    return settings


placeholders.install()
for name, value in _settings().items():
    os.environ.setdefault(name, value)
