"""Rows of a profile file."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from recguide.traces.errors import InputError

PRODUCTS = "products"
"""Not forwards, but all matrix products of one (:mod:`recguide.sim.products`)."""
HOSTS = ("host", "host-adaptive", "host-allocation", "host-quadratic", "host-rows")
KINDS = ("decode", "draft", *HOSTS, "prefill", PRODUCTS, "quadratic", "rows", "verify")
MOST = 1e12
"""Of any number in a profile: 1e12 us are eleven days."""


def is_host(kind: str) -> bool:
    """Whether rows of this kind are the host's."""
    return kind.startswith("host")


class Row(NamedTuple):
    """One profiled forward, or a part of one; query and context tokens are summed over its requests."""

    kind: str
    requests: int
    query_tokens: int
    context_tokens: int
    median_us: float
    spread_us: float
    repeats: int


def read_row(where: str, line: str) -> Row:
    """The row that a line holds; InputError names ``where`` and the field."""
    cells = next(csv.reader([line]), [])
    if len(cells) != len(Row._fields):
        raise InputError(f"{where}: found {len(cells)} fields, allowed: {len(Row._fields)}")
    if cells[0] not in KINDS:
        raise InputError(f"{where}: kind: found {cells[0]!r}, allowed: {', '.join(KINDS)}")
    named = dict(zip(Row._fields, cells, strict=True))
    requests = _number(where, "requests", named, least=1)
    query_tokens = _number(where, "query_tokens", named, least=requests)
    context_tokens = _number(where, "context_tokens", named, least=0)
    median_us = _number(where, "median_us", named, least=0 if is_host(cells[0]) else 1e-3, whole=False)
    spread_us = _number(where, "spread_us", named, least=0, whole=False)
    repeats = _number(where, "repeats", named, least=1)
    return Row(cells[0], int(requests), int(query_tokens), int(context_tokens), median_us, spread_us, int(repeats))


def _number(where: str, field: str, cells: Mapping[str, str], *, least: float, whole: bool = True) -> float:
    try:
        value = int(cells[field]) if whole else float(cells[field])
    except ValueError:
        value = math.nan
    if not least <= value <= MOST:
        allowed = f"a {'whole number' if whole else 'number'} of at least {least:g} and at most {MOST:g}"
        raise InputError(f"{where}: {field}: found {cells[field]!r}, allowed: {allowed}")
    return value


def check_order(path: Path, first_line: int, rows: Sequence[Row]) -> None:
    """InputError unless rows of a kind ascend; ``first_line`` is that of the first row."""
    last: dict[str, tuple[int, ...]] = {}
    for line, row in enumerate(rows, first_line):
        shape = row[1:4]
        if row.kind in last and shape <= last[row.kind]:
            problem = "the same shape twice" if shape == last[row.kind] else "not sorted"
            found = f"{row.kind} requests,query_tokens,context_tokens {shape} after {last[row.kind]}"
            raise InputError(f"{path}:{line}: {problem}: {found}")
        last[row.kind] = shape
