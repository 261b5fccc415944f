"""The options that say who sends requests and when; contradictory ones are refused."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recguide.sim.loads import Load
from recguide.sim.memory import PAGE_SIZE, Limits
from recguide.sim.workloads import Workload
from recguide.traces.errors import InputError

EXCLUSIVE = (
    ("request-rate", "arrivals", "the file has its own times; --time-scale changes their rate"),
    ("arrivals", "lengths", "the file has its own lengths"),
    ("kv-tokens", "total-kv-pages", "both say how much fits"),
    ("prefix-reuse", "kv-tokens", "what a full cache gives up is not modelled"),
    ("prefix-reuse", "total-kv-pages", "what a full cache gives up is not modelled"),
)
NEEDS = (
    ("burstiness", ("request-rate",)),
    ("request-rate-mode", ("request-rate",)),
    ("time-scale", ("arrivals",)),
    ("lenient", ("arrivals", "lengths")),
    ("no-stitch", ("arrivals", "lengths")),
)
MODES = ("poisson", "constant")


def load_of(options: Mapping[str, Any], num_prompts: int | None, seed: int) -> Load:
    """The load that the options (without dashes in front; None where not given) describe; its order comes later."""
    check_together(options)
    arrivals, lengths = options.get("arrivals"), options.get("lengths")
    path = arrivals or lengths
    scale = 1.0 if options.get("time-scale") is None else float(options["time-scale"])
    if not 0 < scale < math.inf:
        raise InputError(f"time-scale: found {scale}, allowed: numbers above 0")
    lenient = bool(options.get("lenient"))
    workload = None if path is None else Workload(Path(path), scale, lenient, timed=arrivals is not None)
    return Load(
        order=(),
        rate=_rate(options.get("request-rate")),
        burstiness=_burstiness(options),
        workload=workload,
        num_prompts=num_prompts,
        seed=seed,
        stitch=not options.get("no-stitch"),
    )


def check_together(options: Mapping[str, Any]) -> None:
    """ValueError for options that contradict each other, or say something about one that is not given."""
    given = {name for name, value in options.items() if value is not None and value is not False}
    for one, other, reason in EXCLUSIVE:
        if {one, other} <= given:
            raise InputError(f"{one}: found beside {other}, allowed: one of them; {reason}")
    for name, others in NEEDS:
        if name in given and not given.intersection(others):
            raise InputError(f"{name}: found without {' or '.join(others)}, which it is about")


def check_stream(stream: bool, options: Mapping[str, Any]) -> None:
    """ValueError for options that need every request to be kept."""
    for name, value in options.items():
        if stream and value:
            raise InputError(f"stream: found beside {name}, which needs what a stream does not keep")


def _rate(rate: float | None) -> float | None:
    if rate is not None and not 0 < rate <= math.inf:
        raise InputError(f"request-rate: found {rate}, allowed: requests per second above 0, or inf")
    return rate


def _burstiness(options: Mapping[str, Any]) -> float | None:
    mode, shape = options.get("request-rate-mode"), options.get("burstiness")
    if mode not in (None, *MODES):
        raise InputError(f"request-rate-mode: found {mode!r}, allowed: {', '.join(MODES)}")
    if mode == "constant":
        if shape is not None:
            raise InputError("burstiness: found beside request-rate-mode constant, allowed: one of them")
        return None
    if shape is not None and not 0 < shape < math.inf:
        raise InputError(f"burstiness: found {shape}, allowed: numbers above 0")
    return 1.0 if shape is None else float(shape)


def limits_of(options: Mapping[str, Any], max_batched_tokens: int) -> Limits:
    """The server's limits that the options describe."""
    check_together(options)
    page_size = options.get("kv-page-size") or PAGE_SIZE
    pages = options.get("total-kv-pages")
    if options.get("kv-tokens") is not None:
        pages = options["kv-tokens"] // page_size
        if pages < 1:
            raise InputError(f"kv-tokens: found {options['kv-tokens']}, allowed: at least one page of {page_size}")
    if options.get("kv-page-size") is not None and pages is None and not options.get("prefix-reuse"):
        raise InputError("kv-page-size: found without kv-tokens, total-kv-pages or prefix-reuse, which it is about")
    chunk, running, reuse = (options.get(name) for name in ("prefill-chunk", "max-num-seqs", "prefix-reuse"))
    return Limits(max_batched_tokens, chunk, running, page_size, pages, bool(reuse))
