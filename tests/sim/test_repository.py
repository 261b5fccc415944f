import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.costs import linear_costs
from recguide.sim.paper import dynamics_fit
from recguide.sim.paper.acceptance import host_more_ms, paper_trace, parameters_of, synthetic_trace, unadapted
from recguide.sim.paper.b200 import DFLASH_LAYERS, Host, host_ms, lean_host_ms, profile_of
from recguide.sim.paper.calibration import accept_len, adapter_of, sure_ratio
from recguide.sim.paper.dynamics_fit import misses, refitted
from recguide.sim.paper.host import fixed_blocks
from recguide.sim.paper.published import (
    ADAPTER_ROUNDS,
    BENCHMARKS,
    EXPLORED,
    MODELS,
    OVERALL_SPEEDUP,
    OVERALL_TAU,
    SERVED_ACCEPTANCE,
    TABLE5,
    TABLE6,
)
from recguide.sim.paper.repository import correlations, explored, lens_of, roc_area, statistics
from recguide.sim.paper.subjects import Subject, only
from recguide.sim.paper.targets import repository
from recguide.sim.rounds import rounds_of
from recguide.traces.dense import matched_lens

COSTS = linear_costs(1e-3, 2e-5, 1e-7)


@pytest.fixture(scope="module")
def subject() -> Subject:
    served, fitted = (synthetic_trace("8b", parameters_of("8b"), 4, seed) for seed in (0, 1))
    return Subject("8b", "8b", served, fitted, COSTS, COSTS)


def test_every_published_statistic_is_counted(subject: Subject) -> None:
    found = statistics(subject)
    assert set(repository("8b")) | set(repository("14b")) <= set(found)
    assert all(math.isfinite(value) for value in found.values())


@given(
    score=st.lists(st.integers(0, 5), min_size=4, max_size=20),
    seed=st.integers(0, 99),
)
def test_the_area_is_the_chance_to_rank_a_pair_rightly(score: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    positive = rng.random(len(score)) < 0.5
    positive[:2] = True, False
    weight = rng.random(len(score)) + 0.1
    pairs = [(i, j) for i in range(len(score)) for j in range(len(score)) if positive[i] and not positive[j]]
    right = sum(weight[i] * weight[j] * ((score[i] > score[j]) + (score[i] == score[j]) / 2) for i, j in pairs)
    share = right / sum(weight[i] * weight[j] for i, j in pairs)
    assert roc_area(np.array(score, np.float64), positive, weight) == pytest.approx(share)


def test_equal_prefixes_are_those_of_rounds_at_16_away_from_the_end() -> None:
    trace = random_trace(3, 4, min_output_tokens=60, max_output_tokens=90)
    wanted: dict[int, list[int]] = {4: [], 8: [], 16: [], 32: []}
    for request in trace.requests:
        at, match = 1, {size: matched_lens(request.drafts["seeded", size].match) + 1 for size in wanted}
        while at < request.output_tokens:
            for size, lens in wanted.items():
                if request.output_tokens - at >= 32:
                    lens.append(int(match[size][at]))
            at += int(match[16][at])
    assert {size: lens.tolist() for size, lens in lens_of(trace).items()} == wanted


@pytest.mark.parametrize("past", [1, 2, 4])
def test_correlations_are_those_of_rounds_that_follow_each_other(past: int) -> None:
    trace = random_trace(4, 6, min_output_tokens=80, max_output_tokens=160)
    pairs: list[tuple[float, int]] = []
    for request in trace.requests:
        match = {size: matched_lens(request.drafts["seeded", size].match) + 1 for size in (16, 32)}
        at, lens = 1, list[int]()
        while at < request.output_tokens:
            if len(lens) >= past and request.output_tokens - at >= 32:
                pairs.append((float(np.mean(lens[-past:])), int(match[32][at])))
            lens.append(int(match[16][at]))
            at += lens[-1]
    assert correlations(trace, past)[32] == pytest.approx(np.corrcoef(np.array(pairs).T)[0, 1])


def test_second_candidates_of_sure_tokens_are_right_as_often_as_published() -> None:
    ratio = sure_ratio("8b", parameters_of("8b"), requests=64)
    for confidence in parameters_of("8b").confidence.values():
        assert confidence.second_sure == pytest.approx(ratio * confidence.second, abs=0.02)


def test_history_is_explored_at_all_block_sizes(subject: Subject) -> None:
    rounds, steps, value = explored(subject, ["gsm8k"])
    assert set(steps.chosen.tolist()) == set(EXPLORED)
    assert (steps.last > 0).all()
    assert all(((values >= 1) & (values <= size)).all() for size, values in value.items())
    assert (rounds.emitted[16][steps.at] >= 1).all()


@pytest.mark.parametrize("model", MODELS)
def test_without_the_adapter_drafts_take_the_published_rounds_more(model: str) -> None:
    known = parameters_of(model)
    lens = [
        accept_len(synthetic_trace(model, made, only="gsm8k", grid=(16,)), 16) for made in (known, unadapted(known))
    ]
    assert lens[0] / lens[1] == pytest.approx(ADAPTER_ROUNDS[1] / ADAPTER_ROUNDS[0], rel=0.01)
    found = adapter_of(model, replace(known, adapter=0.2), requests=12)
    assert found == pytest.approx(known.adapter, abs=0.25)


@pytest.mark.parametrize("model", MODELS)
def test_fixed_blocks_are_as_fast_as_the_host_was_inferred_from(model: str) -> None:
    trace = synthetic_trace(model, parameters_of(model))
    traces = {name: only(trace, [name]) for name in BENCHMARKS}
    rounds = {name: rounds_of(part) for name, part in traces.items()}
    found = fixed_blocks(profile_of(model).costs(), traces, rounds)
    assert found == pytest.approx(TABLE6["Fixed Block"][model], rel=0.01)
    assert host_ms(model).more == host_more_ms(model)


@pytest.mark.parametrize("model", MODELS)
def test_a_lean_host_is_what_dflash_leaves(model: str) -> None:
    host = lean_host_ms(model)
    assert 0.5 < host.one < 0.3 * host_ms(model).one
    costs = profile_of(model, host).costs()
    round_s = costs.round_curve(16, 1)(500) - (1 - DFLASH_LAYERS[model]) * costs.forward_s("verify", 1, 16, 500)
    ar_rate = TABLE5["LinearSS"][model] / OVERALL_SPEEDUP[model]["LinearSS"]
    assert OVERALL_TAU[model]["DFlash"] / round_s / ar_rate == pytest.approx(OVERALL_SPEEDUP[model]["DFlash"], rel=1e-3)
    assert isinstance(host, Host)


def test_lengths_at_one_block_size_are_near_what_was_served(subject: Subject) -> None:
    found = statistics(replace(subject, trace=paper_trace("8b"), _kept={}))
    for size, lens in SERVED_ACCEPTANCE["8b"].items():
        assert found[f"served acceptance, B = {size}, overall"] == pytest.approx(lens, rel=0.1)


def test_the_shipped_dynamics_are_as_near_as_they_come(subject: Subject) -> None:
    assert np.abs(misses(parameters_of("8b"), subject, 64)).max() < 6


def test_a_turn_of_the_fit_never_goes_astray(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamics_fit, "TURNS", 1)
    known = parameters_of("8b")
    off = replace(known, dynamics=replace(known.dynamics, own=0.2))
    found = refitted(off, subject, requests=2)
    before, after = (misses(made, subject, 2) for made in (off, found))
    assert after @ after <= before @ before
    assert found.dynamics.shared == known.dynamics.shared
