from pathlib import Path

import profiles
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recguide.sim.costs import (
    CostModel,
    constant_costs,
    linear_costs,
    read_profile,
    resolve_profile,
    write_profile,
)
from recguide.sim.profile_rows import Row
from recguide.sim.sizes import filled_up, moved_sizes, moved_text, sizes_up_to


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> CostModel:
    return profiles.costs(tmp_path_factory.mktemp("profile") / "tiny.csv")


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    return profiles.write(tmp_path / "good.csv").read_text().splitlines()


def refusal(tmp_path: Path, lines: list[str]) -> str:
    path = tmp_path / "bad.csv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=str(path)) as error:
        read_profile(path)
    return str(error.value)


@given(kind=st.sampled_from(["draft", "verify"]), data=st.data())
def test_interpolation_gives_back_a_linear_cost(costs: CostModel, kind: str, data: st.DataObject) -> None:
    requests = data.draw(st.integers(1, 128))
    query_tokens = data.draw(st.integers(4 * requests, 32 * requests))
    context_tokens = data.draw(st.integers(0, 8192 * requests))
    expected = profiles.seconds(kind, query_tokens, context_tokens)
    assert costs.forward_s(kind, requests, query_tokens, context_tokens) == pytest.approx(expected)
    assert costs.curve((kind,), requests, query_tokens).covers(context_tokens)


@pytest.mark.parametrize(
    ("requests", "query_tokens", "context_tokens"),
    [(256, 2048, 4096), (4, 256, 512), (4, 8, 512), (1, 8, 8193)],
    ids=["requests", "long blocks", "short blocks", "context"],
)
def test_outside_the_grid_the_line_goes_on_and_says_so(
    costs: CostModel, requests: int, query_tokens: int, context_tokens: int
) -> None:
    expected = profiles.seconds("verify", query_tokens, context_tokens)
    assert costs.forward_s("verify", requests, query_tokens, context_tokens) == pytest.approx(expected)
    assert not costs.curve(("verify",), requests, query_tokens).covers(context_tokens)


def test_prompts_of_one_prefill_cost_as_one_prompt_of_their_length(costs: CostModel) -> None:
    assert costs.forward_s("prefill", 7, 700, 0) == costs.forward_s("prefill", 1, 700, 0)


def test_prompts_of_one_prefill_cost_what_so_many_were_profiled_to_cost(tmp_path: Path) -> None:
    rows = [
        Row("prefill", n, q, 0, us, 0, 1) for n, q, us in [(1, 64, 100), (1, 256, 400), (4, 64, 160), (4, 256, 520)]
    ]
    write_profile(tmp_path / "prompts.csv", profiles.header(), rows)
    costs = read_profile(tmp_path / "prompts.csv").costs()
    found = {(n, q): costs.forward_s("prefill", n, q, 0) * 1e6 for n in (1, 2, 4, 9) for q in (64, 160, 256)}
    for shape, wanted in {
        (1, 64): 100, (4, 256): 520, (2, 64): 120, (2, 160): 280, (4, 160): 340, (9, 64): 160, (9, 160): 340,
    }.items():  # fmt: skip
        assert found[shape] == pytest.approx(wanted), shape
    assert costs.curve(("prefill",), 9, 160).covers(0)


def test_forwards_pay_for_the_tokens_that_fill_them_up(tmp_path: Path) -> None:
    rows = [Row("verify", n, 8 * n, 0, 100.0 * n, 0, 1) for n in (1, 2, 4, 8, 16)]
    write_profile(tmp_path / "filled.csv", profiles.header() | {"fill": "eighths of a power of 2"}, rows)
    costs = read_profile(tmp_path / "filled.csv").costs()
    # 72 tokens are a size, 88 too; 8 * 17 are filled up to 144, of which 18 requests would have as many
    for requests, paid in ((8, 8), (9, 9), (11, 11), (15, 15), (17, 18)):
        assert costs.forward_s("verify", requests, 8 * requests, 0) == pytest.approx(100e-6 * paid)


