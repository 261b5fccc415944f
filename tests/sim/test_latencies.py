from typing import Any

import numpy as np
import pytest
from hypothesis import given
from loads import Setup, setups
from strategies import constant_trace, random_trace

from recguide.sim.arrivals import Arrival, Clients
from recguide.sim.costs import constant_costs
from recguide.sim.figures import Figures, parse_goodput, parse_percentiles
from recguide.sim.latencies import resamples
from recguide.sim.memory import Limits
from recguide.sim.metrics import metrics_of
from recguide.sim.policies import ar, fixed
from recguide.sim.replay import replay, serve
from recguide.sim.rounds import rounds_of
from recguide.sim.windows import in_flight_s, steady_window

UNIT = constant_costs(prefill=1.0, decode=1.0, draft=1.0, verify=2.0)


def test_queueing_is_told_apart_from_service_and_from_the_clients_own_wait() -> None:
    rounds = rounds_of(constant_trace(4, 1, output_tokens=1))
    arrivals = [Arrival(time, 0, 20, 1) for time in (0.0, 0.25, 0.5)]
    open_ = serve(rounds, UNIT, ar, Clients(arrivals, None), limits=Limits(max_batched_tokens=20))
    figures: dict[str, Any] = metrics_of(open_, rounds)
    assert figures["mean_queue_ms"] == pytest.approx((0 + 750 + 1500) / 3)
    assert figures["mean_client_queue_ms"] == 0
    assert figures["mean_ttft_ms"] == pytest.approx(figures["mean_queue_ms"] + 1000)
    capped = serve(rounds, UNIT, ar, Clients(arrivals, 1))
    figures = metrics_of(capped, rounds)
    assert figures["mean_client_queue_ms"] == pytest.approx((0 + 750 + 1500) / 3)
    assert (figures["mean_queue_ms"], figures["mean_ttft_ms"]) == (0, 1000)
    assert metrics_of(replay(rounds, UNIT, ar, concurrency=1, order=[0]), rounds)["mean_client_queue_ms"] is None


def test_percentiles_are_those_that_were_asked_for() -> None:
    rounds = rounds_of(random_trace(0, 20))
    run = replay(rounds, UNIT, fixed(8), concurrency=4, order=range(20))
    figures = metrics_of(run, rounds, Figures(percentiles=(50.0, 99.9)))
    assert figures["p50_ttft_ms"] == figures["median_ttft_ms"]
    assert figures["p99.9_e2el_ms"] == pytest.approx(np.percentile(run.finished_s - run.sent_s, 99.9) * 1e3)
    assert "p99_ttft_ms" not in figures


def test_goodput_counts_requests_that_meet_every_level() -> None:
    rounds = rounds_of(constant_trace(4, 8, output_tokens=10))
    run = replay(rounds, UNIT, fixed(8), concurrency=2, order=range(8))
    # every request takes 1 s to its first token, 10 s in all, and 1 s a token
    all_good = metrics_of(run, rounds, Figures(goodput={"ttft": 1000, "tpot": 1000.0001, "e2el": 10_000.0001}))
    assert (all_good["good_requests"], all_good["request_goodput"]) == (8, all_good["request_throughput"])
    assert metrics_of(run, rounds, Figures(goodput={"ttft": 1000, "tpot": 900}))["good_requests"] == 0
    assert metrics_of(run, rounds)["request_goodput"] is None


def test_intervals_hold_the_figure_and_shrink_with_more_requests() -> None:
    rounds = rounds_of(random_trace(0, 40, ease=0.8))
    widths = []
    for count in (40, 640):
        run = replay(rounds, UNIT, fixed(8), concurrency=4, order=[i % 40 for i in range(count)])
        figures: dict[str, Any] = metrics_of(run, rounds, Figures(resamples=300))
        for name in ("output_throughput", "output_throughput_per_request", "mean_tpot_ms", "mean_e2el_ms"):
            assert figures[f"{name}_ci_low"] <= figures[name] * (1 + 1e-9)
            assert figures[f"{name}_ci_high"] >= figures[name] * (1 - 1e-9)
        widths.append(figures["mean_tpot_ms_ci_high"] - figures["mean_tpot_ms_ci_low"])
    assert widths[1] < widths[0] / 2


def test_all_policies_are_resampled_alike() -> None:
    one, other = (np.concatenate(list(resamples(9, Figures(resamples=100, seed=5)))) for _ in range(2))
    assert (one == other).all()
    assert one.shape == (100, 9)
    assert (one.sum(axis=1) == 9).all()


@given(setups())
def test_the_steady_window_lies_inside_the_run(setup: Setup) -> None:
    run = setup.run()
    window = steady_window(run)
    if window is not None:
        start, end = window
        assert 0 < start < end <= run.finished_s.max()
        assert 0 <= in_flight_s(run, start, end) <= len(run.request) * (end - start) * (1 + 1e-9)


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:0", "ttft:nan", "ttft:1 ttft:2", "latency:5", "tpot:-1"])
def test_a_bad_service_level_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="goodput: found"):
        parse_goodput([text])
    assert parse_goodput(["ttft:500 tpot_ms:50", "e2el:9e3"]) == {"ttft": 500, "tpot": 50, "e2el": 9000}


@pytest.mark.parametrize("text", ["", "101", "-1", "nan", "50,,90", "1e1"])
def test_a_bad_percentile_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="metric-percentiles: found"):
        parse_percentiles([text])
    assert parse_percentiles(["90,50", "99.9", "50"]) == (50.0, 90.0, 99.9)
