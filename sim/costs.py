"""What a forward costs: a profile of one GPU and model shape, or a closed form (paper, section 5.2: T_C(B))."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from recguide.sim.adapted import Kind, apart
from recguide.sim.curves import Above, Curve, Surface, added, through
from recguide.sim.products import Products, check_products
from recguide.sim.profile_rows import PRODUCTS, Row, check_order, is_host, read_row
from recguide.sim.sizes import NOBODY, Moved, filled_up, moved_in
from recguide.traces.documents import write_text
from recguide.traces.errors import InputError

LAYOUTS = {"rows", "quadratic"}
"""Forwards that verify a draft and make the next one."""
PLANNERS = "adaptive", "allocation"
"""Policies that choose by certainty, one block size at a time or unequal blocks for one step."""
HOST = {name: f"host-{name}" for name in ("rows", "quadratic", *PLANNERS)}
"""By layout, what the host adds to a step of one forward, and by planner, to a round, where a profile knows it apart
from what it adds to a round that is planned without looking back."""
HEADER = (
    "recguide-profile",
    "model",
    "weights_sha256",
    "dtype",
    "gpu",
    "driver",
    "torch",
    "engine_commit",
    "command",
    "created",
    "attention",
)
VERSION = "1"
FILL, EIGHTHS = "fill", "eighths of a power of 2"
"""A key of the header, how a forward's query tokens are filled up to a size that has a CUDA graph; and its value."""
MOVED = "fill_moved"
"""Another: from which of these sizes forwards move on to a faster, larger one, as :func:`moved_text` says it."""
DRAFTS, MERGED, APART = "drafts", "by weights with the adapter merged", "by weights and adapter apart"
"""A third: how forwards that only draft were run; the last one where there is none."""
PREFILL, DECODE, ROUND = ("prefill",), ("decode", "host"), ("draft", "verify", "host")
"""The last one of these is what the host adds, under policies that do not look back."""
SHIPPED = Path(__file__).with_name("profiles")

CurveOf = Callable[[str, int, int], Curve]
"""The curve over context of a forward: kind, requests, query tokens of all of them together."""


class CostModel:
    """Seconds of a forward by kind, requests, query tokens and context tokens, the last two summed over requests."""

    def __init__(
        self, curve_of: CurveOf, *, name: str, model: str = "", gpu: str = "", steps_of: Collection[str] = ()
    ) -> None:
        self.name, self.model, self.gpu = name, model, gpu
        self.steps_of = frozenset(steps_of)
        """Layouts and planners whose steps have a host's time of their own; other layouts take that of a round where
        they end one."""
        self._curve_of = curve_of
        self._curves: dict[tuple[tuple[str, ...], int, int], Curve] = {}
        self._rounds: dict[tuple[int, int, str], Curve] = {}

    def curve(self, kinds: tuple[str, ...], requests: int, query_tokens: int) -> Curve:
        """Seconds over context tokens of forwards of these kinds, one after the other, at the same shape."""
        key = (kinds, requests, query_tokens)
        curve = self._curves.get(key)
        if curve is None:
            curves = [self._curve_of(kind, requests, query_tokens) for kind in kinds]
            curve = curves[0] if len(curves) == 1 else added(curves)
            self._curves[key] = curve
        return curve

    def changed(self, name: str, change: "Change") -> "CostModel":
        """The same costs by another name, but for what becomes of each curve."""
        curve_of = partial(_changed, self, change)
        return CostModel(curve_of, name=name, model=self.model, gpu=self.gpu, steps_of=self.steps_of)

    def forward_s(self, kind: str, requests: int, query_tokens: int, context_tokens: float) -> float:
        """Seconds of one forward; context tokens are those cached before the queries."""
        return self.curve((kind,), requests, query_tokens)(context_tokens)

    def round_curve(self, block_size: int, requests: int, host: str = "host") -> Curve:
        """Seconds over context tokens of a round of these requests: a draft and a verify, or at 1 one decode.

        ``host`` is the kind of its host's time.
        """
        key = (block_size, requests, host)
        curve = self._rounds.get(key)
        if curve is None:
            forwards = (DECODE if block_size == 1 else ROUND)[:-1]
            curve = self._rounds[key] = self.curve((*forwards, host), requests, requests * block_size)
        return curve

    def host_of(self, planner: str) -> str:
        """The kind of the host's time of its rounds, as far as it is known apart."""
        return HOST[planner] if planner in self.steps_of else "host"

    def host_s(self, requests: int, query_tokens: int, host: str = "host") -> float:
        """Seconds that the host adds to a round whose verify has these query tokens."""
        return self.curve((host,), requests, query_tokens)(0)

    def step_host_s(self, layout: str, work: tuple[int, int], rounds: tuple[int, int]) -> float:
        """Seconds that the host adds to a step of one forward.

        ``work`` are all its requests and query tokens; ``rounds`` those that end a round, and their block sizes.
        """
        if layout in self.steps_of:
            return self.curve((HOST[layout],), *work)(0)
        return self.host_s(*rounds) if rounds[0] else 0.0