SIZED = profiles.header() | {"fill": "eighths of a power of 2"}


def test_sizes_that_moved_cost_what_was_run_in_their_place(tmp_path: Path) -> None:
    # 56 requests of 8 tokens were a forward of 480, and none of 448
    counts = (32, 56, 60, 64)
    rows = [Row("verify", n, 8 * n, c * n, us, 0, 1) for n in counts for c, us in ((10, 50 + n), (90, 70 + n))]
    rows += [Row("host", n, 8 * n, 0, n, 0, 1) for n in counts]
    rows += [Row("prefill", 1, n, 0, n, 0, 1) for n in (384, 448, 512)]
    write_profile(tmp_path / "moved.csv", SIZED | {"fill_moved": "448>480"}, rows)
    costs = read_profile(tmp_path / "moved.csv").costs()
    same = [costs.forward_s("verify", n, 8 * n, 600) for n in (53, 54, 56, 58, 60)]
    assert same == pytest.approx([110e-6] * 5)
    assert costs.curve(("verify",), 56, 448).covers(56 * 10 + 40)
    assert costs.host_s(56, 448) == pytest.approx(56e-6)
    # nothing was measured at 480 itself
    for tokens, paid in ((448, 448), (430, 448), (480, 448), (384, 384)):
        assert costs.forward_s("prefill", 1, tokens, 0) == pytest.approx(paid * 1e-6)
    with pytest.raises(ValueError, match=r"bad\.csv: header: fill_moved: found '448>449'"):
        read_profile(profiles.write(tmp_path / "bad.csv", fill_moved="448>449"))


