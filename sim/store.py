"""Finished points of a sweep on disk, so that a sweep that was stopped or extended computes no point twice."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from recguide.sim.costs import Profile
from recguide.sim.levels import Level, level_of
from recguide.sim.sweep import Point
from recguide.traces.dense import DenseTrace
from recguide.traces.errors import InputError
from recguide.traces.files import file_sha256, replacing

SUBFOLDER = "requests"
QUANTILES = 201
_KEY = b"recguide"


class Store:
    """The folder ``requests``: a file for each point, its rows the requests, and in its metadata the point's figures.

    ``inputs`` is a hash of everything that decides the points beside policy and level: a file that was made
    from other inputs is not used, and overwritten. ``labels`` has a row for each request of the trace.
    """

    def __init__(self, folder: Path, inputs: str, labels: pa.Table) -> None:
        self.folder, self.inputs, self.labels = folder / SUBFOLDER, inputs, labels
        self.reused = 0
        """Points that did not have to be computed."""

    def path(self, policy: str, level: Level) -> Path:
        """Where the point goes."""
        return kept_table(self.folder.parent, policy, level)

    def load(self, policy: str, level: Level) -> Point | None:
        """The figures of a finished point, or None where there is none from the same inputs.

        InputError where something else lies in the point's place.
        """
        held = _held(path := self.path(policy, level))
        if held is not None and "config" not in held:
            raise InputError(f"output-dir: found {path} of something else, allowed: a sweep's folder, or a new one")
        if held is None or held["config"] != self._config(policy, level):
            return None
        self.reused += 1
        point: Point = held["point"]
        return point

    def requests(self, policy: str, level: Level) -> pa.Table:
        """A row for each request of a finished point."""
        return pq.read_table(self.path(policy, level))

    def save(self, policy: str, level: Level, point: Point, served: pa.Table) -> None:
        """Keep a finished point; its file appears whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        held = {"config": self._config(policy, level), "point": point}
        labelled = self.labels.take(served["trace_row"])
        columns = {"policy": pa.array([policy] * len(served)), "max_concurrency": [level.concurrency] * len(served)}
        columns |= {"request_rate": pa.array([level.rate or None] * len(served), pa.float64())}
        columns |= {name: labelled[name] for name in labelled.column_names}
        columns |= {name: served[name] for name in served.column_names}
        table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(held, allow_nan=False).encode()})
        with replacing(self.path(policy, level)) as temporary:
            pq.write_table(table, temporary, compression="zstd")

    def keep_only(self, points: Iterable[Point]) -> None:
        """Delete the files of all other points, so that the folder holds one sweep."""
        kept = {self.path(str(point["policy"]), level_of(point)) for point in points}
        for path in self.folder.glob("*.parquet"):
            if path not in kept and "config" in (_held(path) or {}):
                path.unlink()

    def quantiles(
        self, points: Iterable[Point], metrics: Iterable[str]
    ) -> dict[tuple[str, Level], dict[str, list[float]]]:
        """Sorted latencies of each point's requests, as 201 quantiles where there are more than that."""
        found: dict[tuple[str, Level], dict[str, list[float]]] = {}
        for point in points:
            key = str(point["policy"]), level_of(point)
            table = pq.read_table(self.path(*key), columns=list(metrics))
            found[key] = {name: _quantiles(table[name].drop_null().to_numpy()) for name in metrics}
        return found

    def block_shares(self, points: Iterable[Point]) -> dict[tuple[str, Level], dict[str, dict[int, float]]]:
        """For each point and dataset: the share of the rounds of its requests at every block size."""
        found: dict[tuple[str, Level], dict[str, dict[int, float]]] = {}
        for point in points:
            key = str(point["policy"]), level_of(point)
            rounds = pq.read_table(self.path(*key)).to_pandas().groupby("dataset").sum(numeric_only=True)
            rounds = rounds.filter(regex=r"^rounds_b").rename(columns=lambda name: int(name.removeprefix("rounds_b")))
            shares = rounds.div(rounds.sum(axis=1), axis=0).dropna()
            found[key] = {str(dataset): row.to_dict() for dataset, row in shares.iterrows()}
        return found

    def _config(self, policy: str, level: Level) -> str:
        return hashlib.sha256(json.dumps([self.inputs, policy, files_hash(policy), level]).encode()).hexdigest()


def kept_table(folder: Path, policy: str, level: Level) -> Path:
    """The file of a point's requests: a name that people can read, unless the policy's holds anything unusual."""
    plain = policy.replace(":", "_")
    if not re.fullmatch(r"[\w.-]{1,60}", plain):
        readable = re.sub(r"[^\w.-]+", "_", plain)[-40:]
        plain = f"{readable}-{hashlib.sha256(policy.encode()).hexdigest()[:8]}"
    return folder / SUBFOLDER / f"{plain}-{level.suffix}.parquet"


def _held(path: Path) -> dict[str, Any] | None:
    """What a point's file says of it, with nothing in it where it is none; None where no whole file is."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowInvalid):
        return None
    found: dict[str, Any] = json.loads(metadata.get(_KEY, b"{}"))
    return found


def _quantiles(values: NDArray[np.float64]) -> list[float]:
    few = np.sort(values) if len(values) <= QUANTILES else np.quantile(values, np.linspace(0, 1, QUANTILES))
    listed: list[float] = few.tolist()
    return listed


def labels_of(trace: DenseTrace) -> pa.Table:
    """Id, dataset and category of every recorded request."""
    names = ("request_id", "dataset", "category")
    return pa.table({name: [getattr(request, name) for request in trace.requests] for name in names})


def inputs_hash(trace: DenseTrace, profile: Profile, options: Mapping[str, Any]) -> str:
    """A hash of what points are computed from: trace, profile, options with the files they name, and our own code."""
    texts = [str(item) for value in options.values() for item in (value if isinstance(value, list) else [value])]
    said = json.dumps({name: str(value) for name, value in options.items()}, sort_keys=True)
    contents = [files_hash(text) for text in texts]
    return str(joblib.hash((trace, dict(profile.header), list(profile.rows), said, contents, code_hash())))


def files_hash(text: str) -> str | None:
    """A hash of the files that an option names; None where it names none.

    By itself, or as `FILE:function`, `name:FILE` or `name:key=FILE,...`.
    """
    options = text.partition(":")[2]
    values = [part.partition("=")[2] for part in options.split(",")]
    named = [Path(part) for part in dict.fromkeys((text, text.rpartition(":")[0], options, *values)) if part]
    found = [file_sha256(path) for path in named if path.is_file()]
    return hashlib.sha256("".join(found).encode()).hexdigest() if found else None


def code_hash() -> str:
    """A hash of the simulator's and the traces' source files."""
    here = Path(__file__).parent
    files = sorted(here.rglob("*.py")) + sorted((here.parent / "traces").rglob("*.py"))
    return hashlib.sha256("".join(file_sha256(path) for path in files).encode()).hexdigest()
