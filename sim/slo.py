"""Which points of a sweep keep a service level: judged request by request, from the files of its folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recguide.sim.levels import Level, level_of
from recguide.sim.results import FORMAT
from recguide.sim.store import kept_table
from recguide.sim.sweep import DERIVED, Point, frontier
from recguide.traces.documents import read_json
from recguide.traces.errors import InputError

CLAIRVOYANT = ("oracle", "optimum")
"""Policies that know the future: bounds, and nothing to deploy."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a point does under service levels."""

    point: Point
    attainment: float
    """Share of the requests that keep all levels."""
    goodput: float
    """Such requests per second of the run."""

    @property
    def policy(self) -> str:
        """Its name."""
        return str(self.point["policy"])

    @property
    def level(self) -> Level:
        """Requests in flight at most, and requests per second."""
        return level_of(self.point)

    @property
    def concurrency(self) -> int:
        """Requests in flight at most; 0 where nothing limits them."""
        return self.level.concurrency

    @property
    def tokens_per_s(self) -> float:
        """Of all requests."""
        return frontier(self.point)[1]

    @property
    def deployable(self) -> bool:
        """Whether it looks only at what a server knows."""
        return self.policy.partition(":")[0] not in CLAIRVOYANT


def read_sweep(folder: Path) -> dict[str, Any]:
    """The results.json of a sweep's folder; ValueError where it is none."""
    path = folder / "results.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; `recguide sweep --output-dir {folder}` writes it")
    document = read_json(path)
    found = document.get("recguide_sweep") if isinstance(document, dict) else None
    if found != FORMAT:
        raise InputError(f"{path}: recguide_sweep: found {found!r}, allowed: {FORMAT}")
    return dict(document)


def verdicts(folder: Path, points: Sequence[Point], levels: Mapping[str, float]) -> list[Verdict]:
    """Each point under ``levels``: milliseconds by ``ttft``, ``tpot`` or ``e2el``.

    An output of one token has no TPOT, and keeps any level of it. ValueError where a point's requests are missing, or
    those of another sweep.
    """
    return [_verdict(point, _requests(folder, point), levels) for point in points]


def _requests(folder: Path, point: Point) -> pa.Table:
    path = kept_table(folder, str(point["policy"]), level_of(point))
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid):
        raise InputError(
            f"{path}: missing or cut off; run the sweep again, without --stream, which keeps no requests"
        ) from None
    held = json.loads((table.schema.metadata or {}).get(b"recguide", b"{}")).get("point")
    if held != {name: value for name, value in point.items() if name not in DERIVED}:
        raise InputError(f"{path}: of another sweep than results.json; run the sweep again")
    return table


def _verdict(point: Point, requests: pa.Table, levels: Mapping[str, float]) -> Verdict:
    good = np.ones(len(requests), np.bool_)
    for name, limit_ms in levels.items():
        good &= requests[f"{name}_ms"].fill_null(0.0).to_numpy() <= limit_ms
    duration = float(point["duration"] or 0)
    return Verdict(point, float(good.mean()), int(good.sum()) / duration if duration > 0 else 0.0)


def best_of(found: Sequence[Verdict], attainment: float) -> Verdict | None:
    """The deployable point with the most tokens per second whose requests keep the levels often enough.

    Where nothing limits the requests in flight, the load decides the tokens per second of all: the highest request
    rate counts, and then those of a request.
    """
    kept = [verdict for verdict in found if verdict.deployable and verdict.attainment >= attainment]
    return max(kept, key=_speed, default=None)


def _speed(verdict: Verdict) -> tuple[float, float]:
    mine, all_of = frontier(verdict.point)
    return (all_of if verdict.concurrency else verdict.level.rate), mine


def closest_of(found: Sequence[Verdict]) -> Verdict:
    """The deployable point that keeps the levels most often, the faster one among equals."""
    return max(
        (verdict for verdict in found if verdict.deployable),
        key=lambda verdict: (verdict.attainment, verdict.tokens_per_s),
    )
