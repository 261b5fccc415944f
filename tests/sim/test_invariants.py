"""The numbered invariants of docs/invariants.md over random traces, policies, loads, batching modes and limits."""

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import COSTS, FIXED, POLICIES, Setup, setups
from numpy.typing import NDArray
from strategies import constant_trace, random_trace

from recguide.sim.arrivals import Arrival, Clients, as_recorded, random_times
from recguide.sim.catalogue import rounds_for
from recguide.sim.costs import constant_costs, linear_costs
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.memory import Limits
from recguide.sim.policies import ar, fixed
from recguide.sim.replay import replay, serve
from recguide.sim.rounds import rounds_of

few = settings(max_examples=60)


def ends_of(run: Replay) -> NDArray[np.float64]:
    ends: NDArray[np.float64] = run.steps["start_s"] + run.steps["seconds"]
    return ends


def same(one: Replay, other: Replay) -> bool:
    names = [field.name for field in fields(Replay) if field.name not in ("steps", "concurrency")]
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    pairs += [(one.steps[name], other.steps[name]) for name in one.steps]
    return all(np.array_equal(mine, theirs) for mine, theirs in pairs)


@few
@given(setups())
def test_every_request_is_sent_started_and_finished_once(setup: Setup) -> None:
    run = setup.run()
    assert run.request.tolist() == [arrival.row for arrival in setup.arrivals]
    for times in (run.sent_s, run.started_s, run.first_token_s, run.finished_s):
        assert np.isfinite(times).all()
    last = np.zeros(len(run.request))
    np.maximum.at(last, run.emission_request, ends_of(run)[run.emission_step])
    assert (last == run.finished_s).all()


@few
@given(setups())
def test_tokens_are_neither_lost_nor_made(setup: Setup) -> None:
    run = setup.run()
    assert (run.emission_tokens >= 1).all()
    emitted = np.bincount(run.emission_request, run.emission_tokens)
    assert emitted.tolist() == [arrival.output_tokens for arrival in setup.arrivals]
    # every prefill emits one token: the first one, and one more for each recomputation
    prefilled = np.bincount(run.emission_request[run.emission_block_size == PREFILL_STEP])
    assert (prefilled >= 1).all()
    assert prefilled.sum() - len(run.request) <= run.preemptions
    assert run.steps["query_tokens"][run.steps["block_size"] == PREFILL_STEP].sum() == (
        run.prompt_tokens.sum() + run.recomputed_tokens
    )


@few
@given(setups())
def test_no_step_uses_more_pages_than_there_are_and_each_has_those_of_its_blocks(setup: Setup) -> None:
    run, limits = setup.run(), setup.limits
    if limits.kv_pages is None:
        assert run.kv_pages is None
        assert run.preemptions == 0
        return
    assert run.kv_pages is not None
    assert len(run.kv_pages) == len(run.steps["start_s"])
    assert run.kv_pages.max() <= limits.kv_pages
    before = np.zeros(len(run.request), np.int64)
    for step, block_size in enumerate(run.steps["block_size"].tolist()):
        here = run.emission_step == step
        ids = run.emission_request[here]
        if block_size != PREFILL_STEP:
            tokens = run.prompt_tokens[ids] + before[ids] - 1 + run.emission_block_size[here]
            assert run.kv_pages[step] >= limits.pages_of(tokens)
        before[ids] += run.emission_tokens[here]


@few
@given(setups())
def test_nothing_happens_before_its_cause(setup: Setup) -> None:
    run = setup.run()
    assert (run.arrival_s <= run.sent_s).all()
    assert (run.sent_s <= run.started_s).all()
    assert (run.started_s < run.first_token_s).all()
    assert (run.first_token_s <= run.finished_s).all()
    starts = run.steps["start_s"][run.emission_step]
    assert (starts >= run.started_s[run.emission_request]).all()
    decoding = run.emission_block_size != PREFILL_STEP
    assert (starts >= run.first_token_s[run.emission_request])[decoding].all()


@few
@given(setups())
def test_the_clock_never_goes_back(setup: Setup) -> None:
    run = setup.run()
    assert (run.steps["seconds"] > 0).all()
    assert (run.steps["start_s"][1:] >= ends_of(run)[:-1]).all()
    assert (np.diff(run.sent_s) >= 0).all()


