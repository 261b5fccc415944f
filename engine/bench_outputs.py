"""Outputs that another server gave to the same prompts, out of the files of `recguide bench sglang`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recguide.traces.documents import read_json
from recguide.traces.errors import InputError

TOLD = ("gpu", "torch", "sglang", "dtype", "adapter", "weights", "engine_commit", "date", "command")
"""What is told of who served them, as far as a file has it."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """One run of that server."""

    path: Path
    policy: str
    """As of its own engine: ``sglang:fixed:16``."""
    concurrency: int
    rows: Sequence[int]
    """[requests] Which of the load's prompts each is of."""
    tokens: Sequence[Sequence[int]]
    prompt_tokens: Sequence[int]
    seconds: float
    about: Mapping[str, Any]

    def check(self, prompts: Sequence[Sequence[int]], most: int) -> None:
        """InputError unless these are answers to these prompts, of so many tokens at most."""
        for row, output, length in zip(self.rows, self.tokens, self.prompt_tokens, strict=True):
            if not 0 <= row < len(prompts):
                raise InputError(f"{self.path}: rows: found {row}, allowed: 0 to {len(prompts) - 1}, as many prompts")
            if len(prompts[row]) != length:
                raise InputError(
                    f"{self.path}: input_lens: found {length} tokens in row {row}, allowed: {len(prompts[row])}, "
                    "as that prompt of --dataset-path has"
                )
            if len(output) > most:
                found = f"found {len(output)} tokens in row {row}"
                raise InputError(f"{self.path}: output_ids: {found}, allowed: {most}, as --output-len")


def read_outputs(path: Path) -> Outputs:
    """The run in a ``.figures.json``; InputError for any other file, and for outputs that are no greedy ones."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise InputError(
            f"{path}: found a {type(document).__name__}, allowed: a .figures.json of recguide bench sglang"
        )
    _check(path, document)
    name = str(document["policy"])
    return Outputs(
        path=path,
        policy=name if name.startswith("sglang:") else f"sglang:{name}",
        concurrency=document["max_concurrency"],
        rows=document["rows"],
        tokens=document["output_ids"],
        prompt_tokens=document["input_lens"],
        seconds=float(document["duration"]),
        about={"file": path.name, **{field: document[field] for field in TOLD if field in document}},
    )


def _check(path: Path, document: Mapping[str, Any]) -> None:
    count = len(document["rows"]) if _whole(document.get("rows")) else 0
    wanted = {
        "rows": (count > 0, "a list of whole numbers: outputs are there unless acceptance was forced"),
        "output_ids": (_lists(document.get("output_ids"), count), "a list of tokens for each row"),
        "input_lens": (_whole(document.get("input_lens"), count), "a whole number for each row"),
        "policy": (isinstance(document.get("policy"), str), "a name"),
        "max_concurrency": (type(document.get("max_concurrency")) is int, "a whole number"),
        "duration": (isinstance(document.get("duration"), float | int), "seconds"),
        "temperature": (document.get("temperature") == 0, "0, greedy outputs"),
        "failed": (document.get("failed") == 0, "0"),
    }
    for field, (good, allowed) in wanted.items():
        if not good:
            found = json.dumps(document.get(field))
            raise InputError(f"{path}: {field}: found {found[:60]}, allowed: {allowed}")


def _whole(value: object, count: int | None = None) -> bool:
    good = isinstance(value, list) and all(type(each) is int for each in value)
    return good and (count is None or len(value) == count)  # type: ignore[arg-type]


def _lists(value: object, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(_whole(each) for each in value)