Change = Callable[[Curve, str, int], Curve]
"""What becomes of a curve of forwards of a kind, with so many query tokens."""


def _changed(costs: CostModel, change: Change, kind: str, requests: int, query_tokens: int) -> Curve:
    return change(costs.curve((kind,), requests, query_tokens), kind, query_tokens)


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile file: its header, and its rows in order."""

    path: str
    header: Mapping[str, str]
    rows: Sequence[Row]

    def costs(self) -> CostModel:
        """The cost model that interpolates this profile."""
        grids: dict[str, Kind] = {}
        moved = _moved_of(self.path, self.header) if self.header.get(FILL) == EIGHTHS else None
        products = Products({row.query_tokens: row.median_us * 1e-6 for row in self.rows if row.kind == PRODUCTS})
        forwards = sorted(row for row in self.rows if row.kind != PRODUCTS)
        for (kind, requests, tokens), rows in groupby(forwards, lambda row: row[:3]):
            count, size = _place(kind, requests, tokens, _size(kind, tokens, moved) if MOVED in self.header else tokens)
            # of those that are filled up to the same size, the largest stands for all: it comes last
            points = {row.context_tokens / count: row.median_us * 1e-6 for row in rows}
            grids.setdefault(kind, {}).setdefault(size, {})[count] = points
        surfaces = {kind: Surface(grid, products=products.part_of(kind)) for kind, grid in grids.items()}
        most = {kind: max(max(counts) for counts in grid.values()) for kind, grid in grids.items()}
        for layout in LAYOUTS & grids.keys():
            # where steps have no host's time of their own, some of it is in the drafts' times
            plain = "draft" if HOST[layout] in grids else "verify"
            sizes, surface = grids.get(plain, {}), surfaces.get(plain)
            if sizes and self.header.get(DRAFTS) == MERGED:
                found = apart(sizes, grids.get("rows", {}))
                sizes, surface = (found, Surface(found, products=products.part_of(plain))) if found else ({}, None)
            whole = _filled_in(grids[layout], sizes)
            part = products.part_of(layout)
            surfaces[layout] = Surface(whole, surface, most[layout], max(sizes, default=0), part)
        known = [layout for layout in LAYOUTS if HOST[layout] in grids]
        for kind in [HOST[layout] for layout in known]:
            surfaces[kind] = Surface(grids[kind], surfaces.get("host"), most[kind])
        over = _over_host(grids, surfaces.get("host"))
        name, model, gpu = Path(self.path).stem, self.header["model"], self.header["gpu"]
        everything: dict[str, Surface | Above] = {
            **surfaces,
            **{HOST[planner]: above for planner, above in over.items()},
        }
        curve_of = partial(_profiled, self.path, everything, moved)
        return CostModel(curve_of, name=name, model=model, gpu=gpu, steps_of=(*known, *over))


def _over_host(grids: Mapping[str, Kind], host: Surface | None) -> dict[str, Above]:
    """By planner, the host's time of its rounds; nothing where that of other rounds is not there."""
    if host is None:
        return {}
    return {planner: Above(grids[HOST[planner]], host) for planner in PLANNERS if HOST[planner] in grids}


def _filled_in(layout: Kind, plain: Kind) -> Kind:
    """A layout's grid, and plain forwards where it has none: drafts rather, for both run the draft adapter."""
    return {size: {**plain.get(size, {}), **layout.get(size, {})} for size in plain.keys() | layout.keys()}


def _profiled(
    path: str, surfaces: Mapping[str, Surface | Above], moved: Moved | None, kind: str, requests: int, query_tokens: int
) -> Curve:
    if kind not in surfaces:
        raise InputError(f"{path}: kind: no rows of kind {kind!r}; there are: {', '.join(sorted(surfaces))}")
    surface = surfaces[kind]
    count = min(requests, surface.most_requests) if kind == "prefill" else requests
    curve = surface.at(*_place(kind, count, query_tokens, _size(kind, query_tokens, moved)))
    return _everywhere(curve) if is_host(kind) and curve.low <= curve.high else curve


def _moved_of(path: str | Path, header: Mapping[str, str]) -> Moved:
    return moved_in(header.get(MOVED, NOBODY), f"{path}: header: {MOVED}")


