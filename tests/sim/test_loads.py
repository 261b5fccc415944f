from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.arrivals import Arrival, Clients, random_times
from recguide.sim.load_options import limits_of, load_of
from recguide.sim.loads import Drawn, Load, groups_of
from recguide.sim.memory import Limits
from recguide.sim.rounds import rounds_of
from recguide.sim.workloads import Workload

TRACE = random_trace(0, 30)
ROUNDS, GROUPS = rounds_of(TRACE), groups_of(TRACE)


def workload(
    folder: Path, *rows: str, columns: str = "arrival_s,input_tokens,output_tokens", **options: bool
) -> Workload:
    (folder / "file.csv").write_text("\n".join([columns, *rows]))
    return Workload(folder / "file.csv", **options)


def drawn(load: Load) -> tuple[list[Arrival], Drawn]:
    counts = Drawn()
    return list(load.arrivals(ROUNDS, GROUPS, counts)), counts


@pytest.mark.parametrize(("burstiness", "spread"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5), (None, 0.0)])
def test_gaps_have_the_rate_and_the_burstiness_that_were_asked_for(burstiness: float | None, spread: float) -> None:
    times = list(islice(random_times(8.0, burstiness, seed=1), 20_000))
    gaps = np.diff(times)
    assert times[0] == 0
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    # the coefficient of variation of a Gamma distribution of shape S is S^(-1/2)
    assert gaps.std() / gaps.mean() == pytest.approx(spread, abs=0.05)


def test_an_infinite_rate_sends_everything_at_once() -> None:
    assert list(islice(random_times(float("inf"), 1.0, seed=0), 4)) == [0.0] * 4


def test_a_row_draws_a_request_of_its_dataset_and_category(tmp_path: Path) -> None:
    columns = "arrival_s,input_tokens,output_tokens,dataset,category"
    rows = [*["0,10,5,mbpp,code"] * 20, *["0,10,5,,chat"] * 20]
    arrivals, _ = drawn(Load((), workload=workload(tmp_path, *rows, columns=columns)))
    assert {TRACE.requests[each.row].dataset for each in arrivals[:20]} == {"mbpp"}
    assert {TRACE.requests[each.row].category for each in arrivals[20:]} == {"chat"}
    assert len({each.row for each in arrivals[:20]}) > 1
    other = workload(tmp_path, "0,10,5,gpqa,", columns=columns)
    with pytest.raises(ValueError, match=r"file\.csv:2: dataset/category: found gpqa/\*, allowed: gsm8k/math"):
        drawn(Load((), workload=other))


def test_the_seed_decides_what_is_drawn(tmp_path: Path) -> None:
    load = Load((), workload=workload(tmp_path, *["0,10,70"] * 30))
    assert drawn(load) == drawn(load)
    assert drawn(load)[0] != drawn(replace(load, seed=1))[0]


def test_a_longer_output_goes_on_with_others_of_its_dataset_and_is_counted(tmp_path: Path) -> None:
    arrivals, counts = drawn(Load((), workload=workload(tmp_path, "0,10,500", "0,10,1")))
    long, short = arrivals
    rows = [long.row, *long.then]
    lengths = [TRACE.requests[row].output_tokens for row in rows]
    assert sum(lengths) >= 500 > sum(lengths[:-1])
    assert len({TRACE.requests[row].dataset for row in rows}) == 1
    assert short.then == ()
    assert (counts.stitched, counts.stitched_tokens) == (1, 500 - lengths[0])
    file = workload(tmp_path, "0,10,500", "0,10,1")
    with pytest.raises(ValueError, match=r"file\.csv:2: output tokens: \d+ more than the recorded request"):
        drawn(Load((), workload=file, stitch=False))
    kept, counts = drawn(Load((), workload=replace(file, lenient=True), stitch=False))
    assert (len(kept), counts.skipped) == (1, 1)


def test_lengths_alone_make_a_closed_loop_or_come_at_a_rate(tmp_path: Path) -> None:
    file = workload(tmp_path, "3,4", "5,6", columns="input_tokens,output_tokens", timed=False)
    closed, open_ = Load((), workload=file), Load((), workload=file, rate=2.0, burstiness=None)
    assert (closed.closed, open_.closed) == (True, False)
    assert [each.arrival_s for each in drawn(closed)[0]] == [0.0, 0.0]
    assert [each.arrival_s for each in drawn(open_)[0]] == [0.0, 0.5]


