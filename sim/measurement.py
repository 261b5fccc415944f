"""A run of the serving engine as a file: vLLM's figures of it, and the log of its steps, for whoever compares.

Gzipped JSON, one file a run. Its keys are those of `vllm bench serve --save-detailed` (``recguide.sim.detailed``), and
behind them ``recguide_measurement``, ``about`` and ``log``; docs/validate.md describes these. The engine writes such
files, validation reads them, and neither needs the other.
"""

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.sim.detailed import detailed
from recguide.sim.log import Replay
from recguide.sim.rounds import Ints
from recguide.sim.stopped import ended
from recguide.traces.checks import require
from recguide.traces.errors import InputError
from recguide.traces.files import replacing

FORMAT = 1
SUFFIX = ".json.gz"
ACCEPTANCE = ("model", "forced")
ROLES = ("point", "anchor")
ALL = "all"
"""Stands where a dataset is named: requests of all of them, mixed."""
DECIDED_BY = "profile_sha256"
"""In ``About.origin``: the file of the profile by which policies that look at costs decided, where there was one."""
STEPS = ("start_s", "in_flight", "seconds", "block_size", "requests", "query_tokens", "context_tokens", "draft_tokens",
         "padding")  # fmt: skip
EMISSIONS = ("request", "tokens", "step", "block_size", "outcome")
TIMES = ("sent_s", "started_s")
COUNTS = ("preemptions", "recomputed_tokens")
MOST = 2**53
DECIMALS = 9
"""Of seconds."""

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class About:
    """What was run, where, and as what part of which campaign."""

    policy: str
    dataset: str
    """``ALL``, or the one that every request is of."""
    concurrency: int
    repeat: int
    """From 1."""
    role: str
    """"point", or "anchor": measured once more in every session, to show drift."""
    session: int
    """The call of the command that it was measured in, from 1."""
    acceptance: str
    """"model": its own drafts and verifications; "forced": those of the trace, at real shapes."""
    batching: str
    max_batched_tokens: int
    kv_tokens: int | None
    request_ids: tuple[str, ...]
    """Of the trace, in the order of sending."""
    trace: Mapping[str, Any]
    """Model, weights and prompt set of the trace that the requests are of."""
    origin: Mapping[str, str]
    """Model, weights, GPU, versions, command and time of the measurement."""

    @property
    def key(self) -> tuple[str, str, int]:
        """Which point of a campaign it is."""
        return self.policy, self.dataset, self.concurrency

    @property
    def name(self) -> str:
        """Of its file."""
        return name_of(*self.key, self.repeat, self.role, self.session)


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """A measured run."""

    about: About
    run: Replay
    """In the simulator's own form; times count from the first request sent."""
    draft_s: Seconds
    """[steps] Of the draft forward by the device's clock."""
    forward_s: Seconds
    """[steps] Of all forwards by the device's clock; the rest of a step is the host's."""
    limits: Ints | None = None
    """[requests] Output tokens after which each was made to end, if it came that far; None: as recorded."""
    stopped: bool = False
    """Whether it was stopped where it stood, behind its last step."""


def name_of(policy: str, dataset: str, concurrency: int, repeat: int, role: str = ROLES[0], session: int = 0) -> str:
    """The name of a run's file."""
    point = "-".join([*(re.sub(r"[^\w.=,-]+", "_", part) for part in (policy, dataset)), f"c{concurrency}"])
    return f"{point}-r{repeat}{SUFFIX}" if role == ROLES[0] else f"anchor-{point}-s{session}{SUFFIX}"


def served_path(path: Path) -> Path:
    """Beside a run's file: its own trace, with what was drafted and accepted, where the model said that."""
    return path.with_name(path.name.removesuffix(SUFFIX) + ".served.parquet")


def write_measurement(path: Path, measured: Measurement, figures: Mapping[str, Any]) -> None:
    """Write a run with its figures (``metrics_of``); the file appears whole or not at all."""
    document = {
        **detailed(measured.run, {"policy": measured.about.policy, **figures}),
        "recguide_measurement": FORMAT,
        "about": asdict(measured.about),
        "log": _log(measured),
    }
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    with replacing(path) as temporary:
        temporary.write_bytes(gzip.compress(text.encode(), mtime=0))