@given(st.data())
def test_a_profile_gives_back_each_row_whatever_sizes_moved(tmp_path_factory, data: st.DataObject) -> None:
    sizes = sizes_up_to(600)
    seconds = data.draw(st.lists(st.floats(1, 3), min_size=len(sizes), max_size=len(sizes)))
    moved = moved_sizes(sizes, seconds)
    time_of = dict(zip(sizes, seconds, strict=True))
    each = data.draw(st.sampled_from([1, 4, 32, 272]))
    counts = data.draw(st.sets(st.integers(1, 512 // each), min_size=1, max_size=12))
    ran = {n: filled_up(n * each, moved) for n in counts}
    rows = [
        Row("verify", n, n * each, n * c, 1e3 * time_of[size] + c, 0, 1) for n, size in ran.items() for c in (0, 64)
    ]
    if data.draw(st.booleans()):
        shares = data.draw(st.lists(st.floats(0, 1.2), min_size=len(sizes), max_size=len(sizes)))
        rows += [
            Row("products", 1, size, 0, 1 + 1e3 * share * time_of[filled_up(size, moved)], 0, 7)
            for size, share in zip(sizes, shares, strict=True)
        ]
    path = tmp_path_factory.mktemp("rows") / "p.csv"
    write_profile(path, SIZED | {"fill_moved": moved_text(moved)}, rows)
    costs = read_profile(path).costs()
    for requests, size in ran.items():
        found = costs.curve(("verify",), requests, requests * each)
        assert found(0) == pytest.approx(1e-3 * time_of[size])
        assert found.covers(0)


def test_a_layout_without_a_hosts_time_of_its_own_takes_that_of_rounds(tmp_path: Path) -> None:
    rows = [Row("host", 1, 8, 0, 50, 0, 1), Row("rows", 1, 64, 0, 900, 0, 1), Row("verify", 1, 8, 0, 800, 0, 1)]
    write_profile(tmp_path / "old.csv", profiles.header(), rows)
    old = read_profile(tmp_path / "old.csv").costs()
    assert old.step_host_s("rows", (1, 64), (1, 8)) == pytest.approx(50e-6)
    assert old.step_host_s("rows", (1, 8), (0, 0)) == 0.0
    more = [*rows, Row("host-rows", 1, 8, 0, 60, 0, 1), Row("host-rows", 1, 64, 0, 70, 0, 1)]
    write_profile(tmp_path / "new.csv", profiles.header(), more)
    new = read_profile(tmp_path / "new.csv").costs()
    assert new.step_host_s("rows", (1, 64), (1, 8)) == pytest.approx(70e-6)
    assert new.step_host_s("rows", (1, 8), (0, 0)) == pytest.approx(60e-6)
    assert new.steps_of == {"rows"}


@pytest.mark.parametrize(("own_host", "plain"), [(True, "draft"), (False, "verify")])
def test_a_layout_goes_on_as_drafts_do_where_it_was_not_profiled(tmp_path: Path, own_host: bool, plain: str) -> None:
    us = {"draft": 900.0, "verify": 700.0}
    rows = [Row(kind, n, n * each, 0, us[kind] + each, 0, 1) for kind in us for n in (1, 8, 64) for each in (8, 16, 32)]
    rows += [Row("rows", n, n * each, 0, 1000.0 + each, 0, 1) for n in (1, 8) for each in (32, 64)]
    rows += [Row("host", 1, 8, 0, 50, 0, 1)] + [Row("host-rows", 1, 8, 0, 60, 0, 1)] * own_host
    write_profile(tmp_path / "p.csv", profiles.header(), rows)
    costs = read_profile(tmp_path / "p.csv").costs()
    # what was profiled is that; a mixture of one block size is a plain forward; between both it is linear
    assert costs.forward_s("rows", 8, 256, 0) == pytest.approx(1032e-6)
    assert costs.forward_s("rows", 8, 128, 0) == pytest.approx((us[plain] + 16) * 1e-6)
    assert costs.forward_s("rows", 8, 192, 0) == pytest.approx((us[plain] + 16 + 1032) / 2 * 1e-6)
    # more requests than it was profiled with
    assert costs.forward_s("rows", 64, 2048, 0) == pytest.approx((us[plain] + 32) * 1e-6)
    assert costs.curve(("rows",), 64, 2048).covers(0)


def test_a_layout_of_more_requests_than_were_profiled_takes_as_much_more_than_a_plain_forward(tmp_path: Path) -> None:
    rows = [Row("draft", n, n * b, n * c, 10.0 * n * b + c, 0, 1) for n in (1, 8, 64) for b in (8, 16) for c in (0, 64)]
    rows += [Row("rows", n, n * 64, n * c, 15.0 * n * 64 + 1.5 * c, 0, 1) for n in (1, 8) for c in (0, 64)]
    rows += [Row("host", n, n * b, 0, 5.0 * n, 0, 1) for n in (1, 8, 64) for b in (8, 16)]
    rows += [Row("host-rows", n, n * 64, 0, 10.0 * n + noise, 0, 1) for n, noise in ((1, 30), (6, 0), (8, 0))]
    write_profile(tmp_path / "p.csv", profiles.header(), rows)
    costs = read_profile(tmp_path / "p.csv").costs()
    for count in (9, 32, 64, 100):
        for context in (0, 64):
            found = costs.curve(("rows",), count, count * 64)
            assert found(count * context) == pytest.approx((15.0 * count * 64 + 1.5 * context) * 1e-6)
            assert not found.covers(count * context)
        assert costs.curve(("host-rows",), count, count * 64)(0) == pytest.approx(10e-6 * count)
    assert costs.curve(("rows",), 8, 512).covers(0)


def test_a_layout_gives_back_its_rows_of_the_most_requests_where_they_are_filled_up(tmp_path: Path) -> None:
    # 1088 tokens are filled up to 1152, which is more than four requests have
    us = {1: 100.0, 2: 170.0, 4: 300.0}
    rows = [Row("draft", n, n * 16, n * c, 10.0 * n + c, 0, 1) for n in (1, 2, 4, 8) for c in (0, 64)]
    rows += [Row("quadratic", n, n * 272, n * c, us[n] + c, 0, 1) for n in us for c in (0, 64)]
    write_profile(tmp_path / "p.csv", SIZED | {"fill_moved": "none"}, rows)
    costs = read_profile(tmp_path / "p.csv").costs()
    for count, seconds in us.items():
        found = costs.curve(("quadratic",), count, count * 272)
        assert found(0) == pytest.approx(1e-6 * seconds)
        assert found.covers(0)
    assert not costs.curve(("quadratic",), 5, 5 * 272).covers(0)


def test_extrapolation_downwards_never_beats_the_fastest_forward_measured(tmp_path: Path) -> None:
    steep = [Row("draft", 1, q, c, us, 0, 1) for q, c, us in [(8, 0, 100), (8, 99, 100), (16, 0, 900), (16, 99, 900)]]
    write_profile(tmp_path / "steep.csv", profiles.header(), steep)
    costs = read_profile(tmp_path / "steep.csv").costs()
    assert costs.forward_s("draft", 1, 2, 10) == pytest.approx(100e-6)


def test_a_round_costs_its_forwards_and_the_host(costs: CostModel) -> None:
    whole = costs.curve(("draft", "verify", "host"), 5, 40)
    parts = costs.forward_s("draft", 5, 40, 900) + costs.forward_s("verify", 5, 40, 900) + costs.host_s(5, 40)
    assert whole(900) == pytest.approx(parts)
    assert whole.covers(900)


def test_a_kind_without_rows_is_refused_by_name(tmp_path: Path) -> None:
    write_profile(tmp_path / "p.csv", profiles.header(), [Row("draft", 1, 8, 0, 1.0, 0, 1)])
    with pytest.raises(ValueError, match=r"p\.csv: kind: no rows of kind 'verify'; there are: draft"):
        read_profile(tmp_path / "p.csv").costs().forward_s("verify", 1, 8, 0)


def test_closed_forms_are_their_formulas() -> None:
    assert constant_costs(draft=2.0).forward_s("draft", 9, 99, 999) == 2.0
    assert constant_costs(draft=2.0).forward_s("verify", 9, 99, 999) == 0.0
    linear = linear_costs(1.0, 0.5, 0.25, host_s=3.0)
    assert linear.forward_s("rows", 2, 8, 16) == 1 + 4 + 4
    assert linear.host_s(2, 8) == 3.0


def test_profiles_are_read_as_written(tmp_path: Path) -> None:
    profile = read_profile(profiles.write(tmp_path / "p.csv"))
    assert list(profile.rows) == sorted(profiles.rows())
    assert profile.header["model"] == "tiny"


FIELD_ERRORS = [
    ("median_us", "nan", "a number of at least 0.001"),
    ("median_us", "0", "a number of at least 0.001"),
    ("median_us", "inf", "a number of at least 0.001"),
    ("median_us", "1e300", "a number of at least 0.001 and at most 1e+12"),
    ("query_tokens", "9" * 400, "a whole number of at least 1 and at most 1e+12"),
    ("spread_us", "-1", "a number of at least 0"),
    ("requests", "0", "a whole number of at least 1"),
    ("requests", "1.5", "a whole number of at least 1"),
    ("query_tokens", "0", "a whole number of at least 1"),
    ("context_tokens", "-1", "a whole number of at least 0"),
    ("repeats", "", "a whole number of at least 1"),
    ("kind", "warmup", "decode, draft, host"),
]


@pytest.mark.parametrize(("field", "found", "allowed"), FIELD_ERRORS)
def test_a_bad_field_is_refused_with_line_and_field(
    tmp_path: Path, lines: list[str], field: str, found: str, allowed: str
) -> None:
    first = next(i for i, line in enumerate(lines) if line.startswith("decode"))
    cells = lines[first].split(",")
    cells[Row._fields.index(field)] = found
    message = refusal(tmp_path, [*lines[:first], ",".join(cells), *lines[first + 1 :]])
    assert f"bad.csv:{first + 1}: {field}: found {found!r}, allowed: {allowed}" in message


@pytest.mark.parametrize("kind", ["host-adaptive", "host-allocation"])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{kind},2,12,0,nan,1.0,5", ":{line}: median_us: found 'nan', allowed: a number of at least 0 and"),
        ("{kind},2,1,0,50.0,1.0,5", ":{line}: query_tokens: found '1', allowed: a whole number of at least 2"),
        ("{kind},0,12,0,50.0,1.0,5", ":{line}: requests: found '0', allowed: a whole number of at least 1"),
        ("{kind}s,2,12,0,50.0,1.0,5", ":{line}: kind: found '{kind}s', allowed: decode, draft, host, host-adaptive"),
        ("{kind},2,12,0,50.0,1.0,5\n{kind},2,12,0,60.0,1.0,5", ":{next}: the same shape twice: {kind}"),
        ("{kind},2,12,0,50.0,1.0,5\n{kind},1,12,0,60.0,1.0,5", ":{next}: not sorted: {kind}"),
    ],
)
def test_bad_rows_of_planners_are_refused(tmp_path: Path, lines: list[str], kind: str, row: str, message: str) -> None:
    found = refusal(tmp_path, [*lines, row.format(kind=kind)])
    assert message.format(kind=kind, line=len(lines) + 1, next=len(lines) + 2) in found


def test_a_profile_saved_with_a_byte_order_mark_is_read(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "bom.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    assert read_profile(tmp_path / "bom.csv").header["recguide-profile"] == "1"


def test_an_unsorted_or_repeated_shape_is_refused(tmp_path: Path, lines: list[str]) -> None:
    assert f"bad.csv:{len(lines)}: not sorted: verify" in refusal(tmp_path, [*lines[:-2], lines[-1], lines[-2]])
    assert f"bad.csv:{len(lines) + 1}: the same shape twice" in refusal(tmp_path, [*lines, lines[-1]])


def test_missing_parts_are_refused_by_name(tmp_path: Path, lines: list[str]) -> None:
    columns = next(i for i, line in enumerate(lines) if line.startswith("kind"))
    assert "header: missing gpu" in refusal(tmp_path, [line for line in lines if not line.startswith("# gpu")])
    assert f":{columns + 1}: columns: found" in refusal(tmp_path, lines[:columns] + lines[columns + 1 :])
    assert f":{columns + 1}: no rows" in refusal(tmp_path, lines[: columns + 1])
    assert "bad.csv: header: missing recguide-profile" in refusal(tmp_path, [])
    assert f":{len(lines)}: found 3 fields, allowed: 7" in refusal(tmp_path, [*lines[:-1], "verify,1,8"])
    assert "recguide-profile: found '9', allowed: 1" in refusal(tmp_path, ["# recguide-profile: 9", *lines[1:]])
    (tmp_path / "bad.csv").write_bytes(b"# model: \xff")
    with pytest.raises(ValueError, match=r"bad\.csv: byte 9: not UTF-8"):
        read_profile(tmp_path / "bad.csv")


def test_an_unknown_profile_name_lists_the_shipped_ones() -> None:
    with pytest.raises(FileNotFoundError, match="profile 'nowhere': neither a file nor a shipped profile; shipped: "):
        resolve_profile("nowhere")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(damage=st.integers(0, 10_000), junk=st.text(max_size=3))
def test_a_damaged_profile_never_fails_in_another_way(tmp_path: Path, damage: int, junk: str) -> None:
    text = profiles.write(tmp_path / "good.csv").read_text()
    (tmp_path / "bad.csv").write_text(
        text[: damage % len(text)] + junk + text[damage % len(text) + 1 :], encoding="utf-8"
    )
    message = "bad.csv"
    try:
        read_profile(tmp_path / "bad.csv")
    except ValueError as error:
        message = str(error)
    assert "bad.csv" in message