def test_as_many_rows_as_asked_for_are_served_and_none_is_refused(tmp_path: Path) -> None:
    file = workload(tmp_path, "0,10,5", "1,10,5", "2,10,5")
    assert len(drawn(Load((), workload=file, num_prompts=2))[0]) == 2
    empty = Load((), workload=workload(tmp_path, "0,10,0", "x,1,1", lenient=True))
    with pytest.raises(
        ValueError, match=r"file\.csv: no request to serve \(1 failed, 1 skipped\); the first skipped: "
    ):
        empty.check(ROUNDS, GROUPS, Limits())


def test_skipped_rows_are_none_of_those_asked_for(tmp_path: Path) -> None:
    rows = ("0,10,5", "1,99999,5", "2,oops,5", "3,10,5", "4,10,5")
    arrivals, counts = drawn(Load((), workload=workload(tmp_path, *rows, lenient=True), num_prompts=2))
    assert [each.arrival_s for each in arrivals] == [0.0, 3.0]
    assert counts.skipped == 2


def test_a_request_that_never_fits_is_found_before_anything_runs(tmp_path: Path) -> None:
    load = Load((), workload=workload(tmp_path, "0,10,5", "0,90,12"))
    load.check(ROUNDS, GROUPS, Limits(page_size=1, kv_pages=101))
    with pytest.raises(ValueError, match="request 1: 90 prompt and 12 output tokens need 101 KV pages of 1 tokens"):
        load.check(ROUNDS, GROUPS, Limits(page_size=1, kv_pages=100))


@given(times=st.lists(st.floats(0, 9), min_size=1, max_size=9).map(sorted), limit=st.integers(1, 4))
def test_clients_send_what_has_come_as_far_as_there_are_places(times: list[float], limit: int) -> None:
    clients = Clients([Arrival(time, 0, 1, 1) for time in times], limit)
    sent = list(clients.due(5.0, 1))
    assert sent == [Arrival(time, 0, 1, 1) for time in times if time <= 5][: limit - 1]


def test_unsorted_arrivals_are_refused() -> None:
    clients = Clients([Arrival(1.0, 0, 1, 1), Arrival(0.5, 0, 1, 1)], None)
    with pytest.raises(ValueError, match=r"arrival_s: found 0\.5 after 1\.0"):
        list(clients.due(2.0, 0))


CONTRADICTIONS = [
    ({"request-rate": 2.0, "arrivals": "f"}, "request-rate: found beside arrivals"),
    ({"arrivals": "f", "lengths": "g"}, "arrivals: found beside lengths"),
    ({"prefix-reuse": True, "kv-tokens": 100}, "prefix-reuse: found beside kv-tokens"),
    ({"burstiness": 2.0}, "burstiness: found without request-rate"),
    ({"request-rate-mode": "constant"}, "request-rate-mode: found without request-rate"),
    ({"time-scale": 2.0}, "time-scale: found without arrivals"),
    ({"lenient": True}, "lenient: found without arrivals or lengths"),
    ({"no-stitch": True}, "no-stitch: found without arrivals or lengths"),
    ({"request-rate": 0.0}, "request-rate: found 0.0, allowed: requests per second above 0"),
    ({"request-rate": float("nan")}, "request-rate: found nan"),
    ({"request-rate": 1.0, "burstiness": -1.0}, "burstiness: found -1.0, allowed: numbers above 0"),
    ({"request-rate": 1.0, "request-rate-mode": "fast"}, "request-rate-mode: found 'fast', allowed: poisson, constant"),
    ({"request-rate": 1.0, "request-rate-mode": "constant", "burstiness": 2.0}, "burstiness: found beside"),
    ({"arrivals": "f", "time-scale": 0.0}, "time-scale: found 0.0, allowed: numbers above 0"),
    ({"kv-tokens": 64, "total-kv-pages": 4}, "kv-tokens: found beside total-kv-pages"),
    ({"kv-page-size": 16}, "kv-page-size: found without kv-tokens, total-kv-pages or prefix-reuse"),
    ({"kv-tokens": 8}, "kv-tokens: found 8, allowed: at least one page of 16"),
]


@pytest.mark.parametrize(("options", "message"), CONTRADICTIONS)
def test_contradictory_or_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        limits_of(options, 1) and load_of(options, None, 0)


def test_the_cache_can_be_given_in_tokens_or_pages() -> None:
    assert limits_of({"kv-tokens": 100}, 1).kv_pages == 6
    assert limits_of({"total-kv-pages": 100, "kv-page-size": 4}, 1).kv_tokens == 400
    assert limits_of({}, 1).kv_pages is None