@few
@given(setups())
def test_the_gpu_idles_only_while_nothing_is_in_flight(setup: Setup) -> None:
    run = setup.run()
    starts, ends = np.append(run.steps["start_s"], np.inf), np.insert(ends_of(run), 0, 0.0)
    for end, start in zip(ends, starts, strict=True):
        if start > end:
            # the clock reaches an arrival by adding what is left until then, which rounds
            before = min(start, run.finished_s.max()) * (1 - 1e-12)
            assert not ((run.sent_s < before) & (run.finished_s > end)).any()


@few
@given(setups())
def test_no_more_are_in_flight_than_the_cap_and_none_waits_beside_a_free_place(setup: Setup) -> None:
    run = setup.run()
    cap = setup.cap or len(run.request)
    for row, (arrival, sent) in enumerate(zip(run.arrival_s, run.sent_s, strict=True)):
        in_flight = int((run.finished_s[:row] > sent).sum())
        assert in_flight < cap
        if sent > arrival:
            # the place came free at that moment
            assert sent in run.finished_s


@few
@given(setups())
def test_the_same_input_gives_the_same_run(setup: Setup) -> None:
    assert same(setup.run(), setup.run())


@few
@given(setups())
def test_requests_in_flight_are_arrivals_per_second_times_seconds_in_flight(setup: Setup) -> None:
    run = setup.run()
    times = np.concatenate([run.sent_s, run.finished_s])
    change = np.repeat([1, -1], len(run.request))
    order = np.argsort(times, kind="stable")
    in_flight = np.cumsum(change[order])[:-1]
    duration = run.finished_s.max() - run.sent_s.min()
    mean = (in_flight * np.diff(times[order])).sum() / duration
    arrivals_per_s, seconds = len(run.request) / duration, (run.finished_s - run.sent_s).mean()
    assert mean == pytest.approx(arrivals_per_s * seconds, rel=0.01)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_one_request_at_a_time_waits_as_long_as_in_an_m_d_1_queue(share: float) -> None:
    rounds = rounds_of(constant_trace(4, 1, output_tokens=1))
    service_s, count = 2.0, 20_000
    times = random_times(share / service_s, 1.0, seed=3)
    clients = Clients(as_recorded(rounds, [0] * count, times), None)
    run = serve(rounds, constant_costs(prefill=service_s), ar, clients, limits=Limits(max_batched_tokens=1))
    waited = (run.started_s - run.sent_s).mean()
    assert waited == pytest.approx(share * service_s / (2 * (1 - share)), rel=0.05)


@given(share=st.floats(0.1, 1.0))
def test_equal_gaps_that_are_no_shorter_than_the_service_make_nobody_wait(share: float) -> None:
    rounds = rounds_of(constant_trace(4, 1, output_tokens=1))
    clients = Clients(as_recorded(rounds, [0] * 50, random_times(share / 2.0, None, seed=0)), None)
    run = serve(rounds, constant_costs(prefill=2.0), ar, clients)
    assert run.started_s - run.sent_s == pytest.approx(0, abs=1e-9)


@few
@given(setups(policies=FIXED), st.randoms(use_true_random=False))
def test_the_order_of_recorded_requests_in_the_trace_does_not_matter(setup: Setup, random: object) -> None:
    trace = random_trace(setup.seed, len(setup.rounds.first), max_output_tokens=40, ease=0.8)
    order = np.random.default_rng(setup.seed + 1).permutation(len(trace.requests)).tolist()
    moved = replace(trace, requests=tuple(trace.requests[row] for row in order))
    arrivals = tuple(_moved(arrival, order) for arrival in setup.arrivals)
    rounds = rounds_for(moved, FIXED)
    one, other = setup.run(), setup.run(rounds=rounds, arrivals=arrivals)
    assert np.array_equal(one.finished_s, other.finished_s)
    assert np.array_equal(one.emission_tokens, other.emission_tokens)


