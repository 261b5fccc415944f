"""A hand-made profile whose every number follows from one formula, so that tests can say what must come out."""

from pathlib import Path

from recguide.sim.costs import HEADER, HOST, CostModel, read_profile, write_profile
from recguide.sim.profile_rows import KINDS, PRODUCTS, Row

BASE_US, QUERY_US, CONTEXT_US = 400.0, 2.0, 0.01
PER_REQUEST = {"decode": [1], "prefill": [64, 512, 2048], "rows": [66], "quadratic": [272]}


def header(**changes: str) -> dict[str, str]:
    """A header with every field filled, changed by keyword."""
    fields = {key: "none" for key in HEADER if key != "recguide-profile"}
    return fields | {"model": "tiny", "gpu": "Test GPU"} | changes


def seconds(kind: str, query_tokens: float, context_tokens: float) -> float:
    """What the profile holds: linear in query and context tokens, so that interpolation is exact."""
    if kind == "host":
        return 50e-6
    return (BASE_US + QUERY_US * query_tokens + CONTEXT_US * context_tokens) * 1e-6


def rows() -> list[Row]:
    """Every kind of forward, and the host, over requests, query tokens and context, a few of each."""
    return [row for kind in KINDS if kind not in {*HOST.values(), PRODUCTS} for row in _rows_of(kind)]


def _rows_of(kind: str) -> list[Row]:
    alone = kind in ("host", "prefill")
    return [
        Row(kind, n, n * q, n * c, round(seconds(kind, n * q, n * c) * 1e6, 6), 1.0, 5)
        for n in ([1] if kind == "prefill" else [1, 4, 128])
        for q in PER_REQUEST.get(kind, [1, 4, 8, 16, 32] if kind == "host" else [4, 8, 16, 32])
        for c in ([0] if alone else [0, 256, 8192])
    ]


def write(path: Path, **changes: str) -> Path:
    """Write the profile to ``path``."""
    write_profile(path, header(**changes), rows())
    return path


def costs(path: Path) -> CostModel:
    """The cost model of the profile, written to ``path`` and read back."""
    return read_profile(write(path)).costs()
