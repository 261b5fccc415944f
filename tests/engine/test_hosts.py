"""The host's rows of a profile, laid on planes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.engine.hosts import LEAST, TOLD, smoothed, told_of_planes
from recguide.sim.costs import read_profile, resolve_profile, write_profile
from recguide.sim.profile_rows import Row

COUNTS, SIZES = (1, 2, 4, 8, 16, 32, 64, 128), (4, 8, 16)
SCRIPT = Path(__file__).parents[2] / "scripts" / "smooth_hosts.py"


def rows_of(base: float, request: float, token: float, kind: str = "host") -> list[Row]:
    return [
        Row(kind, count, count * size, 0, base + request * count + token * count * size, 1.0, 6)
        for count in COUNTS
        for size in SIZES
    ]


def decodes(base: float, request: float) -> list[Row]:
    return [Row("host", count, count, 0, base + request * count, 1.0, 6) for count in COUNTS]


@given(st.floats(50, 2000), st.floats(0, 20), st.floats(0, 1))
def test_what_lies_on_a_plane_stays_there(base: float, request: float, token: float) -> None:
    rows = decodes(base / 2, request / 2) + rows_of(base, request, token)
    for before, after in zip(rows, smoothed(rows), strict=True):
        assert after[:4] == before[:4]
        assert after.median_us == pytest.approx(before.median_us, rel=2e-3)


def test_visits_of_nearly_twice_the_time_hardly_move_the_plane() -> None:
    rows, rng = rows_of(500.0, 6.0, 0.2), np.random.default_rng(0)
    slow = [row._replace(median_us=row.median_us * 1.8) if rng.random() < 0.2 else row for row in rows]
    assert sum(a != b for a, b in zip(rows, slow, strict=True)) >= 3
    for true, found in zip(rows, smoothed(slow), strict=True):
        assert found.median_us == pytest.approx(true.median_us, rel=0.08)


def test_no_term_is_below_nothing() -> None:
    falling = [row._replace(median_us=900.0 - 5 * row.requests) for row in rows_of(0, 0, 0)]
    assert len({row.median_us for row in smoothed(falling)}) == 1


def test_few_rows_and_forwards_stay() -> None:
    few = decodes(300.0, 7.0)[: LEAST - 1]
    uneven = [row._replace(median_us=row.median_us * (1 + n % 3)) for n, row in enumerate(few)]
    forwards = rows_of(5000.0, 1.0, 9.0, "verify")
    assert smoothed([*uneven, *forwards]) == [*uneven, *forwards]
    assert told_of_planes(uneven, smoothed(uneven)) == {}


def test_steps_without_a_draft_have_a_plane_of_their_own() -> None:
    rows = [row._replace(median_us=row.median_us * 1.02) for row in decodes(200.0, 3.0)] + rows_of(600.0, 8.0, 0.1)
    found = smoothed(rows)
    assert max(row.median_us for row in found[: len(COUNTS)]) < 700 < found[len(COUNTS) + 20].median_us


def test_rows_of_no_time_are_no_error() -> None:
    rows = [row._replace(median_us=0.001 * (row.requests > 1)) for row in rows_of(0, 0, 0)]
    assert told_of_planes(rows, smoothed(rows))[TOLD]
    assert told_of_planes(rows, [row._replace(median_us=0.0) for row in rows])[TOLD]


def script(*arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True)


def test_the_script_says_where_rows_come_from(tmp_path: Path) -> None:
    shipped = read_profile(resolve_profile("smollm2-135m-h200"))
    header = {key: value for key, value in shipped.header.items() if key != TOLD}
    uneven = [
        row._replace(median_us=row.median_us * (1 + n % 3)) if row.kind == "host" else row
        for n, row in enumerate(shipped.rows)
    ]
    source, output = tmp_path / "uneven.csv", tmp_path / "smooth.csv"
    write_profile(source, header, uneven)
    assert script(source, output).returncode == 0
    before, after = read_profile(source), read_profile(output)
    assert {**before.header, TOLD: after.header[TOLD]} == dict(after.header)
    written = output.read_bytes()
    assert (script(output, output).returncode, output.read_bytes()) == (0, written)
    assert after.header[TOLD].endswith("from that in the median")
    hosts = {row[:4]: row for row in after.rows if row.kind.startswith("host")}
    for row in before.rows:
        assert row in after.rows or row[:4] in hosts


def test_the_script_says_what_is_wrong_with_its_files(tmp_path: Path) -> None:
    text, source = tmp_path / "text", resolve_profile("smollm2-135m-h200")
    text.write_text("hello\n")
    for arguments, code, told in (
        ((text, tmp_path / "out.csv"), 2, f"error: {text}: header: missing"),
        ((tmp_path / "nothing", tmp_path / "out.csv"), 2, "error: [Errno 2]"),
        ((source, tmp_path / "none" / "out.csv"), 2, "error: OUTPUT: found"),
        ((source, tmp_path), 2, "error: OUTPUT: found"),
        ((source,), 1, "Lays the host's rows"),
    ):
        done = script(*arguments)
        assert (done.returncode, done.stderr.startswith(told)) == (code, True), done.stderr
    assert list(tmp_path.iterdir()) == [text]
