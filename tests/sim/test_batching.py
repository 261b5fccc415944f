from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import constant_trace, dense_traces

from recguide.sim.batching import BATCHINGS, MAX_WAIT, Batching, batching_named
from recguide.sim.costs import CostModel, linear_costs
from recguide.sim.metrics import metrics_of
from recguide.sim.policies import Outcomes
from recguide.sim.replay import PREFILL_STEP, Replay, replay
from recguide.sim.rounds import AR, Ints, Rounds, rounds_of
from recguide.traces.dense import DenseTrace

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
batchings = st.sampled_from(sorted(BATCHINGS))


def mixed(rounds: Rounds, seen: Outcomes) -> Ints:
    sizes = np.array(sorted(rounds.emitted))
    return sizes[(seen.tokens * 7 + seen.request) % len(sizes)]


def play(trace: DenseTrace, batching: Batching, concurrency: int, costs: CostModel = COSTS) -> tuple[Replay, Rounds]:
    rounds = rounds_of(trace)
    order = range(len(trace.requests))
    plan = lambda seen: mixed(rounds, seen)  # noqa: E731
    return replay(rounds, costs, plan, concurrency=concurrency, order=order, batching=batching), rounds


@given(trace=dense_traces(max_requests=8), name=batchings, concurrency=st.integers(1, 8))
def test_every_batching_serves_every_token(trace: DenseTrace, name: str, concurrency: int) -> None:
    run, rounds = play(trace, batching_named(name), concurrency)
    emitted = np.bincount(run.emission_request, run.emission_tokens)
    assert emitted.tolist() == [trace.requests[row].output_tokens for row in run.request]
    figures = metrics_of(run, rounds)
    padding, wasted = figures["padding_query_tokens"], figures["wasted_query_tokens"]
    assert padding is not None
    assert wasted is not None
    assert 0 <= padding <= wasted
    assert padding == 0 or name == "pad"


@given(trace=dense_traces(max_requests=8), name=batchings, concurrency=st.integers(1, 8))
def test_query_tokens_are_those_of_the_blocks_and_the_padding(trace: DenseTrace, name: str, concurrency: int) -> None:
    run, _ = play(trace, batching_named(name), concurrency)
    rounds = run.steps["block_size"] != PREFILL_STEP
    size = run.emission_block_size
    own = np.bincount(run.emission_step, size * (1 + (size > AR)), minlength=len(rounds))
    paid = run.steps["query_tokens"] + run.steps["draft_tokens"]
    if name == "pad":
        # a request without a draft is not drafted for: what fills its block up is padding all the same
        alone = np.bincount(run.emission_step, (size == AR) & (run.steps["block_size"][run.emission_step] > AR))
        own[: len(alone)] += alone
    assert (paid == own + run.steps["padding"])[rounds].all()
    if name.startswith("bucket"):
        assert (size == run.steps["block_size"][run.emission_step]).all()


@given(trace=dense_traces(max_requests=8), concurrency=st.integers(1, 8))
def test_padding_costs_time_and_raggedness_saves_it(trace: DenseTrace, concurrency: int) -> None:
    rounds = rounds_of(trace)
    alike = replace(rounds, emitted=dict.fromkeys(rounds.emitted, rounds.emitted[AR]))
    plan = lambda seen: mixed(rounds, seen)  # noqa: E731
    ends = {
        name: replay(
            alike, COSTS, plan, concurrency=concurrency, order=range(len(trace.requests)), batching=BATCHINGS[name]
        ).finished_s.max()
        for name in ("pad", "ragged")
    }
    assert ends["ragged"] <= ends["pad"] * (1 + 1e-9)


@settings(max_examples=30)
@given(
    name=st.sampled_from([name for name in BATCHINGS if name.startswith("bucket")]),
    sizes=st.lists(st.sampled_from([1, 4, 8, 16, 32]), min_size=1, max_size=40),
    seed=st.integers(0, 9),
)
def test_no_bucket_starves_whatever_the_others_do(name: str, sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks, waited, last = np.array(sizes), np.zeros(len(sizes), np.int64), 0
    for _ in range(60):
        rows = BATCHINGS[name].take(blocks, waited, last)
        assert len(set(blocks[rows].tolist())) == 1
        last = int(blocks[rows[0]])
        waited += 1
        waited[rows] = 0
        assert waited.max() <= MAX_WAIT + len(blocks)
        # whoever ran plans anew
        blocks[rows] = rng.choice([1, 4, 8, 16, 32], len(rows))


def test_waits_are_those_behind_the_other_bucket() -> None:
    trace = constant_trace(1, num_requests=2, output_tokens=9)
    rounds = rounds_of(trace)
    costs = linear_costs(1.0, 0.0, 0.0)
    plan = lambda seen: np.where(seen.request == 0, 4, 8)  # noqa: E731
    figures = metrics_of(replay(rounds, costs, plan, concurrency=2, order=range(2)), rounds)
    # the first bucket starts at once, then each waits for the two forwards of the other
    assert figures["mean_wait_ms_4"] == pytest.approx(2000 * 7 / 8)
    assert figures["mean_wait_ms_8"] == pytest.approx(2000.0)
    assert figures["mean_wait_ms_16"] is None


def test_an_unknown_batching_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="batching: found 'best', allowed: pad, bucket, bucket:fullest"):
        batching_named("best")
