import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import constant_trace, dense_traces, random_trace

from recguide.sim.costs import CostModel, constant_costs, linear_costs
from recguide.sim.methods import Policy
from recguide.sim.metrics import metrics_of
from recguide.sim.policies import ar, fixed
from recguide.sim.replay import Replay, replay
from recguide.sim.rounds import Rounds, rounds_of
from recguide.sim.windows import steady_window
from recguide.traces.dense import DenseTrace

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
UNIT = constant_costs(prefill=1.0, decode=1.0, draft=1.0, verify=2.0)


def play(
    trace: DenseTrace, policy: Policy, concurrency: int, costs: CostModel = COSTS
) -> tuple[Replay, Rounds, dict[str, float | int | None]]:
    rounds = rounds_of(trace)
    run = replay(rounds, costs, policy, concurrency=concurrency, order=range(len(trace.requests)))
    return run, rounds, metrics_of(run, rounds)


def test_two_requests_worked_out_by_hand() -> None:
    # one prefill for both; then 9 tokens each, 4 a round, the last round cut to 1
    _, _, figures = play(constant_trace(4, num_requests=2, output_tokens=10), fixed(8), 2, UNIT)
    expected = {
        "completed": 2,
        "duration": 10.0,
        "concurrency": 2.0,
        "output_throughput": 2.0,
        "output_throughput_per_request": 1.0,
        "request_throughput": 0.2,
        "total_token_throughput": 6.0,
        "mean_ttft_ms": 1000.0,
        "mean_tpot_ms": 1000.0,
        "median_itl_ms": 3000.0,
        "std_itl_ms": 0.0,
        "p99_e2el_ms": 10_000.0,
        "prefill_forwards": 1,
        "draft_forwards": 3,
        "verify_forwards": 3,
        "forwards": 6,
        "tpf": 18 / 12,
        "num_rounds": 6,
        "cut_rounds": 2,
        "accept_length": 3.0,
        "accept_length_macro": 3.0,
        "draft_acceptance_rate": (3 + 3 + 1) / 21,
        "query_tokens": 2 * 2 * 3 * 8,
        "wasted_query_tokens": 2 * 2 * (4 + 4 + 7),
        "block_share_8": 1.0,
        "block_share_1": 0.0,
        "steady_output_tokens": 18,
        "steady_output_throughput": 2.0,
        "steady_output_throughput_per_request": 1.0,
        "prefill_share": 0.1,
        "extrapolated_share": 0.0,
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


def test_without_drafts_there_is_no_acceptance_length() -> None:
    _, _, figures = play(random_trace(3), ar, 2)
    assert figures["accept_length"] is None
    assert figures["draft_acceptance_rate"] is None
    assert figures["tpf"] == 1.0
    assert figures["block_share_1"] == 1.0


def test_drafts_that_are_never_accepted_emit_one_token_a_round() -> None:
    _, _, figures = play(random_trace(3, ease=0.0), fixed(8), 2)
    assert figures["accept_length"] == 1.0
    assert figures["draft_acceptance_rate"] == 0.0
    assert figures["tpf"] == 0.5


def test_outputs_of_one_token_have_no_time_per_output_token() -> None:
    _, _, figures = play(constant_trace(4, num_requests=3, output_tokens=1), fixed(8), 1)
    assert figures["mean_tpot_ms"] is None
    assert figures["mean_itl_ms"] is None
    assert figures["tpf"] is None
    assert figures["total_output_tokens"] == 3


def test_more_places_than_requests_never_reach_a_steady_state() -> None:
    run, _, figures = play(constant_trace(4, num_requests=3), ar, 128)
    assert steady_window(run) is None
    assert figures["steady_output_throughput"] is None
    assert figures["max_concurrent_requests"] == 3


@given(trace=dense_traces(max_requests=10), concurrency=st.integers(1, 6), size=st.integers(0, 4))
def test_figures_agree_with_each_other(trace: DenseTrace, concurrency: int, size: int) -> None:
    sizes = (1, *trace.provenance.block_sizes)
    run, _, figures = play(trace, fixed(sizes[size % len(sizes)]), concurrency)
    value: Callable[[str], float] = lambda name: figures[name] or 0.0  # noqa: E731
    assert value("completed") == value("num_prompts")
    # Little's law: requests in flight are arrivals per second times seconds in flight
    assert value("concurrency") == pytest.approx(value("request_throughput") * value("mean_e2el_ms") / 1e3)
    assert value("output_throughput") == pytest.approx(value("concurrency") * value("output_throughput_per_request"))
    assert value("steady_output_tokens") <= value("total_output_tokens")
    shares = sum(value(name) for name in figures if name.startswith("block_share_"))
    assert shares == pytest.approx(1.0 if run.output_tokens.max() > 1 else 0.0)
    assert 0 <= value("wasted_query_tokens") <= value("query_tokens")


@given(trace=dense_traces(max_requests=10), concurrency=st.integers(1, 6))
def test_all_requests_are_in_flight_throughout_the_steady_window(trace: DenseTrace, concurrency: int) -> None:
    run, _, _ = play(trace, fixed(trace.provenance.block_sizes[0]), concurrency)
    window = steady_window(run)
    if window is not None:
        inside = (run.steps["start_s"] >= window[0]) & (run.steps["start_s"] < window[1])
        assert (run.steps["in_flight"][inside] == concurrency).all()
        assert np.isclose(run.steps["seconds"][inside].sum(), window[1] - window[0])


def test_every_figure_is_defined_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    _, _, figures = play(random_trace(0), ar, 1)
    for name in figures:
        latency = re.fullmatch(r"(mean_|median_|std_|p99_)(\w+_ms)", name)
        parts = latency.groups() if latency else (re.sub(r"_\d+$", "_B", name),)
        assert all(f"`{part}`" in page for part in parts), name