def _size(kind: str, query_tokens: int, moved: Moved | None) -> int:
    """What so many tokens are filled up to; the host does not handle those that fill up."""
    return query_tokens if moved is None or is_host(kind) else filled_up(query_tokens, moved)


def _place(kind: str, requests: int, query_tokens: int, size: int) -> tuple[float, float]:
    """Where a forward lies that is filled up to this size: its requests, and its tokens a request.

    Prompts of one forward are priced by their total length, and by how many they are.
    """
    if kind == "prefill":
        return requests, size
    # as many more requests as there are more tokens
    return requests if size == query_tokens else requests * size / query_tokens, query_tokens / requests


def constant_costs(**seconds: float) -> CostModel:
    """Each kind of forward takes the seconds given by keyword at any shape, and nothing where none are given."""
    return CostModel(partial(_constant, seconds), name="constant")


def _constant(seconds: Mapping[str, float], kind: str, requests: int, query_tokens: int) -> Curve:
    return _everywhere(through({0.0: seconds.get(kind, 0.0)}))


def linear_costs(base_s: float, per_query_s: float, per_context_s: float, host_s: float = 0.0) -> CostModel:
    """Every forward takes base + per query token + per context token; the host adds ``host_s`` to a round."""
    return CostModel(partial(_linear, base_s, per_query_s, per_context_s, host_s), name="linear")


def _linear(
    base_s: float, per_query_s: float, per_context_s: float, host_s: float, kind: str, requests: int, query_tokens: int
) -> Curve:
    if kind == "host":
        return _everywhere(through({0.0: host_s}))
    start = base_s + per_query_s * query_tokens
    return _everywhere(through({0.0: start, 1.0: start + per_context_s}))


def _everywhere(curve: Curve) -> Curve:
    shape = curve.knots, curve.breaks, curve.seconds, curve.slopes
    return Curve(*shape, curve.floor_s, -math.inf, math.inf)


def resolve_profile(name: str) -> Path:
    """The path of a profile: ``name`` itself when it is a file, else a profile that ships with this package."""
    if Path(name).is_file():
        return Path(name)
    shipped = SHIPPED / f"{name}.csv"
    if shipped.is_file():
        return shipped
    known = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.csv"))) or "none"
    raise FileNotFoundError(f"profile {name!r}: neither a file nor a shipped profile; shipped: {known}")


def read_profile(path: Path) -> Profile:
    """Read a profile: ``# key: value`` lines, the column names, then one row a forward, sorted within its kind.

    Rows of a kind ascend by requests, then query tokens, then context tokens. Times are in microseconds. ValueError
    names the file, the line and the field.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start}: not UTF-8 text") from None
    start = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    header = _read_header(path, lines[:start])
    if start == len(lines) or tuple(lines[start].split(",")) != Row._fields:
        found = lines[start] if start < len(lines) else "end of file"
        raise InputError(f"{path}:{start + 1}: columns: found {found!r}, allowed: {','.join(Row._fields)}")
    rows = [read_row(f"{path}:{start + 2 + i}", line) for i, line in enumerate(lines[start + 1 :])]
    if not rows:
        raise InputError(f"{path}:{start + 1}: no rows")
    check_order(path, start + 2, rows)
    check_products(path, start + 2, rows, filled=header.get(FILL) == EIGHTHS)
    return Profile(str(path), header, rows)


def write_profile(path: Path, header: Mapping[str, str], rows: Sequence[Row]) -> None:
    """Write a profile that :func:`read_profile` reads, its rows sorted; the file appears whole or not at all."""
    comments = [f"# {key}: {value}" for key, value in {"recguide-profile": VERSION, **header}.items()]
    lines = [*comments, ",".join(Row._fields), *(",".join(map(str, row)) for row in sorted(rows))]
    write_text(path, "\n".join(lines) + "\n")


def _read_header(path: Path, lines: Sequence[str]) -> dict[str, str]:
    header: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        key, colon, value = line[1:].partition(":")
        if not colon or key.strip() in header:
            problem = "given twice" if colon else "not '# key: value'"
            raise InputError(f"{path}:{number}: {key.strip()}: {problem}")
        header[key.strip()] = value.strip()
    missing = [key for key in HEADER if not header.get(key)]
    if missing:
        raise InputError(f"{path}: header: missing {', '.join(missing)}")
    if header["recguide-profile"] != VERSION:
        raise InputError(f"{path}: recguide-profile: found {header['recguide-profile']!r}, allowed: {VERSION}")
    drafts = header.get(DRAFTS, APART)
    if drafts not in (MERGED, APART):
        raise InputError(f"{path}: header: {DRAFTS}: found {drafts!r}, allowed: {MERGED!r}, {APART!r}")
    _moved_of(path, header)
    return header
