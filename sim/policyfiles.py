"""Policy files: JSON documents of several kinds, which name their format and kind."""

from pathlib import Path
from typing import Any

from recguide.traces.documents import read_json
from recguide.traces.errors import InputError

FORMAT = 1


def read_document(path: Path, kind: str, maker: str) -> dict[str, Any]:
    """A policy file of this kind, its contents unchecked; ``maker`` is the command that writes such files.

    FileNotFoundError, or a ValueError that names the file, the field, what was found and what is allowed.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such policy file; `recguide {maker}` makes one")
    document = read_json(path)
    said: dict[str, Any] = document if isinstance(document, dict) else {}
    for key, allowed in (("recguide_policy", FORMAT), ("kind", kind)):
        if said.get(key) != allowed:
            raise InputError(f"{path}: {key}: found {said.get(key)!r}, allowed: {allowed!r}")
    return said
