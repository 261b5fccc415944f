"""Forwards with a draft in them, where a profile's own drafts run merged weights."""

from pathlib import Path

import profiles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.sim.adapted import apart
from recguide.sim.costs import DRAFTS, HOST, MERGED, CostModel, read_profile, write_profile
from recguide.sim.profile_rows import Row

ADAPTER_US = 700.0


def us(count: int, tokens: int, context: int) -> float:
    return 100.0 + 3.0 * count + 0.5 * tokens + 0.01 * context


def costs(folder: Path, **header: str) -> CostModel:
    """Plain drafts up to 32 requests and 32 tokens each, and rows, which take longer, up to 4 requests from 32 on."""
    drafts = [
        Row("draft", n, n * q, n * c, us(n, n * q, n * c), 0, 1) for n in (1, 4, 32) for q in (8, 32) for c in (0, 64)
    ]
    rows = [
        Row("rows", n, n * q, n * c, us(n, n * q, n * c) + ADAPTER_US, 0, 1)
        for n in (1, 4)
        for q in (32, 64)
        for c in (0, 64)
    ]
    hosts = [Row(HOST["rows"], n, n * 16, 0, 10.0 * n, 0, 1) for n in (1, 4)]
    write_profile(folder / "p.csv", profiles.header(**header), [*drafts, *rows, *hosts])
    return read_profile(folder / "p.csv").costs()


@pytest.mark.parametrize(("count", "each"), [(1, 8), (2, 16), (4, 8), (8, 32), (32, 8), (20, 12)])
def test_where_there_are_no_rows_merged_drafts_are_no_measure(tmp_path: Path, count: int, each: int) -> None:
    found = costs(tmp_path, **{DRAFTS: MERGED}).forward_s("rows", count, count * each, 32 * count)
    assert found * 1e6 == pytest.approx(us(count, count * each, 32 * count) + ADAPTER_US)


@pytest.mark.parametrize(("count", "each"), [(1, 8), (4, 8), (32, 8)])
def test_drafts_that_run_the_adapter_are(tmp_path: Path, count: int, each: int) -> None:
    found = costs(tmp_path).forward_s("rows", count, count * each, 32 * count)
    assert found * 1e6 == pytest.approx(us(count, count * each, 32 * count))


def test_drafts_alone_stay_what_they_are(tmp_path: Path) -> None:
    merged = costs(tmp_path, **{DRAFTS: MERGED})
    assert merged.forward_s("draft", 4, 32, 0) * 1e6 == pytest.approx(us(4, 32, 0))


def test_many_requests_with_many_tokens_take_as_much_longer_as_the_most_that_were_profiled(tmp_path: Path) -> None:
    merged = costs(tmp_path, **{DRAFTS: MERGED})
    assert merged.forward_s("rows", 32, 32 * 64, 0) * 1e6 == pytest.approx(us(32, 32 * 64, 0) + ADAPTER_US)


@given(st.dictionaries(st.sampled_from([1.0, 2.0, 8.0]), st.floats(0.1, 9), min_size=1))
def test_without_a_shape_in_common_nothing_is_known(seconds: dict[float, float]) -> None:
    drafts = {16.0: {count: {0.0: found} for count, found in seconds.items()}}
    assert apart(drafts, {}) is None
    assert apart(drafts, {32.0: {1.0: {0.0: 5.0}}}) is None
    assert apart(drafts, {16.0: {1.0: {64.0: 5.0}}}) is None


def test_what_nobody_knows_counts_as_extrapolated(tmp_path: Path) -> None:
    drafts = [Row("draft", n, n * 8, 0, us(n, n * 8, 0), 0, 1) for n in (1, 4)]
    rows = [Row("rows", n, n * 32, 0, us(n, n * 32, 0) + ADAPTER_US, 0, 1) for n in (1, 4)]
    hosts = [Row(HOST["rows"], n, n * 16, 0, 10.0 * n, 0, 1) for n in (1, 4)]
    write_profile(tmp_path / "p.csv", profiles.header(**{DRAFTS: MERGED}), [*drafts, *rows, *hosts])
    found = read_profile(tmp_path / "p.csv").costs().curve(("rows",), 4, 32)
    assert not found.covers(0)
    assert found(0) * 1e6 >= us(1, 32, 0) + ADAPTER_US


def test_rows_that_are_faster_make_nothing_cheaper() -> None:
    drafts = {16.0: {1.0: {0.0: 5.0}, 4.0: {0.0: 6.0}}}
    assert apart(drafts, {16.0: {1.0: {0.0: 4.0}}}) == drafts
