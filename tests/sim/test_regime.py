from dataclasses import replace

import numpy as np
from strategies import random_trace

from recguide.sim.adaptive import LowLoad, adaptive
from recguide.sim.costs import constant_costs, linear_costs
from recguide.sim.fitting import fit_in_sample
from recguide.sim.metrics import metrics_of
from recguide.sim.overlap import Outcome, Overlap
from recguide.sim.regime import Regime, low_load_rules, switch_of, switch_point
from recguide.sim.replay import replay
from recguide.sim.rounds import rounds_of

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
TRACE = random_trace(5, 12, min_output_tokens=40)
ROUNDS = rounds_of(TRACE, Overlap().keys)
FITTED = fit_in_sample(TRACE, COSTS, concurrencies=(1, 8))
ABOVE = adaptive(FITTED)


def test_the_switch_lies_where_rows_stop_being_cheaper_than_a_draft() -> None:
    assert switch_point(constant_costs(draft=1.0, verify=1.0, rows=1.0), 16) == 128
    assert switch_point(constant_costs(draft=1.0, verify=1.0, rows=2.0), 16) == 0
    # 1.4 (a + 64 n b) = 2 (a + 16 n b) where n = 0.6 a / (57.6 b)
    assert switch_point(linear_costs(1.0, 0.6 / 57.6 / 5.5, 0.0), 16) == 5


def test_what_the_file_found_for_few_requests_counts_and_otherwise_the_profile() -> None:
    known = replace(FITTED, low_load=LowLoad(8, 0.25, 77))
    assert low_load_rules(known) == Overlap(8, 0.25)
    assert switch_of(known, COSTS, 8) == 77
    assert switch_of(known, COSTS, 16) == switch_of(FITTED, COSTS, 16) == switch_point(COSTS, 16)
    assert low_load_rules(FITTED) == Overlap()


def test_below_the_switch_it_is_overlap_and_above_it_adaptive() -> None:
    low = replay(ROUNDS, COSTS, Regime(Overlap(), ABOVE, 12), concurrency=3, order=range(12))
    alone = replay(ROUNDS, COSTS, Overlap(), concurrency=3, order=range(12))
    assert np.array_equal(low.finished_s, alone.finished_s)
    high = replay(ROUNDS, COSTS, Regime(Overlap(), ABOVE, 0), concurrency=3, order=range(12))
    plain = replay(ROUNDS, COSTS, ABOVE, concurrency=3, order=range(12))
    assert np.array_equal(high.finished_s, plain.finished_s)
    assert metrics_of(high, ROUNDS)["cut_rounds"] == metrics_of(plain, ROUNDS)["cut_rounds"]
    assert metrics_of(high, ROUNDS)["tpf"] == metrics_of(plain, ROUNDS)["tpf"]


def test_it_switches_as_the_load_changes() -> None:
    run = replay(ROUNDS, COSTS, Regime(Overlap(), ABOVE, 2), concurrency=4, order=range(12))
    assert run.emission_outcome is not None
    overlapped = run.emission_outcome & Outcome.PREPARED.value != 0
    running = np.bincount(run.emission_step, minlength=len(run.steps["seconds"]))
    assert overlapped.any()
    assert (running[run.emission_step[overlapped]] <= 2).all()
    emitted = np.bincount(run.emission_request, run.emission_tokens)
    assert emitted.tolist() == [TRACE.requests[row].output_tokens for row in run.request]


def test_a_tight_context_is_survived() -> None:
    tight = replace(TRACE, provenance=replace(TRACE.provenance, max_context=120))
    rounds = rounds_of(tight, Overlap().keys)
    run = replay(rounds, COSTS, Regime(Overlap(), ABOVE, 2), concurrency=4, order=range(12))
    emitted = np.bincount(run.emission_request, run.emission_tokens)
    assert emitted.tolist() == [TRACE.requests[row].output_tokens for row in run.request]