def _moved(arrival: Arrival, order: list[int]) -> Arrival:
    then = tuple(order.index(row) for row in arrival.then)
    return arrival._replace(row=order.index(arrival.row), then=then)


@few
@given(setups(policies=FIXED, closed=True), st.floats(1.0, 3.0), st.floats(1.0, 3.0), st.floats(1.0, 3.0))
def test_dearer_forwards_finish_nothing_earlier(setup: Setup, base: float, query: float, context: float) -> None:
    dearer = linear_costs(1e-3 * base, 2e-5 * query, 1e-7 * context, host_s=1e-4)
    assert (setup.run(dearer).finished_s >= setup.run().finished_s - 1e-12).all()


@few
@given(setups())
def test_costs_and_gaps_twice_as_long_make_every_time_twice_as_long(setup: Setup) -> None:
    slower = linear_costs(2e-3, 4e-5, 2e-7, host_s=2e-4)
    later = tuple(arrival._replace(arrival_s=2 * arrival.arrival_s) for arrival in setup.arrivals)
    once, twice = setup.run(), setup.run(slower, arrivals=later)
    assert (twice.finished_s == 2 * once.finished_s).all()
    assert (twice.first_token_s == 2 * once.first_token_s).all()


@few
@given(seed=st.integers(0, 999), block_size=st.sampled_from([1, 4, 8, 16, 32]))
def test_a_single_place_takes_the_sum_of_prefills_and_rounds(seed: int, block_size: int) -> None:
    trace = random_trace(seed, 5)
    expected = 0.0
    for request in trace.requests:
        expected += COSTS.forward_s("prefill", 1, request.prompt_tokens, 0)
        position = 1
        while position < request.output_tokens:
            cached = request.prompt_tokens + position - 1
            matched = 0
            if block_size > 1:
                match = int(request.drafts["seeded", block_size].match[position])
                matched = next(bit for bit in range(block_size) if not match >> bit & 1)
            kinds = ("draft", "verify") if block_size > 1 else ("decode",)
            expected += sum(COSTS.forward_s(kind, 1, block_size, cached) for kind in kinds)
            expected += COSTS.host_s(1, block_size)
            position += min(matched + 1, request.output_tokens - position)
    run = replay(rounds_of(trace), COSTS, fixed(block_size), concurrency=1, order=range(5))
    assert run.finished_s.max() == pytest.approx(expected)


@few
@given(setups())
def test_every_step_makes_progress(setup: Setup) -> None:
    run = setup.run()
    prefills = run.steps["block_size"] == PREFILL_STEP
    assert (run.steps["query_tokens"] + run.steps["draft_tokens"] > 0).all()
    emits = np.zeros(len(prefills), np.bool_)
    emits[run.emission_step] = True
    silent = ~emits & ~prefills
    # drafts that a later step verifies
    assert (run.steps["draft_tokens"][silent] > 0).all()
    assert not silent.any() or setup.policy in ("overlap:B=8", "regime")
    # prefilled tokens are bounded by the prompts and what is prefilled again, so the run ends
    assert prefills.sum() <= run.prompt_tokens.sum() + run.recomputed_tokens


@few
@given(setups(limited=False))
def test_limits_that_nothing_reaches_change_nothing(setup: Setup) -> None:
    wide = Limits(max_running=10**6, kv_pages=10**9)
    one, other = setup.run(), setup.run(limits=wide)
    assert same(one, replace(other, kv_pages=None))


@few
@given(setups(), st.sampled_from(POLICIES))
def test_every_policy_gets_the_same_requests_at_the_same_times(setup: Setup, policy: str) -> None:
    one, other = setup.run(), setup.run(policy=policy)
    for name in ("request", "prompt_tokens", "output_tokens", "arrival_s"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_the_page_of_invariants_names_a_test_for_each() -> None:
    page = (Path(__file__).parents[2] / "docs" / "invariants.md").read_text()
    rows = re.findall(r"^\| (\d+) \| .+ \| `(test_\w+)` \|$", page, flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    here = Path(__file__).read_text()
    named = [name for _, name in rows]
    assert sorted(named) == sorted(re.findall(r"^def (test_\w+)", here, flags=re.MULTILINE)[:-1])
