"""The simulator against the serving engine on this machine's CPU.

Steps are deterministic, so all repeats of a run take the same ones. The clock is the thread's own CPU time, which
stands still while others run; of each step the cheapest of all repeats counts, and repeats are interleaved. Costs are
fitted on the even steps of a policy's runs, and the odd ones are compared.
"""

import time

import numpy as np
import pytest
import torch
from campaigns import about
from engines import GRID, POLICIES
from tiny import recorded, tiny_model

from recguide.engine.campaign import Server, closed_loop, engine_config
from recguide.engine.station import Station
from recguide.sim.measurement import Measurement
from recguide.sim.metrics import metrics_of
from recguide.sim.replay import replay
from recguide.sim.rounds import rounds_of
from recguide.validation.agreement import agreement
from recguide.validation.pricing import retimed
from recguide.validation.stepcosts import costs_of_steps

SERVED = ("ar", "fixed:8", "certain", "overlap-3")
LEVELS = (1, 3)
REPEATS = 5
PROMPTS = [[4, 5, 6], [8, 10, 9, 4], [5, 1, 5, 1, 9], [9], [6, 6, 8, 1, 4, 4, 10, 9, 5], [10, 4], [1, 6, 8, 8]]
ORDER = range(len(PROMPTS))
OUTPUT_TOKENS = 20
KEYS = [(view, size) for view in ("seeded", "continuation") for size in GRID]
WITHIN = 0.10
COUNTS = ("forwards", "prefill_forwards", "decode_forwards", "draft_forwards", "verify_forwards", "num_rounds",
          "accept_length", "query_tokens", "block_share_1", "block_share_2", "block_share_4", "block_share_8",
          "correction_reuse", "continuation_reuse", "no_hit")  # fmt: skip


@pytest.fixture(scope="module")
def trace():
    return recorded(tiny_model(2, 0), PROMPTS, GRID, OUTPUT_TOKENS)


@pytest.fixture(scope="module")
def served(trace):
    """By policy and concurrency, the served run with the cheapest of each step."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    prompts = {f"p/{i}": ids for i, ids in enumerate(PROMPTS)}
    config = engine_config(trace.provenance, max(LEVELS), "bucket", 2048, None)
    station = Station(tiny_model(2, 0).decoder, [POLICIES[name] for name in SERVED], config, time.thread_time)
    server = Server(station, trace, prompts)
    keys = [(name, level) for level in LEVELS for name in SERVED]
    found = {key: [] for key in keys}
    for _ in range(REPEATS):
        for name, level in keys:
            found[name, level].append(closed_loop(server, POLICIES[name], ORDER, level))
    torch.set_num_threads(threads)
    return {key: cheapest(runs, trace, *key) for key, runs in found.items()}


def cheapest(found, trace, name, level) -> Measurement:
    first = found[0].run
    for each in found[1:]:
        assert agreement(each.run, first).same_steps
    seconds = np.min([each.run.steps["seconds"] for each in found], axis=0)
    # forwards have a clock of their own, so the host's time is left in them, and the draft has its share
    share = np.median([np.array(each.draft_s) / np.array(each.forward_s) for each in found], axis=0)
    ids = tuple(trace.requests[row].request_id for row in first.request.tolist())
    return Measurement(about(trace, name, level, ids), retimed(first, seconds), seconds * share, seconds)


def foretold(trace, served, name, level):
    rounds = rounds_of(trace, KEYS)
    costs = costs_of_steps([served[name, each] for each in LEVELS])
    return replay(rounds, costs, POLICIES[name], concurrency=level, order=ORDER), rounds


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("level", LEVELS)
def test_forwards_rounds_and_blocks_are_exact(trace, served, name, level) -> None:
    run, rounds = foretold(trace, served, name, level)
    found = agreement(run, served[name, level].run)
    assert (found.decisions, found.outcomes, found.same_steps) == (1, 1, True)
    ours, theirs = metrics_of(run, rounds), metrics_of(served[name, level].run, rounds)
    assert {count: ours[count] for count in COUNTS} == {count: theirs[count] for count in COUNTS}


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("level", LEVELS)
def test_the_time_of_the_odd_steps_is_foretold_within_a_tenth(trace, served, name, level) -> None:
    run, _ = foretold(trace, served, name, level)
    error = odd_error(run, served[name, level].run)
    assert abs(error) <= WITHIN


def odd_error(run, measured) -> float:
    ours, theirs = (float(each.steps["seconds"][1::2].sum()) for each in (run, measured))
    return ours / theirs - 1


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("level", LEVELS)
def test_throughput_and_tpot_are_foretold_within_a_tenth(trace, served, name, level) -> None:
    run, rounds = foretold(trace, served, name, level)
    ours, theirs = metrics_of(run, rounds), metrics_of(served[name, level].run, rounds)
    for figure in ("output_throughput", "output_throughput_per_request", "mean_tpot_ms"):
        assert abs(ours[figure] / theirs[figure] - 1) <= WITHIN, figure


def test_the_check_can_fail(trace, served) -> None:
    """Odd steps that took a quarter longer than the even ones say are missed."""
    measured = served["fixed:8", 3].run
    seconds = measured.steps["seconds"].copy()
    seconds[1::2] *= 1.25
    run, _ = foretold(trace, served, "fixed:8", 3)
    assert abs(odd_error(run, retimed(measured, seconds))) > WITHIN
