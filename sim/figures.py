"""Which figures are asked for beside the usual ones: percentiles, service levels, confidence intervals."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recguide.traces.errors import InputError

SERVICE_LEVELS = ("ttft", "tpot", "e2el")
"""Latencies that a service level may bound, as in vLLM; all in milliseconds."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Beside mean, median and standard deviation."""

    percentiles: tuple[float, ...] = (99.0,)
    goodput: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds that a good request does not exceed, by latency."""
    resamples: int = 0
    """Of the bootstrap over requests; 0: no confidence intervals."""
    seed: int = 0


def parse_percentiles(texts: Sequence[str]) -> tuple[float, ...]:
    """Numbers from 0 to 100 from lists with commas, ascending."""
    found = set()
    for part in (part.strip() for text in texts for part in text.split(",")):
        if not re.fullmatch(r"\d{1,3}(\.\d{1,6})?", part) or float(part) > 100:
            raise InputError(f"metric-percentiles: found {part!r}, allowed: numbers from 0 to 100, with commas between")
        found.add(float(part))
    return tuple(sorted(found))


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """Service levels such as ``ttft:500 tpot:50``, in milliseconds."""
    levels: dict[str, float] = {}
    for part in (part for text in texts for part in text.replace(",", " ").split()):
        name, _, limit = part.partition(":")
        name = name.removesuffix("_ms")
        if name not in SERVICE_LEVELS or name in levels:
            problem = "given twice" if name in levels else f"allowed: {', '.join(SERVICE_LEVELS)}"
            raise InputError(f"goodput: found {part!r}, {problem}")
        try:
            levels[name] = float(limit)
        except ValueError:
            levels[name] = math.nan
        if not 0 < levels[name] < math.inf:
            raise InputError(f"goodput: found {part!r}, allowed: {name}: and milliseconds above 0")
    return levels


def percentile_name(percentile: float) -> str:
    """As vLLM writes it: p99, p99.9."""
    return f"p{percentile:g}"
