"""Arrival times and lengths of real services, from the files that they are published in (docs/simulate.md).

Azure's and BurstGPT's CSV, Mooncake's JSON lines, result files of `vllm bench serve --save-detailed` and SGLang's
bench_serving, Vidur's CSV, and a plain one. Lines are read one at a time, results of a benchmark as a whole.
"""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from recguide.traces.errors import InputError

Cells = Mapping[str, Any]


class Format(NamedTuple):
    """Which columns or keys hold what, and how many of the time's units are a second."""

    time: str | None
    input_tokens: str
    output_tokens: str
    per_second: int = 1


FORMATS = {
    "plain CSV": Format("arrival_s", "input_tokens", "output_tokens"),
    "Azure CSV": Format("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "BurstGPT CSV": Format("Timestamp", "Request tokens", "Response tokens"),
    "Vidur CSV": Format("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    "Mooncake JSONL": Format("timestamp", "input_length", "output_length", 1000),
    "lengths CSV": Format(None, "input_tokens", "output_tokens"),
}
HASHED_TOKENS = 512
RESULTS = Format("start_times", "input_lens", "output_lens")
YEAR_2096 = Decimal(4_000_000_000)
"""Seconds since 1970; times behind it are in a smaller unit."""


class Row(NamedTuple):
    """One request of a file."""

    where: str
    """File and line."""
    arrival_s: float
    """Seconds after the first one."""
    input_tokens: int
    output_tokens: int
    dataset: str | None
    category: str | None
    hash_ids: tuple[int, ...] = ()
    """Mooncake's: one for each ``HASHED_TOKENS`` of the prompt, equal where prompts are alike so far."""


@dataclass(slots=True)
class Counts:
    """What reading a file came upon."""

    rows: int = 0
    """Requests to serve."""
    failed: int = 0
    """Requests that gave no output tokens, or an error, when they were recorded; they are not served."""
    skipped: int = 0
    """Rows at fault, skipped because ``lenient`` allows it."""
    first_skipped: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Workload:
    """A file of arrivals, or of lengths alone."""

    path: Path
    time_scale: float = 1.0
    """Arrival times are multiplied by it."""
    lenient: bool = False
    """Whether to skip and count rows at fault, where otherwise a ValueError names file, line and field."""
    timed: bool = True
    """Whether its times matter."""

    def rows(self, counts: Counts | None = None) -> Iterator[Row]:
        """The requests in order, those that failed left out; ``counts`` is added to on the way."""
        counts = Counts() if counts is None else counts
        clock = _Clock(self, counts)
        for where, cells, form in _cells(self.path):
            try:
                row = _row(where, cells, form, clock if self.timed else None)
            except InputError as error:
                self.skip(error, counts)
                continue
            if row is None:
                counts.failed += 1
                continue
            counts.rows += 1
            yield row

    def skip(self, error: ValueError, counts: Counts) -> None:
        """Count a row at fault, or raise."""
        if not self.lenient:
            raise error
        counts.skipped += 1
        counts.first_skipped = counts.first_skipped or str(error)


class _Clock:
    """Times of a file as seconds after its first one."""

    def __init__(self, workload: Workload, counts: Counts) -> None:
        self.workload, self.counts = workload, counts
        self.origin: Decimal | None = None
        self.per_second = 1
        self.last = Decimal(0)

    def seconds(self, where: str, name: str, value: object, per_second: int) -> float:
        found = _instant(where, name, value)
        if self.origin is None:
            self._set_origin(found, per_second)
        elif found < self.last:
            raise InputError(f"{where}: {name}: found {value} after {self.last}, allowed: ascending times")
        self.last = found
        since = found - self.origin if self.origin is not None else Decimal(0)
        return float(since / self.per_second) * self.workload.time_scale

    def _set_origin(self, first: Decimal, per_second: int) -> None:
        self.origin, self.per_second = first, per_second
        while first / self.per_second > YEAR_2096:
            self.per_second *= 1000
        if self.per_second != per_second:
            unit = {10**3: "milliseconds", 10**6: "microseconds", 10**9: "nanoseconds"}.get(self.per_second, "?")
            self.counts.warnings.append(
                f"{self.workload.path}: times from {first} on are read as {unit} since 1970 and start at 0"
            )


def _instant(where: str, name: str, value: object) -> Decimal:
    """A number of the format's time unit, or seconds since 1970 of a date."""
    text = str(value).strip()
    try:
        found = Decimal(text) if not isinstance(value, bool) and "-" not in text[1:] else _date(text)
    except (InvalidOperation, ValueError):
        found = Decimal("nan")
    if not found.is_finite() or not 0 <= found < Decimal("1e30"):
        raise InputError(f"{where}: {name}: found {value!r}, allowed: a time of at least 0, finite")
    return found


def _date(text: str) -> Decimal:
    if "e-" in text.lower():
        return Decimal(text)
    when = datetime.fromisoformat(text)
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return Decimal((when - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND) / 10**6


_MICROSECOND = datetime(1970, 1, 1, 0, 0, 0, 1) - datetime(1970, 1, 1)


def _row(where: str, cells: Cells | ValueError, form: Format, clock: _Clock | None) -> Row | None:
    """The request of a row; None for one that failed."""
    if isinstance(cells, ValueError):
        raise cells
    seconds = 0.0
    if clock is not None:
        if form.time is None or cells.get(form.time) is None:
            raise InputError(f"{where}: {form.time or 'arrival_s'}: missing, allowed: a time of at least 0")
        seconds = clock.seconds(where, form.time, cells[form.time], form.per_second)
    if cells.get("error"):
        return None
    prompt, output = (_tokens(where, name, cells.get(name)) for name in (form.input_tokens, form.output_tokens))
    if prompt == 0:
        raise InputError(f"{where}: {form.input_tokens}: found 0, allowed: at least 1 prompt token")
    if output == 0:
        return None
    names = cells.get("dataset") or None, cells.get("category") or None
    return Row(where, seconds, prompt, output, *names, _hash_ids(where, cells.get("hash_ids")))


def _hash_ids(where: str, found: object) -> tuple[int, ...]:
    listed = found if isinstance(found, list) else [] if found is None else [found]
    return tuple(_tokens(where, "hash_ids", each) for each in listed)


def _tokens(where: str, name: str, value: object) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()):
        raise InputError(f"{where}: {name}: found {value!r}, allowed: a whole number of at least 0")
    return int(text)


def _cells(path: Path) -> Iterator[tuple[str, Cells | ValueError, Format]]:
    """Each row of a file with its place and format."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            lines = chain([first], file)
            if first.lstrip()[:1] in ("{", "["):
                yield from _json_rows(path, first, lines)
            else:
                yield from _csv_rows(path, lines)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error.reason} near byte {error.start}") from None


def _csv_rows(path: Path, lines: Iterator[str]) -> Iterator[tuple[str, Cells | ValueError, Format]]:
    reader = csv.reader(lines)
    names = [name.strip() for name in next(reader, [])]
    form = next((form for form in FORMATS.values() if set(form[:3]) - {None} <= set(names)), None)
    if form is None:
        known = "; ".join(",".join(name for name in form[:3] if name) for form in FORMATS.values())
        raise InputError(f"{path}:1: columns: found {','.join(names)!r}, allowed: {known}")
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{path}:{reader.line_num}: {error}") from None
        if cells is None:
            return
        where = f"{path}:{reader.line_num}"
        if cells and len(cells) != len(names):
            yield where, InputError(f"{where}: found {len(cells)} fields, allowed: {len(names)}"), form
        elif cells:
            yield where, dict(zip(names, cells, strict=True)), form


def _json_rows(path: Path, first: str, lines: Iterator[str]) -> Iterator[tuple[str, Cells | ValueError, Format]]:
    if not _is_whole(first):
        text = "".join(lines)
        yield from _result_rows(f"{path}", _object(f"{path}", text))
        return
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        if line.strip():
            yield from _json_row(where, line)


def _json_row(where: str, line: str) -> Iterator[tuple[str, Cells | ValueError, Format]]:
    try:
        cells = _object(where, line)
    except InputError as error:
        yield where, error, FORMATS["Mooncake JSONL"]
        return
    if RESULTS.input_tokens in cells:
        yield from _result_rows(where, cells)
    else:
        yield where, cells, FORMATS["Mooncake JSONL"]


def _is_whole(line: str) -> bool:
    """Whether a line is JSON by itself, or at least looks like it."""
    return line.strip()[:1] == "{" and line.strip()[-1:] == "}"


def _object(where: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}: {text.strip()[:80]!r}") from None
    if not isinstance(found, dict):
        raise InputError(f"{where}: found a {type(found).__name__}, allowed: a JSON object")
    return found


def _result_rows(where: str, result: Cells) -> Iterator[tuple[str, Cells | ValueError, Format]]:
    """Requests of a benchmark's result file, in order of their start."""
    columns: dict[str, list[Any]] = {}
    for name in (RESULTS.input_tokens, RESULTS.output_tokens):
        if not isinstance(result.get(name), list):
            raise InputError(f"{where}: {name}: missing, allowed: a list; was the result saved with --save-detailed?")
        columns[name] = result[name]
    count = len(columns[RESULTS.input_tokens])
    columns |= {
        name: result[key] for name, key in (("start_times", "start_times"), ("error", "errors")) if key in result
    }
    for name, cells in columns.items():
        if not isinstance(cells, list) or len(cells) != count:
            raise InputError(f"{where}: {name}: found another length than input_lens, allowed: {count} entries")
    order: Callable[[int], float] = lambda index: _sort_key(columns.get("start_times"), index)  # noqa: E731
    for index in sorted(range(count), key=order):
        yield f"{where}: request {index}", {name: cells[index] for name, cells in columns.items()}, RESULTS


def _sort_key(times: list[Any] | None, index: int) -> float:
    try:
        found = float(times[index]) if times is not None else 0.0
    except (TypeError, ValueError):
        return -math.inf
    return found if math.isfinite(found) else -math.inf