def _log(measured: Measurement) -> dict[str, Any]:
    run = measured.run
    steps = {name: run.steps[name] for name in STEPS}
    steps |= {"draft_s": measured.draft_s, "forward_s": measured.forward_s}
    if run.kv_pages is not None:
        steps["kv_pages"] = run.kv_pages
    emissions = {name: getattr(run, f"emission_{name}") for name in EMISSIONS}
    requests = {name: getattr(run, name) for name in TIMES}
    if measured.limits is not None:
        requests["limit"] = measured.limits
    tables = {"steps": steps, "emissions": emissions, "requests": requests}
    listed = {kind: {name: _listed(column) for name, column in table.items()} for kind, table in tables.items()}
    counts = {name: getattr(run, name) for name in COUNTS}
    return {**listed, "stopped": measured.stopped, **counts}


def _listed(column: NDArray[Any]) -> list[Any]:
    values: list[Any] = (column.round(DECIMALS) if column.dtype.kind == "f" else column).tolist()
    return values


def read_measurement(path: Path) -> Measurement:
    """Read and check one file; ValueError names the file and the field, what was found there and what is allowed."""
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise InputError(f"{path}: not gzipped JSON: {error}") from error
    try:
        return _parsed(document)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _parsed(document: object) -> Measurement:
    whole = _object(document, "document")
    found = whole.get("recguide_measurement")
    require(found == FORMAT, "recguide_measurement", found, FORMAT)
    about = _about(_object(whole.get("about"), "about"))
    log = _object(whole.get("log"), "log")
    steps, emissions, requests = (_object(log.get(name), f"log.{name}") for name in ("steps", "emissions", "requests"))
    count = len(about.request_ids)
    times = {name: _column(requests, name, "requests", count, whole=False) for name in TIMES}
    size = len(_listed_in(steps, "seconds", "steps"))
    require(size > 0, "log.steps", "none", "at least one")
    columns = {name: _column(steps, name, "steps", size, whole=not name.endswith(("_s", "seconds"))) for name in STEPS}
    own = {name: _column(steps, name, "steps", size, whole=False) for name in ("draft_s", "forward_s")}
    emitted = {name: _column(emissions, name, "emissions", whole=True) for name in EMISSIONS}
    lens = {name: _column(whole, name, "", count, whole=True) for name in ("input_lens", "output_lens")}
    pages = _column(steps, "kv_pages", "steps", size, whole=True) if "kv_pages" in steps else None
    limits = _column(requests, "limit", "requests", count, whole=True) if "limit" in requests else None
    stopped = log.get("stopped", False)
    require(isinstance(stopped, bool), "log.stopped", stopped, "true or false")
    _check(columns, own, emitted, lens)
    run = _replay(about, times, columns, emitted, lens, pages, [_count(log, name) for name in COUNTS])
    require(whole.get("total_output_tokens") == int(lens["output_lens"].sum()), "total_output_tokens",
            whole.get("total_output_tokens"), "the sum of output_lens")  # fmt: skip
    if limits is not None:
        _holds(lens["output_lens"] <= limits, "output_lens", "up to log.requests.limit")
    return Measurement(about, run, own["draft_s"], own["forward_s"], limits, stopped)


def _replay(
    about: About,
    times: Mapping[str, NDArray[Any]],
    steps: Mapping[str, NDArray[Any]],
    emitted: Mapping[str, NDArray[Any]],
    lens: Mapping[str, NDArray[Any]],
    pages: NDArray[Any] | None,
    counts: list[int],
) -> Replay:
    nothing = np.zeros(len(about.request_ids))
    run = Replay(
        concurrency=about.concurrency,
        closed=True,
        request=np.arange(len(about.request_ids)),
        prompt_tokens=lens["input_lens"],
        output_tokens=lens["output_lens"],
        arrival_s=nothing,
        first_token_s=nothing,
        finished_s=nothing,
        **times,
        steps={**steps, "outside": np.zeros(len(steps["seconds"]), np.bool_)},
        **{f"emission_{name}": column for name, column in emitted.items()},
        kv_pages=pages,
        preemptions=counts[0],
        recomputed_tokens=counts[1],
        seams=0,
        cut_rounds=None,
        reused_tokens=None,
    )
    run = ended(run)
    slack = 2 * 10.0**-DECIMALS
    ordered = (run.sent_s <= run.started_s + slack) & (run.started_s <= run.first_token_s + slack)
    _holds(ordered, "log.requests.started_s", "from when it was sent to its first token")
    return run


