"""JSON documents: strict, and written whole."""

import json
from pathlib import Path
from typing import Any

from recguide.traces.errors import InputError
from recguide.traces.files import replacing


def as_json(content: object) -> str:
    """Strict JSON, a line for each value; ValueError for NaN and infinity, which JSON does not have."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object) -> None:
    """Write a document as :func:`as_json` has it."""
    write_text(path, as_json(content))


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the document holds
    """What a file holds; InputError with the file where that is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None
