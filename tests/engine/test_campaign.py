"""Measured runs of the serving engine, as the simulator and its files see them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from engines import GRID, POLICIES
from loads import COSTS
from strategies import random_trace
from tiny import recorded, tiny_model

from recguide.engine.campaign import Server, closed_loop
from recguide.engine.measure_command import parse_anchor, whole_numbers
from recguide.engine.measure_run import pending, prompts_of
from recguide.sim.campaigns import PointKey
from recguide.sim.measurement import name_of
from recguide.sim.replay import replay
from recguide.sim.rounds import rounds_of
from recguide.traces.errors import InputError

PROMPTS = [[4, 5, 6], [8, 10, 9, 4], [5, 1, 5, 1], [9], [6, 6, 8, 1, 4, 4], [10, 4]]
KEYS = [(view, size) for view in ("seeded", "continuation") for size in GRID]
SHAPES = ("in_flight", "block_size", "requests", "query_tokens", "context_tokens", "draft_tokens")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def prompts_of_ids(trace):
    return {f"p/{i}": ids for i, ids in enumerate(PROMPTS)}


@pytest.mark.parametrize("policy", ["ar", "fixed:8", "certain", "overlap", "tidar"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_measured_loop_takes_the_steps_of_a_simulated_one(policy, concurrency) -> None:
    model = tiny_model(2, 0)
    trace = recorded(model, PROMPTS, GRID, 24)
    order = [3, 0, 5, 1, 2, 4, 0, 3]
    server = Server(model.decoder, trace, prompts_of_ids(trace))
    found = closed_loop(server, lambda: POLICIES[policy], order, concurrency, None)
    wanted = replay(rounds_of(trace, KEYS), COSTS, POLICIES[policy], concurrency=concurrency, order=order)
    for name in SHAPES:
        assert found.run.steps[name].tolist() == wanted.steps[name].tolist(), name
    for name in ("emission_request", "emission_tokens", "emission_step", "emission_block_size"):
        assert np.array_equal(getattr(found.run, name), getattr(wanted, name)), name
    assert found.run.request.tolist() == order
    assert found.run.sent_s[0] < 0.05
    assert (found.draft_s <= found.forward_s).all()
    assert (found.forward_s <= found.run.steps["seconds"]).all()
    assert found.served is not None
    assert [request.output_tokens for request in found.served.trace(trace.provenance).requests] == [
        trace.requests[row].output_tokens for row in order
    ]


def test_a_forced_run_ends_as_recorded_whatever_the_weights() -> None:
    trace = random_trace(5, 6, GRID, max_output_tokens=40, ease=0.9, max_context=448)
    model = tiny_model(1, 0)
    model.decoder.config = replace(model.config, max_context=448)
    found = closed_loop(Server(model.decoder, trace, None), lambda: POLICIES["fixed:8"], range(6), 3, None)
    assert found.run.output_tokens.tolist() == [request.output_tokens for request in trace.requests]
    assert found.served is None


def test_after_the_steady_time_nothing_more_is_sent_and_those_that_were_are_finished() -> None:
    model = tiny_model(2, 0)
    trace = recorded(model, PROMPTS, GRID, 24)
    server = Server(model.decoder, trace, prompts_of_ids(trace))
    found = closed_loop(server, lambda: POLICIES["ar"], list(range(6)) * 4, 2, 1e-9)
    assert 2 <= len(found.run.request) < 24
    assert np.isfinite(found.run.finished_s).all()


def test_passes_interleave_and_every_second_one_goes_backwards(tmp_path) -> None:
    keys = [PointKey("ar", "all", 1), PointKey("fixed:8", "all", 1)]
    tasks = [(task.key.policy, task.repeat) for task in pending(tmp_path, keys, 3)]
    assert tasks == [("ar", 1), ("fixed:8", 1), ("fixed:8", 2), ("ar", 2), ("ar", 3), ("fixed:8", 3)]
    (tmp_path / name_of("fixed:8", "all", 1, 2)).touch()
    assert [(task.key.policy, task.repeat) for task in pending(tmp_path, keys, 2)] == [
        ("ar", 1),
        ("fixed:8", 1),
        ("ar", 2),
    ]


def test_prompts_come_out_of_the_trace_or_their_lack_is_told() -> None:
    model = tiny_model(2, 0)
    trace = recorded(model, PROMPTS, GRID, 8)
    assert [list(ids) for ids in prompts_of(trace, model, ()).values()] == PROMPTS
    without = replace(trace, requests=tuple(replace(request, prompt_ids=None) for request in trace.requests))
    with pytest.raises(
        InputError, match=r"request 'p/0': no prompt; allowed: traces with token ids, or --dataset-path"
    ):
        prompts_of(without, model, ())


def test_anchors_and_concurrencies_are_read() -> None:
    assert parse_anchor("overlap:B=8@4") == ("overlap:B=8", "all", 4)
    assert whole_numbers("1, 8,64") == (1, 8, 64)
    for text in ("fixed:16", "@4", "ar@0", "ar@x"):
        with pytest.raises(InputError, match="--anchor: found"):
            parse_anchor(text)
    for text in ("", "0", "1,1", "a"):
        with pytest.raises(InputError, match="--max-concurrency: found"):
            whole_numbers(text)
