"""The steps behind `recguide bench kernels`: fresh inputs, a check, a time, for every shape and method."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from recguide.engine.bench_methods import METHODS, OURS, NotAvailable
from recguide.engine.bench_shapes import Inputs, Shape, inputs, some_requests
from recguide.engine.bench_timing import Ceilings, Effort, hot_seconds, largest_error, seconds
from recguide.kernels.row_attention import row_attention_reference
from recguide.traces.documents import write_text

VERSION = "1"
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-5}
CHECKED_REQUESTS = 2
"""Of a large launch, the last ones are compared with the reference."""
SPARE_PAGES = 8
"""Pages for a request's rows, where each has its own."""


class Result(NamedTuple):
    """One row of the file; what could not be measured is empty, and the note says why."""

    model: str
    requests: int
    prefix: int
    layout: str
    tokens: int
    method: str
    median_us: float | None
    spread_us: float | None
    hot_us: float | None
    floor_us: float
    floor_share: float | None
    gb_s: float | None
    tflop_s: float | None
    largest_error: float | None
    note: str


def measure(
    shapes: Sequence[Shape],
    methods: Sequence[str],
    rates: Ceilings,
    limit_s: float,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    say: Callable[[str], None],
) -> Iterator[Result]:
    """A result for every shape and method; says how many shapes found no time."""
    started = time.monotonic()
    for index, shape in enumerate(shapes):
        if time.monotonic() - started > limit_s:
            say(f"{len(shapes) - index} of {len(shapes)} shapes not measured: {limit_s:.0f} s are over")
            return
        given = inputs(shape, device, dtype, seed + index, SPARE_PAGES * shape.requests)
        part = some_requests(given, CHECKED_REQUESTS)
        expected = row_attention_reference(part.q, part.keys, part.values, part.rows)[0]
        for method in methods:
            result = _measured(given, method, expected, rates)
            say(_spelled(result))
            yield result


def is_bad(result: Result) -> bool:
    """Whether a result was wrong, or a kernel of ours did not run."""
    return result.note.startswith("wrong") or (result.note.startswith("failed") and result.method in OURS)


def write_results(path: Path, header: Mapping[str, str], results: Sequence[Result]) -> None:
    """The results as CSV behind a header of comments; the file appears whole or not at all."""
    comments = [f"# {key}: {value}" for key, value in {"recguide-kernels": VERSION, **header}.items()]
    lines = [*comments, ",".join(Result._fields), *(",".join(map(_cell, row)) for row in results)]
    write_text(path, "\n".join(lines) + "\n")


def _measured(given: Inputs, method: str, expected: Tensor, rates: Ceilings) -> Result:
    """Check one method, then time it."""
    try:
        run, tokens_of = METHODS[method](given)
        found = tokens_of(run())
    except NotAvailable as problem:
        return _result(given.shape, method, rates, (), None, f"not available: {problem}")
    except (RuntimeError, NotImplementedError) as problem:
        # one method that cannot do a shape does not take the others with it; ours that fails ends in exit status 1
        return _result(given.shape, method, rates, (), None, f"failed: {str(problem).splitlines()[0][:80]}")
    error = largest_error(found[len(found) - len(expected) :], expected)
    if error > TOLERANCE[given.q.dtype]:
        return _result(given.shape, method, rates, (), error, "wrong")
    gpu = given.q.is_cuda
    times = seconds(run, Effort() if gpu else Effort(calls=1), given.q.device)
    return _result(given.shape, method, rates, (*times, hot_seconds(run, Effort())) if gpu else times, error, "")


def _result(
    shape: Shape, method: str, rates: Ceilings, times: tuple[float, ...], error: float | None, note: str
) -> Result:
    """A row, from the seconds of a call, their spread and its seconds without a flush, as far as they are known."""
    floor = rates.floor_s(shape.num_bytes, shape.flop)
    median, spread, hot = (*times, None, None, None)[:3]
    at = (shape.model, shape.requests, shape.prefix, shape.layout, len(shape.tail), method)
    spent = (_us(median), _us(spread), _us(hot), floor * 1e6)
    # attention's bytes and operations say nothing about the plan
    if median is None or median <= 0 or method == "plan":
        return Result(*at, *spent, None, None, None, error, note)
    return Result(*at, *spent, floor / median, shape.num_bytes / median / 1e9, shape.flop / median / 1e12, error, note)


def _us(time_s: float | None) -> float | None:
    return None if time_s is None else time_s * 1e6


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace(",", ";")


def _spelled(result: Result) -> str:
    where = f"{result.model} C={result.requests} {result.prefix} {result.layout} {result.method}"
    if result.median_us is None:
        return f"{where}: {result.note}"
    share = "" if result.floor_share is None else f", {result.floor_share:.0%} of the floor's rate"
    return f"{where}: {result.median_us:.1f} us (floor {result.floor_us:.1f}{share})"
