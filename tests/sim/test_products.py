"""Profiles that know what products take at every size give back forwards between those that were profiled."""

from collections.abc import Callable, Sequence
from pathlib import Path

import profiles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.sim.costs import CostModel, Profile, read_profile, write_profile
from recguide.sim.profile_rows import PRODUCTS, Row
from recguide.sim.sizes import filled_up, sizes_up_to

FILLED = profiles.header() | {"fill": "eighths of a power of 2", "fill_moved": "none"}
LARGEST = 2048
COUNTS, BLOCKS = (1, 2, 4, 8, 16, 32, 64), (4, 8, 16, 32)
LAYOUTS = ("rows", "quadratic")


def sawtooth(size: int) -> float:
    """Microseconds of products in tiles of 128 rows, which a GPU of 5 computes at once."""
    return 500.0 + 300.0 * -(-size // 640) + 20.0 * -(-size // 128)


def rest(requests: float, tokens: float, context: float) -> float:
    """What else there is to a forward of so many requests and tokens: linear in what it is interpolated over."""
    return 30.0 + 2.0 * requests + 0.01 * context + 0.1 * tokens


def products(curve: Callable[[int], float] = sawtooth, most: int = LARGEST) -> list[Row]:
    return [Row(PRODUCTS, 1, size, 0, curve(size), 1.0, 7) for size in sizes_up_to(most)]


def forward(kind: str, requests: int, each: int, context: int) -> Row:
    """A forward of requests with so many query and context tokens each, as it is filled up."""
    size = filled_up(requests * each)
    us = sawtooth(size) + rest(requests * size / (requests * each), size, requests * context)
    return Row(kind, requests, requests * each, requests * context, us, 1.0, 5)


def forwards() -> list[Row]:
    plain = [forward(kind, n, b, c) for kind in ("draft", "verify") for n in COUNTS for b in BLOCKS for c in (0, 512)]
    plain += [forward("decode", n, 1, c) for n in COUNTS for c in (0, 512)]
    plain += [forward(kind, n, 64, c) for kind in LAYOUTS for n in COUNTS[:4] for c in (0, 512)]
    prefills = [Row("prefill", 1, n, 0, sawtooth(n) + rest(1, n, 0), 1.0, 5) for n in (16, 512, 2048)]
    hosts = [Row("host", n, n * b, 0, 50.0, 1.0, 5) for n in COUNTS for b in (1, *BLOCKS)]
    return [*plain, *prefills, *hosts]


def costs_of(rows: Sequence[Row]) -> CostModel:
    return Profile("made-up.csv", FILLED, rows).costs()


WITH, WITHOUT = costs_of([*forwards(), *products()]), costs_of(forwards())


@given(kind=st.sampled_from(["draft", "verify"]), data=st.data())
def test_forwards_between_profiled_sizes_are_exact(kind: str, data: st.DataObject) -> None:
    requests = data.draw(st.integers(1, 64))
    tokens = data.draw(st.integers(4 * requests, 32 * requests))
    context = data.draw(st.integers(0, 512 * requests))
    size = filled_up(tokens)
    curve = WITH.curve((kind,), requests, tokens)
    wanted = sawtooth(size) + rest(requests * size / tokens, size, context * size / tokens)
    assert curve(context * size / tokens) * 1e6 == pytest.approx(wanted, abs=1e-6)


def test_without_rows_of_products_these_are_wrong() -> None:
    found = [costs.forward_s("verify", 48, 48 * 16, 0) * 1e6 for costs in (WITH, WITHOUT)]
    wanted = sawtooth(768) + rest(48, 768, 0)
    assert found[0] == pytest.approx(wanted)
    assert abs(found[1] - wanted) > 0.05 * wanted


@pytest.mark.parametrize("costs", [WITH, WITHOUT], ids=["with", "without"])
def test_every_profiled_forward_costs_what_was_measured(costs: CostModel) -> None:
    for row in forwards():
        found = costs.forward_s(row.kind, row.requests, row.query_tokens, row.context_tokens)
        assert found * 1e6 == pytest.approx(row.median_us), row


@given(size=st.sampled_from(sizes_up_to(4096)))
def test_prefills_are_exact_beyond_the_largest_size_in_proportion(size: int) -> None:
    wanted = sawtooth(size) if size <= LARGEST else sawtooth(LARGEST) * size / LARGEST
    found = WITH.forward_s("prefill", 1, size, 0) * 1e6
    assert found == pytest.approx(max(wanted + rest(1, size, 0), sawtooth(16) + rest(1, 16, 0)))


@given(kind=st.sampled_from(LAYOUTS), requests=st.integers(9, 300))
def test_layouts_of_more_requests_go_on_by_whole_forwards(kind: str, requests: int) -> None:
    tokens = 64 * requests
    shapes = ("verify", requests, tokens), ("verify", 8, 8 * 64), (kind, 8, 8 * 64)
    wide, same, known = (WITH.forward_s(*shape, 0) for shape in shapes)
    found = WITH.forward_s(kind, requests, tokens, 0)
    assert found == pytest.approx(wide * known / same)


@given(
    scale=st.floats(0.5, 1.9),
    requests=st.integers(1, 200),
    each=st.integers(1, 300),
    context=st.integers(0, 4000),
    kind=st.sampled_from(["draft", "verify", "decode", "prefill", *LAYOUTS]),
)
def test_products_slower_than_their_forwards_never_make_one_free(
    scale: float, requests: int, each: int, context: int, kind: str
) -> None:
    costs = costs_of([*forwards(), *products(lambda size: scale * sawtooth(size))])
    least = min(row.median_us for row in forwards() if row.kind != "host")
    assert costs.forward_s(kind, requests, requests * each, requests * context) * 1e6 >= least * (1 - 1e-9)


def test_far_beyond_the_grid_a_forward_takes_half_of_its_products_at_least() -> None:
    """Where products grow faster than the forwards that were measured, what is left of these falls."""
    rows = [forward("verify", count, 4, 0)._replace(median_us=900.0 + count) for count in (1, 2)]
    steep = products(lambda size: 100.0 * size)
    costs = Profile("made", FILLED, rows + steep).costs()
    assert costs.forward_s("verify", 2, 8, 0) == pytest.approx(902e-6)
    for count in (8, 64, 5000):
        assert costs.forward_s("verify", count, 4 * count, 0) >= 50e-6 * 4 * count * (1 - 1e-9)


def test_the_host_and_what_was_measured_do_not_depend_on_products() -> None:
    for requests, tokens in ((5, 40), (48, 768), (64, 64)):
        assert WITH.host_s(requests, tokens) == WITHOUT.host_s(requests, tokens)
        for context in (0, 512 * requests, 513 * requests):
            covered = [costs.curve(("verify",), requests, tokens).covers(context) for costs in (WITH, WITHOUT)]
            assert covered[0] == covered[1]


def test_prefills_which_score_few_tokens_may_take_less_than_scoring_all_does(tmp_path: Path) -> None:
    prefills = [Row("prefill", 1, n, 0, 20.0 + n * 0.01, 1.0, 5) for n in (16, 512, 2048)]
    rows = [*(row for row in forwards() if row.kind != "prefill"), *products(), *prefills]
    write_profile(tmp_path / "p.csv", FILLED, rows)
    costs = read_profile(tmp_path / "p.csv").costs()
    for row in prefills:
        assert costs.forward_s("prefill", 1, row.query_tokens, 0) * 1e6 == pytest.approx(row.median_us)
    assert all(costs.forward_s("prefill", 1, n, 0) * 1e6 >= 20 for n in range(1, 9000, 97))


def test_a_file_keeps_products(tmp_path: Path) -> None:
    rows = [*forwards(), *products()]
    write_profile(tmp_path / "p.csv", FILLED, rows)
    assert list(read_profile(tmp_path / "p.csv").rows) == sorted(rows)


@pytest.mark.parametrize(
    ("number", "field", "value", "told"),
    [
        (0, "requests", 2, r"query_tokens: found '1', allowed: a whole number of at least 2"),
        (-1, "requests", 2, r"requests: found 2, allowed: 1"),
        (-1, "context_tokens", 8, r"context_tokens: found 8, allowed: 0"),
        (-1, "query_tokens", 2047, r"query_tokens: found 2047, allowed: 2048, the next size that forwards are"),
        (-1, "median_us", 0, r"median_us: found '0', allowed: a number of at least 0.001"),
    ],
)
def test_bad_products_are_refused_with_line_and_field(tmp_path: Path, number, field, value, told) -> None:
    rows = products()
    rows[number] = rows[number]._replace(**{field: value})
    write_profile(tmp_path / "bad.csv", FILLED, rows)
    with pytest.raises(ValueError, match=told) as error:
        read_profile(tmp_path / "bad.csv")
    assert "bad.csv:" in str(error.value)


def refused(path: Path, rows: Sequence[Row], told: str, **header: str) -> None:
    write_profile(path, FILLED | header, rows)
    with pytest.raises(ValueError, match=told):
        read_profile(path)


def test_products_have_every_size_are_of_filled_forwards_and_no_longer_than_these(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    first = len(FILLED) + 3
    refused(path, products()[1:], rf"bad\.csv:{first}: query_tokens: found 2, allowed: 1, the next size")
    refused(path, [*products()[:9], *products()[10:]], r"query_tokens: found 11, allowed: 10")
    refused(path, products(), rf"bad\.csv:{first}: kind: found 'products', allowed: only with fill", fill="none")
    slow = [forward("verify", 2, 8, 0)._replace(median_us=400.0), *products()]
    refused(path, slow, rf"bad\.csv:{first + len(products())}: median_us: found 400, allowed: at least 410, half")
