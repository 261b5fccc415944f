"""The points of a sweep as a table for people, as wide as the screen allows."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from recguide.sim.sweep import Point, frontier

LONGEST_NAME = 32
"""Characters of a policy's name in one line, more where there is room; longer ones go on in the next."""
GAP = 2
UNLIMITED = 1000
"""A width for files and pipes, where every column is wanted."""
LEAST_WANTED = ("95%\ninterval", "headroom\n%", "extrap.\n%", "TPF", "TTFT\nms", "per\nrequest", "A")
"""Columns in the order in which they go where the screen is too narrow."""


def notes() -> Console:
    """Standard error, for words beside the data; brackets in names are no markup."""
    return Console(stderr=True, markup=False)


def screen(width: int = UNLIMITED) -> Console:
    """The terminal, or where files and pipes take the words, one so wide: by default enough for any table."""
    console = Console(markup=False)
    return console if console.is_terminal else Console(width=width, markup=False)


def table_of(points: Sequence[Point], title: str, width: int = UNLIMITED) -> tuple[Table, str]:
    """A section for each policy, and a line about the columns that did not fit, empty where all did."""
    columns = {heading: cells for heading, cells in _columns(points).items() if set(cells) != {"-"}}
    dropped = []
    for heading in LEAST_WANTED:
        if _width(columns) > width:
            dropped += [heading.replace("\n", " ")] if columns.pop(heading, None) else []
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    room = LONGEST_NAME + max(width - _width(columns), 0)
    for heading in columns:
        left, most = heading == "policy" or heading.startswith("B="), room if heading == "policy" else None
        table.add_column(heading, justify="left" if left else "right", overflow="fold", max_width=most)
    names = [str(point["policy"]) for point in points]
    for row, (name, following) in enumerate(zip(names, [*names[1:], None], strict=True)):
        table.add_row(*(cells[row] for cells in columns.values()), end_section=name != following)
    return table, f"not shown at this width: {', '.join(dropped)}" if dropped else ""


def _width(columns: dict[str, list[str]]) -> int:
    widths = {heading: max(map(len, [*heading.split("\n"), *cells])) for heading, cells in columns.items()}
    widths["policy"] = min(widths["policy"], LONGEST_NAME)
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _columns(points: Sequence[Point]) -> dict[str, list[str]]:
    shares = [name for name in points[0] if name.startswith("block_share_")]
    blocks = "/".join(name.removeprefix("block_share_") for name in shares)
    spots = [frontier(point) for point in points]

    def figure(name: str, digits: int, scale: float = 1) -> list[str]:
        return [_number(point[name], digits, scale) for point in points]

    return {
        "policy": [str(point["policy"]) for point in points],
        "C": ["-" if point["max_concurrency"] is None else str(point["max_concurrency"]) for point in points],
        "req/s": ["-" if point["request_rate"] is None else f"{point['request_rate']:g}" for point in points],
        "tokens/s": [f"{all_of:,.0f}" for _, all_of in spots],
        "per\nrequest": [f"{mine:,.0f}" for mine, _ in spots],
        "speedup": figure("speedup", 2),
        "95%\ninterval": [_interval(point) for point in points],
        "headroom\n%": figure("headroom_share", 0, 100),
        "A": figure("accept_length", 2),
        "TPF": figure("tpf", 2),
        "TTFT\nms": figure("mean_ttft_ms", 1),
        "TPOT\nms": figure("mean_tpot_ms", 2),
        f"B={blocks}\n% of rounds": ["/".join(_number(point[name], 0, 100) for name in shares) for point in points],
        "extrap.\n%": figure("extrapolated_share", 1, 100),
    }


def _interval(point: Point) -> str:
    low, high = point["speedup_ci_low"], point["speedup_ci_high"]
    return "-" if low is None or high is None else f"{_number(low, 2)}-{_number(high, 2)}"


def _number(value: object, digits: int, scale: float = 1) -> str:
    # adding 0 turns minus 0 into 0
    return f"{round(scale * float(str(value)), digits) + 0.0:.{digits}f}" if value is not None else "-"