def _about(found: Mapping[str, Any]) -> About:
    names = {field.name for field in fields(About)}
    require(set(found) == names, "about", sorted(set(found) ^ names), "no field missing and none unknown")
    for name in ("policy", "dataset", "batching"):
        require(isinstance(found[name], str) and found[name] != "", f"about.{name}", found[name], "text")
    require(found["acceptance"] in ACCEPTANCE, "about.acceptance", found["acceptance"], ACCEPTANCE)
    require(found["role"] in ROLES, "about.role", found["role"], ROLES)
    for name in ("concurrency", "repeat", "session", "max_batched_tokens"):
        require(_is_count(found[name], 1), f"about.{name}", found[name], "a whole number of at least 1")
    tokens = found["kv_tokens"]
    require(tokens is None or _is_count(tokens, 1), "about.kv_tokens", tokens, "a whole number of at least 1, or null")
    ids = found["request_ids"]
    named = isinstance(ids, list) and len(ids) > 0 and all(isinstance(name, str) for name in ids)
    require(named, "about.request_ids", ids, "a list of texts, one at least")
    for name in ("trace", "origin"):
        _object(found[name], f"about.{name}")
    return About(**{**found, "request_ids": tuple(ids)})


def _check(
    steps: Mapping[str, NDArray[Any]],
    own: Mapping[str, Seconds],
    emitted: Mapping[str, NDArray[Any]],
    lens: Mapping[str, NDArray[Any]],
) -> None:
    """What a run promises: time goes on, and tokens add up."""
    slack = 2 * 10.0**-DECIMALS
    ends = steps["start_s"] + steps["seconds"]
    _holds(steps["start_s"][1:] >= ends[:-1] - slack, "log.steps.start_s", "no step before the last one's end")
    _holds(own["draft_s"] <= own["forward_s"] + slack, "log.steps.draft_s", "a part of forward_s")
    _holds(lens["output_lens"] > 0, "output_lens", "at least 1")
    _holds(emitted["request"] < len(lens["output_lens"]), "log.emissions.request", "requests that were sent")
    _holds(emitted["step"] < len(ends), "log.emissions.step", "steps of the log")
    _holds(np.diff(emitted["step"]) >= 0, "log.emissions.step", "in order")
    _holds(emitted["tokens"] > 0, "log.emissions.tokens", "at least 1")
    sums = np.bincount(emitted["request"], emitted["tokens"], len(lens["output_lens"]))
    _holds(sums == lens["output_lens"], "output_lens", "the sums of log.emissions.tokens")


def _holds(holds: NDArray[np.bool_], field: str, allowed: str) -> None:
    if not holds.all():
        raise InputError(f"{field}[{int(np.argmin(holds))}]: allowed: {allowed}")


def _column(table: Mapping[str, Any], name: str, kind: str, count: int | None = None, *, whole: bool) -> NDArray[Any]:
    where = f"log.{kind}.{name}" if kind else name
    values = _listed_in(table, name, kind)
    wanted = int if whole else (int, float)
    for row, value in enumerate(values):
        if not isinstance(value, wanted) or isinstance(value, bool) or not 0 <= value < MOST:
            kind = "a whole number" if whole else "a number"
            raise InputError(f"{where}[{row}]: found {value!r}, allowed: {kind} of at least 0")
    if count is not None and len(values) != count:
        raise InputError(f"{where}: found {len(values)} values, allowed: {count}")
    return np.array(values, np.int64 if whole else np.float64)


def _listed_in(table: Mapping[str, Any], name: str, kind: str) -> list[Any]:
    values = table.get(name)
    if not isinstance(values, list):
        raise InputError(f"{f'log.{kind}.{name}' if kind else name}: found {values!r}, allowed: a list")
    return values


def _count(table: Mapping[str, Any], name: str) -> int:
    require(_is_count(table.get(name), 0), f"log.{name}", table.get(name), "a whole number of at least 0")
    return int(table[name])


def _object(value: object, field: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{field}: found {type(value).__name__}, allowed: an object")
    return value


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
