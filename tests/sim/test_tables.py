import io
from itertools import pairwise

import pytest
from rich.console import Console
from strategies import random_trace

from recguide.sim.costs import linear_costs
from recguide.sim.figures import Figures
from recguide.sim.scenario import Scenario
from recguide.sim.sweep import Point, sweep
from recguide.sim.tables import LEAST_WANTED, UNLIMITED, table_of

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)


@pytest.fixture(scope="module")
def points() -> list[Point]:
    return sweep(
        random_trace(0, 8),
        COSTS,
        ["fixed:8", "ragged:B=16", "oracle"],
        [1, 128],
        scenario=Scenario(figures=Figures(resamples=20)),
    )


def printed(points: list[Point], width: int) -> tuple[list[str], str]:
    table, hidden = table_of(points, "a title", width)
    screen = io.StringIO()
    Console(file=screen, width=width).print(table)
    return screen.getvalue().splitlines(), hidden


@pytest.mark.parametrize("width", [72, 80, 100, 120, UNLIMITED])
def test_no_cell_is_broken_however_narrow_the_screen_is(points: list[Point], width: int) -> None:
    lines, _ = printed(points, width)
    rows = [line.split() for line in lines if line.startswith(("ar ", "fixed:8 ", "ragged:B=16 ", "oracle "))]
    assert len(rows) == 8
    assert all(len(line.rstrip()) <= width for line in lines)
    assert all(row[2].replace(",", "").isdecimal() for row in rows)
    assert len({len(row) for row in rows}) == 1


def test_what_does_not_fit_is_named(points: list[Point]) -> None:
    lines, hidden = printed(points, UNLIMITED)
    assert hidden == ""
    assert "extrap." in " ".join(lines)
    counts = [printed(points, width)[1].count(",") for width in (100, 80, 60)]
    assert all(more <= less for more, less in pairwise(counts))
    narrow, hidden = printed(points, 60)
    assert hidden.startswith("not shown at this width: ")
    assert all(name.replace("\n", " ") in hidden or name.split("\n")[0] in " ".join(narrow) for name in LEAST_WANTED)


LONG = "overlap:" + "correction=2,continuation=always" * 3


def test_a_long_name_goes_on_in_the_next_line(points: list[Point]) -> None:
    lines, _ = printed([point | {"policy": LONG} for point in points[:2]], 80)
    assert "".join(line.split()[0] for line in lines if line.strip()).endswith(2 * LONG)
    assert all(len(line.rstrip()) <= 80 for line in lines)


def test_a_long_name_takes_the_room_that_the_other_columns_leave(points: list[Point]) -> None:
    named = [point | {"policy": LONG} for point in points]
    for width in (250, UNLIMITED):
        lines, hidden = printed(named, width)
        assert sum(line.startswith(f"{LONG} ") for line in lines) == len(named)
        assert hidden == ""
    lines, _ = printed(named, 140)
    assert any(line.startswith(LONG[:36]) for line in lines)
    assert all(len(line.rstrip()) <= 140 for line in lines)
