"""Measured runs of the serving engine, as the simulator and its files see them."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from engines import GRID, POLICIES
from loads import COSTS
from strategies import random_trace
from tiny import recorded, tiny_model

from recguide.engine.campaign import Server, Stop, closed_loop, engine_config, staggered
from recguide.engine.inputs import Shape
from recguide.engine.measure_command import grid_of, parse_anchor, parse_point, whole_numbers
from recguide.engine.measure_run import named_by, pending, prompts_of
from recguide.engine.station import Aside, Rehearsal, Station, StoppableClock
from recguide.sim.arrivals import Clients, as_recorded
from recguide.sim.campaigns import PointKey
from recguide.sim.measurement import name_of
from recguide.sim.replay import replay, serve
from recguide.sim.rounds import rounds_of
from recguide.sim.stopped import first_steps
from recguide.traces.errors import InputError
from recguide.validation.agreement import same_steps

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


def station(model, trace, most_running=4):
    config = engine_config(trace.provenance, most_running, "bucket", 2048, None)
    return Station(model.decoder, list(POLICIES.values()), config, time.perf_counter)


def server(model, trace):
    return Server(station(model, trace), trace, prompts_of_ids(trace))


@pytest.mark.parametrize("policy", ["ar", "fixed:8", "certain", "overlap", "tidar"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_measured_loop_takes_the_steps_of_a_simulated_one(policy, concurrency) -> None:
    model = tiny_model(2, 0)
    trace = recorded(model, PROMPTS, GRID, 24)
    order = [3, 0, 5, 1, 2, 4, 0, 3]
    found = closed_loop(server(model, trace), POLICIES[policy], order, concurrency)
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
    found = closed_loop(Server(station(model, trace), trace, None), POLICIES["fixed:8"], range(6), 3)
    assert found.run.output_tokens.tolist() == [request.output_tokens for request in trace.requests]
    assert found.served is None


@pytest.mark.parametrize("policy", ["ar", "fixed:8", "certain", "overlap", "tidar"])
def test_a_stopped_run_is_the_beginning_of_a_whole_one_and_is_simulated_as_that(policy) -> None:
    model = tiny_model(2, 0)
    trace = recorded(model, PROMPTS, GRID, 24)
    order = [3, 0, 5, 1, 2, 4, 0, 3]
    mine, limits = server(model, trace), staggered(np.array([24] * len(order)), 3, 24, 0).tolist()
    first = closed_loop(mine, POLICIES[policy], order, 3, limits, Stop(steady_s=0.0))
    one = closed_loop(mine, POLICIES[policy], order, 3, limits, Stop(whole_s=0.0))
    assert (one.stopped, len(one.run.steps["seconds"])) == (True, 1)
    steps = len(first.run.steps["seconds"]) + 4
    found = closed_loop(mine, POLICIES[policy], order, 3, limits, Stop(steps=steps))
    whole = closed_loop(mine, POLICIES[policy], order, 3, limits)
    assert (first.stopped, found.stopped, whole.stopped) == (True, True, False)
    assert len(found.run.steps["seconds"]) == steps
    assert same_steps(found.run, first_steps(whole.run, steps))
    assert found.run.output_tokens.tolist() == first_steps(whole.run, steps).output_tokens.tolist()
    clients = Clients(
        (each._replace(output_tokens=min(each.output_tokens, limit))
         for each, limit in zip(as_recorded(rounds_of(trace, KEYS), order), limits, strict=True)), 3)  # fmt: skip
    wanted = serve(rounds_of(trace, KEYS), COSTS, POLICIES[policy], clients, resized=True, closed=True)
    assert same_steps(found.run, first_steps(wanted, steps))
    assert found.served is not None
    outputs = [request.output_tokens for request in found.served.trace(trace.provenance).requests]
    assert outputs == found.run.output_tokens.tolist()


def test_the_first_requests_end_one_after_the_other() -> None:
    limits = staggered(np.array([40, 80, 120, 160, 99, 98]), 4, 500, 0)
    assert sorted((limits[:4] / [40, 80, 120, 160]).tolist()) == [0.25, 0.5, 0.75, 1.0]
    assert limits[4:].tolist() == [500, 500]
    assert staggered(np.array([40]), 1, 500, 0).tolist() == [40]


def test_the_clock_stands_still_while_a_judge_works() -> None:
    now = [0.0]
    clock = StoppableClock(lambda: now[0])

    class Slow:
        def verified(self, *what):
            now[0] += 5.0
            return what

    now[0] = 2.0
    assert Aside(Slow(), clock).verified(1, 2, 3, 4) == (1, 2, 3, 4)
    assert clock() == 2.0
    now[0] += 1.0
    assert clock() == 3.0


def test_a_step_is_run_until_nothing_of_it_happens_for_the_first_time_and_only_that_takes_time() -> None:
    now, ran, forgotten = [0.0], [], []

    class Forwards:
        firsts = 0

        def spent(self):
            forgotten.append("forwards")

    forwards = Forwards()

    def step():
        now[0] += 10.0
        # a draft and a verify are captured, then the results move
        forwards.firsts += (2, 0, 0)[len(ran)] if len(ran) != 1 else 1
        ran.append(now[0])
        return ["changes", len(ran)]

    clock = StoppableClock(lambda: now[0])
    changes = Rehearsal(forwards, clock).run(step, lambda: forgotten.append("draft"))
    assert changes == ["changes", 3]
    assert forgotten == ["draft", "forwards"] * 2
    assert clock() == 10.0


def test_the_first_launch_of_every_graph_is_one_of_those_that_do_not_count() -> None:
    class Graph:
        def replay(self):
            replayed.append(self)

    replayed, model = [], tiny_model(2, 0)
    forwards = station(model, recorded(model, PROMPTS, GRID, 8)).forwards
    inputs = forwards.inputs(Shape(1, 4, 4, 4, "all", False, False))
    for graph in (Graph(), Graph()):
        # a graph that was made anew is another one
        inputs.graph, before = graph, forwards.firsts
        for _ in range(3):
            forwards._launch(inputs, True)
        assert forwards.firsts == before + 1
    assert len(replayed) == 6


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


def test_prompts_are_asked_for_of_the_datasets_that_points_name() -> None:
    trace = random_trace(7, 8, (4,), max_output_tokens=4)
    names = {request.dataset for request in trace.requests}
    one = min(names)
    assert len(names) > 1
    assert {request.dataset for request in named_by([("ar", one, 1)], trace).requests} == {one}
    assert named_by([("ar", one, 1), ("ar", "all", 2)], trace) is trace


def test_anchors_and_concurrencies_are_read() -> None:
    assert parse_anchor("overlap:B=8@4") == ("overlap:B=8", "all", 4)
    assert whole_numbers("1, 8,64") == (1, 8, 64)
    assert parse_point("overlap:B=8@4") == ("overlap:B=8", "all", 4)
    assert parse_point("ar@4@gsm8k") == ("ar", "gsm8k", 4)
    assert grid_of(["ar", "overlap@1", "ar"], (1, 2), ["all"]) == (
        ("ar", "all", 1), ("overlap", "all", 1), ("ar", "all", 2),
    )  # fmt: skip
    with pytest.raises(InputError, match=r"--policy ar: concurrency: found \[4\]"):
        grid_of(["ar@4"], (1, 2), ["all"])
    with pytest.raises(InputError, match="--more: found 'ar'"):
        parse_point("ar")
    for text in ("fixed:16", "@4", "ar@0", "ar@x"):
        with pytest.raises(InputError, match="--anchor: found"):
            parse_anchor(text)
    for text in ("", "0", "1,1", "a"):
        with pytest.raises(InputError, match="--max-concurrency: found"):
            whole_numbers(text)
