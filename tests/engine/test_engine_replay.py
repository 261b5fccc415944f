"""The engine's runs against the simulator: from recorded traces, from the engine's own log, and forced from a trace."""

from dataclasses import replace

import numpy as np
import pytest
from engines import (
    DRAFT_KEYS,
    GRID,
    ONE_FORWARD,
    POLICIES,
    Load,
    assert_same_run,
    engine_of,
    loads,
    prompts,
    replayed,
    serve,
    served_trace,
    steps_of,
    trace_of,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import random_trace
from tiny import TINY, tiny_model

from recguide.engine.forced import Forced
from recguide.engine.requests import Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.sim.arrivals import Clients, as_recorded
from recguide.sim.batching import BATCHINGS
from recguide.sim.measured import replay_measured
from recguide.sim.memory import Limits
from recguide.sim.rounds import rounds_of
from recguide.traces.checks import check_trace
from recguide.traces.sparse import check_sparse, expanded

pytestmark = pytest.mark.usefixtures("one_thread")


@settings(max_examples=20)
@given(seed=st.integers(0, 50), shift=st.integers(0, 1), asked=prompts, load=loads())
def test_the_simulator_replays_the_engine_step_by_step_from_a_recorded_trace(seed, shift, asked, load) -> None:
    model = tiny_model(seed, shift)
    engine = engine_of(model, load)
    serve(engine, asked, load)
    assert_same_run(engine.replay(), replayed(trace_of(model, asked, load), engine, load))


# a continuation branch is hit by a request that then gives way for pages
LOST = Load("overlap-3", "bucket", Limits(8, 5, 3, 4, 16), 24, 64, 3, False)


@example(seed=35, shift=0, asked=[[0, 0, 0, 4], [0, 0, 0, 0, 0, 0], [11]], load=LOST)
@settings(max_examples=20)
@given(seed=st.integers(0, 50), shift=st.integers(0, 1), asked=prompts, load=loads())
def test_the_simulator_replays_the_engine_from_what_the_engine_logged(seed, shift, asked, load) -> None:
    model = tiny_model(seed, shift)
    engine = engine_of(model, load)
    _, run = serve(engine, asked, load)
    trace = served_trace(model, run, load)
    check_trace(trace)
    assert_same_run(engine.replay(), replayed(trace, engine, load))


@settings(max_examples=5)
@given(seed=st.integers(0, 50), asked=prompts, load=loads(("fixed:4", "fixed:8", "window")))
def test_acceptance_lengths_alone_replay_policies_that_look_at_nothing_else(seed, asked, load) -> None:
    model = tiny_model(seed, 0)
    engine = engine_of(model, load)
    _, run = serve(engine, asked, load)
    sparse = run.sparse(TINY.name, 8, "a run")
    check_sparse(sparse)
    wanted = engine.replay()
    if load.limits.kv_pages is None and load.max_context == 96:
        found = replayed(expanded(sparse), engine, load)
        assert found.emission_tokens.tolist() == wanted.emission_tokens.tolist()
        assert found.emission_block_size.tolist() == wanted.emission_block_size.tolist()


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    ease=st.floats(0.2, 1.0),
    policy=st.sampled_from(sorted(POLICIES)),
    batching=st.sampled_from(["bucket", "pad", "ragged"]),
    with_ids=st.booleans(),
    kv_pages=st.sampled_from([None, 30]),
)
def test_forced_acceptance_is_the_traces_whatever_the_weights(seed, ease, policy, batching, with_ids, kv_pages) -> None:
    limits = Limits(max_running=3, page_size=16, kv_pages=kv_pages)
    trace = random_trace(
        seed, 5, GRID, max_output_tokens=25, ease=ease, with_ids=with_ids, max_context=448, model="recorded"
    )
    model = tiny_model(seed % 7, 0)
    model.decoder.config = replace(model.config, max_context=448)
    judge = Forced(trace, model.config)
    config = EngineConfig(GRID, limits, batching=BATCHINGS[batching])
    engine = Engine(model.decoder, POLICIES[policy], config, judge)
    lives = [judge.send(engine, row, 0.0) for row in range(len(trace.requests))]
    while engine.in_flight:
        engine.step()
        engine.check()
    assert [len(live.tokens) for live in lives] == [request.output_tokens for request in trace.requests]
    rounds = rounds_of(trace, DRAFT_KEYS)
    clients = Clients(as_recorded(rounds, range(len(lives))), None)
    seconds = [step.seconds for step in steps_of(engine)]
    wanted = replay_measured(
        rounds, POLICIES[policy], clients, seconds, engine.log.draft_s, batching=BATCHINGS[batching], limits=limits
    )
    assert_same_run(engine.replay(), wanted)
    assert judge.label == "acceptance forced from a trace of recorded"


def test_every_policy_of_one_forward_reuses_drafts_in_these_tests() -> None:
    """A check of the checks: the models and prompts above do hit branches of every kind."""
    seen = 0
    for name in ONE_FORWARD[:3]:
        for seed in range(6):
            model = tiny_model(seed, 0)
            engine = Engine(model.decoder, POLICIES[name], EngineConfig(GRID))
            for prompt in ([4, 5, 6], [8, 9], [10]):
                engine.add(prompt, Wish(30))
            engine.drain()
            seen |= int(np.bitwise_or.reduce(engine.replay().emission_outcome))
    assert seen & 127 == 127
