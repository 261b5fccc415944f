"""Prompts from JSON lines files: our own fields, Spec-Bench's questions, bare turns or bare prompts.

Fields read are ``id`` or ``question_id``, ``dataset``, ``category``, and ``prompt`` or ``turns``; others are let alone.
Of several turns the first is taken: a later one needs the model's answer to those before it.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from recguide.traces.errors import InputError

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message, without system prompt or chat template."""

    prompt_id: str
    dataset: str
    category: str
    text: str

    @property
    def sha256(self) -> str:
        """Of the text in UTF-8, as 64 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_prompts(paths: Sequence[Path | str], limit_per_dataset: int | None = None) -> list[Prompt]:
    """The prompts of all files in order, at most the first ``limit_per_dataset`` of each dataset.

    A row without id is called after its file and line index (from 0), one without dataset after its file, one without
    category "unknown". ValueError, with file and line, for whatever is no prompt, for an id that is there twice and
    for a file without prompts.
    """
    if limit_per_dataset is not None and limit_per_dataset < 1:
        raise InputError(f"limit_per_dataset: found {limit_per_dataset}, allowed: 1 or more")
    kept: list[Prompt] = []
    origin: dict[str, str] = {}
    taken: dict[str, int] = {}
    for where, prompt in (pair for path in paths for pair in _file_prompts(Path(path))):
        if prompt.prompt_id in origin:
            raise InputError(f"{where}: id: found {prompt.prompt_id!r}, which {origin[prompt.prompt_id]} has too")
        origin[prompt.prompt_id] = where
        taken[prompt.dataset] = taken.get(prompt.dataset, 0) + 1
        if limit_per_dataset is None or taken[prompt.dataset] <= limit_per_dataset:
            kept.append(prompt)
    return kept


def prompt_set_sha256(prompts: Sequence[Prompt]) -> str:
    """One hash for a set of prompts, whatever their order; any change to a field of any of them changes it."""
    rows = sorted(json.dumps(astuple(prompt)) for prompt in prompts)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _file_prompts(path: Path) -> Iterator[tuple[str, Prompt]]:
    """Each prompt of one file, after its "file:line"."""
    if path.is_dir():
        raise InputError(f"{path}: found a folder, allowed: a JSON lines file")
    if not path.exists():
        raise InputError(f"{path}: found no such file, allowed: a JSON lines file with prompts")
    index = 0
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if line.strip():
            where = f"{path}:{number}"
            yield where, _prompt(_row(line, where), path.stem, index, where)
            index += 1
    if index == 0:
        raise InputError(f"{path}: found no prompt, allowed: one JSON object a line, at least one")


def _row(line: bytes, where: str) -> Row:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8: {error}") from error
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"{where}: found a {type(row).__name__}, allowed: a JSON object")
    return row


def _prompt(row: Row, stem: str, index: int, where: str) -> Prompt:
    name = "id" if "id" in row else "question_id"
    # question_id is a number in Spec-Bench
    if isinstance(row.get(name), int) and not isinstance(row[name], bool):
        row = row | {name: str(row[name])}
    return Prompt(
        _text(row, name, where, default=f"{stem}/{index}"),
        _text(row, "dataset", where, default=stem),
        _text(row, "category", where, default="unknown"),
        _message(row, where),
    )


def _message(row: Row, where: str) -> str:
    if "turns" not in row:
        return _text(row, "prompt", where)
    turns = row["turns"]
    if "prompt" in row:
        raise InputError(f"{where}: prompt: found beside turns, allowed: one of them")
    if not isinstance(turns, list) or not turns:
        raise InputError(f"{where}: turns: found {turns!r}, allowed: a list of messages, at least one")
    return _text({"turns[0]": turns[0]}, "turns[0]", where)


def _text(row: Row, name: str, where: str, default: str | None = None) -> str:
    if name not in row and default is not None:
        return default
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {name}: found {value!r}, allowed: text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: {name}: half of a character pair: {error}") from error
    return value
