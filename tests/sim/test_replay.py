from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import constant_trace, dense_traces, random_trace

from recguide.sim.catalogue import make_policy
from recguide.sim.costs import CostModel, constant_costs, linear_costs
from recguide.sim.policies import BlockPolicy, Outcomes, ar, fixed, oracle
from recguide.sim.replay import PREFILL_STEP, Replay, replay
from recguide.sim.rounds import Ints, Rounds, rounds_of
from recguide.traces.dense import DenseTrace

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
concurrencies = st.integers(1, 9)


def scattered(rounds: Rounds, seed: int) -> BlockPolicy:
    """Any recorded block size for any request at any time."""
    sizes = np.array(sorted(rounds.emitted))
    rng = np.random.default_rng(seed)
    return lambda seen: rng.choice(sizes, seen.running)


@st.composite
def replays(draw: st.DrawFn) -> tuple[DenseTrace, Replay]:
    trace = draw(dense_traces(max_requests=12, with_ids=st.just(False)))
    rounds = rounds_of(trace)
    order = draw(st.permutations(range(len(trace.requests))))
    seed = draw(st.integers(0, 99))
    policy = draw(st.sampled_from([ar, fixed(rounds.block_sizes[0]), oracle(rounds, COSTS), scattered(rounds, seed)]))
    budget = draw(st.sampled_from([1, 300, 10_000]))
    return trace, replay(rounds, COSTS, policy, concurrency=draw(concurrencies), order=order, max_batched_tokens=budget)


@given(replays())
def test_requests_and_tokens_are_conserved(played: tuple[DenseTrace, Replay]) -> None:
    trace, run = played
    assert sorted(run.request) == list(range(len(trace.requests)))
    emitted = np.bincount(run.emission_request, run.emission_tokens)
    assert emitted.tolist() == [trace.requests[row].output_tokens for row in run.request]
    assert (run.emission_tokens >= 1).all()
    assert len(run.emission_request) == run.steps["requests"].sum()
    prefilled = run.emission_request[run.steps["block_size"][run.emission_step] == PREFILL_STEP]
    assert sorted(prefilled) == list(range(len(run.request)))


@given(replays())
def test_the_clock_never_goes_back_and_the_gpu_never_idles_while_work_waits(played: tuple[DenseTrace, Replay]) -> None:
    _, run = played
    start, seconds = run.steps["start_s"], run.steps["seconds"]
    assert start[0] == 0
    assert (start[1:] == start[:-1] + seconds[:-1]).all()
    assert (run.sent_s < run.first_token_s).all()
    assert (run.first_token_s <= run.finished_s).all()
    assert run.finished_s.max() == start[-1] + seconds[-1]


@given(replays())
def test_as_many_requests_as_allowed_are_in_flight(played: tuple[DenseTrace, Replay]) -> None:
    _, run = played
    start = run.steps["start_s"]
    unfinished = (run.finished_s[None, :] > start[:, None]).sum(axis=1)
    sent = (run.sent_s[None, :] <= start[:, None]).sum(axis=1)
    in_flight = sent - (len(run.request) - unfinished)
    assert (in_flight == np.minimum(run.concurrency, unfinished)).all()
    full_batch = run.steps["block_size"] != PREFILL_STEP
    assert (run.steps["in_flight"] == in_flight)[full_batch].all()


@given(replays())
def test_context_is_what_the_requests_of_a_step_have_cached(played: tuple[DenseTrace, Replay]) -> None:
    _, run = played
    before = np.zeros(len(run.request), np.int64)
    for step, block_size in enumerate(run.steps["block_size"]):
        here = run.emission_step == step
        ids, tokens = run.emission_request[here], run.emission_tokens[here]
        if block_size == PREFILL_STEP:
            assert run.steps["query_tokens"][step] == run.prompt_tokens[ids].sum()
        else:
            assert run.steps["context_tokens"][step] == (run.prompt_tokens[ids] + before[ids] - 1).sum()
            assert run.steps["query_tokens"][step] == block_size * len(ids)
        before[ids] += tokens


def same(one: Replay, other: Replay) -> bool:
    arrays = [field.name for field in fields(Replay) if field.name not in ("concurrency", "steps")]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays) and all(
        np.array_equal(one.steps[name], other.steps[name]) for name in one.steps
    )


@given(trace=dense_traces(max_requests=8), concurrency=concurrencies, seed=st.integers(0, 9))
def test_the_same_input_gives_the_same_bytes(trace: DenseTrace, concurrency: int, seed: int) -> None:
    rounds = rounds_of(trace)
    order = np.random.default_rng(seed).permutation(len(trace.requests))
    one, other = (
        replay(rounds, COSTS, scattered(rounds, seed), concurrency=concurrency, order=order) for _ in range(2)
    )
    assert same(one, other)


@given(
    accept_len=st.integers(1, 32),
    block_size=st.sampled_from([4, 8, 16, 32]),
    output_tokens=st.integers(1, 80),
    waves=st.integers(1, 3),
    concurrency=concurrencies,
)
def test_a_constant_acceptance_length_gives_the_closed_form(
    accept_len: int, block_size: int, output_tokens: int, waves: int, concurrency: int
) -> None:
    rounds = rounds_of(constant_trace(accept_len, waves * concurrency, output_tokens))
    costs = constant_costs(draft=2.0, verify=3.0, host=0.5, prefill=7.0)
    run = replay(rounds, costs, fixed(block_size), concurrency=concurrency, order=range(waves * concurrency))
    num_rounds = -(-(output_tokens - 1) // min(accept_len, block_size))
    assert run.finished_s.max() == pytest.approx(waves * (7.0 + num_rounds * 5.5))


@given(
    trace=dense_traces(max_requests=8), concurrency=concurrencies, name=st.sampled_from(["ar", "oracle", "scattered"])
)
def test_doubling_all_costs_doubles_every_time_exactly(trace: DenseTrace, concurrency: int, name: str) -> None:
    rounds = rounds_of(trace)

    def run(costs: CostModel) -> Replay:
        policy = scattered(rounds, 5) if name == "scattered" else make_policy(name, rounds, costs)
        return replay(rounds, costs, policy, concurrency=concurrency, order=range(len(trace.requests)))

    once, twice = run(COSTS), run(linear_costs(2e-3, 4e-5, 2e-7, host_s=2e-4))
    assert (twice.finished_s == 2 * once.finished_s).all()
    assert (twice.steps["seconds"] == 2 * once.steps["seconds"]).all()


@given(trace=dense_traces(max_requests=8), data=st.data())
def test_the_order_of_requests_served_alone_does_not_matter(trace: DenseTrace, data: st.DataObject) -> None:
    rounds = rounds_of(trace)
    order = data.draw(st.permutations(range(len(trace.requests))))
    run = replay(rounds, COSTS, fixed(rounds.block_sizes[-1]), concurrency=1, order=order)
    for row, took in zip(order, run.finished_s - run.sent_s, strict=True):
        alone = replay(rounds, COSTS, fixed(rounds.block_sizes[-1]), concurrency=1, order=[row])
        assert took == pytest.approx(alone.finished_s[0])


@given(trace=dense_traces(max_requests=8), data=st.data())
def test_requests_served_together_finish_alike_in_any_order(trace: DenseTrace, data: st.DataObject) -> None:
    rounds = rounds_of(trace)
    count = len(trace.requests)
    order = data.draw(st.permutations(range(count)))
    one, other = (
        replay(rounds, COSTS, oracle(rounds, COSTS), concurrency=count, order=rows, max_batched_tokens=10**6)
        for rows in (range(count), order)
    )
    assert other.finished_s == pytest.approx(one.finished_s[order])


@given(trace=dense_traces(max_requests=8), concurrency=concurrencies)
def test_a_block_of_one_is_autoregressive_decoding(trace: DenseTrace, concurrency: int) -> None:
    rounds = rounds_of(trace)
    order = range(len(trace.requests))
    one, decode = (replay(rounds, COSTS, policy, concurrency=concurrency, order=order) for policy in (fixed(1), ar))
    assert same(one, decode)
    assert (decode.emission_tokens == 1).all()


@given(
    accept_lens=st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(1, 16)),
    base=st.floats(0, 1),
    per_query=st.floats(1e-3, 1),
)
def test_alone_at_constant_acceptance_no_fixed_block_beats_the_oracle(
    accept_lens: tuple[int, int, int], base: float, per_query: float
) -> None:
    sizes = (4, 8, 16)
    # a length that every acceptance length divides, so that no last round is cut
    output_tokens = int(np.lcm.reduce(accept_lens)) + 1
    drafts = {
        key: constant_trace(accept_lens[sizes.index(key[1])], 1, output_tokens, sizes).requests[0].drafts[key]
        for key in [(view, size) for view in ("seeded", "continuation") for size in sizes]
    }
    plain = constant_trace(1, 1, output_tokens, sizes)
    rounds = rounds_of(replace(plain, requests=(replace(plain.requests[0], drafts=drafts),)))
    costs = linear_costs(base, per_query, 0.0)
    best = replay(rounds, costs, oracle(rounds, costs), concurrency=1, order=[0]).finished_s[0]
    for size in (1, *sizes):
        fix = replay(rounds, costs, fixed(size), concurrency=1, order=[0]).finished_s[0]
        assert best <= fix * (1 + 1e-9)


@given(trace=dense_traces(max_requests=6), concurrency=concurrencies)
def test_policies_are_told_what_happened_to_each_request(trace: DenseTrace, concurrency: int) -> None:
    rounds = rounds_of(trace)
    told: list[dict[int, tuple[int, int, int]]] = []
    choose = scattered(rounds, 1)

    def watch(seen: Outcomes) -> int | Ints:
        rows = zip(seen.tokens.tolist(), seen.block_size.tolist(), seen.accept_len.tolist(), strict=True)
        told.append(dict(zip(seen.request.tolist(), rows, strict=True)))
        return choose(seen)

    run = replay(rounds, COSTS, watch, concurrency=concurrency, order=range(len(trace.requests)))
    happened: dict[int, tuple[int, int, int]] = {}
    calls = iter(told)
    for step, block_size in enumerate(run.steps["block_size"].tolist()):
        here = run.emission_step == step
        if block_size != PREFILL_STEP:
            running = {row: what for row, what in happened.items() if what[0] < rounds.output_tokens[row]}
            assert next(calls) == running
        for row, tokens in zip(run.emission_request[here].tolist(), run.emission_tokens[here].tolist(), strict=True):
            last = (block_size, tokens) if block_size != PREFILL_STEP else (0, 0)
            happened[row] = (happened.get(row, (0,))[0] + tokens, *last)


Seen = list[list[list[int]]]


def watching(into: Seen) -> BlockPolicy:
    """A policy that depends on everything it may see, and writes that down."""

    def choose(seen: Outcomes) -> Ints:
        into.append([row.tolist() for row in (seen.tokens, seen.request, seen.block_size, seen.accept_len)])
        return np.array([4, 8, 16, 32])[(seen.tokens * 7 + seen.accept_len + seen.block_size) % 4]

    return choose


@settings(max_examples=40)
@given(seed=st.integers(0, 99), told=st.integers(1, 60), concurrency=concurrencies)
def test_policies_see_the_same_until_someone_has_lived_to_see_the_difference(
    seed: int, told: int, concurrency: int
) -> None:
    rounds = rounds_of(random_trace(seed, 6, min_output_tokens=60))
    future = {size: lens.copy() for size, lens in rounds.emitted.items()}
    for first in rounds.first:
        for size in rounds.block_sizes:
            future[size][first + told : first + 60] = np.minimum(size, 60 - np.arange(told, 60))
    one: Seen = []
    other: Seen = []
    replay(rounds, COSTS, watching(one), concurrency=concurrency, order=range(6))
    replay(replace(rounds, emitted=future), COSTS, watching(other), concurrency=concurrency, order=range(6))
    lived = next((call for call, (tokens, *_) in enumerate(one) if max(tokens) >= told), len(one))
    assert one[: lived + 1] == other[: lived + 1]


def test_the_context_limit_shrinks_blocks_to_recorded_ones() -> None:
    trace = constant_trace(32, num_requests=3, output_tokens=40)
    tight = replace(trace, provenance=replace(trace.provenance, max_context=trace.requests[0].prompt_tokens + 39))
    run = replay(rounds_of(tight), COSTS, fixed(32), concurrency=2, order=range(3))
    assert set(run.steps["block_size"].tolist()) == {PREFILL_STEP, 1, 4, 32}
    end = run.steps["context_tokens"] / run.steps["requests"] + run.steps["block_size"]
    assert end.max() <= tight.provenance.max_context


def test_a_prompt_above_the_budget_is_prefilled_alone() -> None:
    rounds = rounds_of(constant_trace(4, num_requests=5))
    run = replay(rounds, COSTS, ar, concurrency=5, order=range(5), max_batched_tokens=45)
    prefills = run.steps["block_size"] == PREFILL_STEP
    assert run.steps["requests"][prefills].tolist() == [2, 2, 1]
    run = replay(rounds, COSTS, ar, concurrency=5, order=range(5), max_batched_tokens=3)
    assert (run.steps["requests"][run.steps["block_size"] == PREFILL_STEP] == 1).all()


def test_two_buckets_of_one_request_take_turns() -> None:
    rounds = rounds_of(constant_trace(1, num_requests=2, output_tokens=9))
    run = replay(rounds, COSTS, lambda seen: np.where(seen.request == 0, 4, 8), concurrency=2, order=range(2))
    assert run.steps["block_size"].tolist() == [PREFILL_STEP] + [4, 8] * 8


@pytest.mark.parametrize("wrong", [np.array([4]), np.array([[4, 4]])], ids=["too few", "two-dimensional"])
def test_a_policy_that_forgets_a_request_is_refused(wrong: Ints) -> None:
    rounds = rounds_of(constant_trace(4, num_requests=2))
    with pytest.raises(ValueError, match="policy: found block sizes of shape"):
        replay(rounds, COSTS, lambda seen: wrong, concurrency=2, order=range(2))


def test_a_policy_that_asks_for_an_unrecorded_block_is_refused() -> None:
    with pytest.raises(ValueError, match="block size 7 was not recorded"):
        replay(rounds_of(constant_trace(4)), COSTS, fixed(7), concurrency=2, order=range(2))


@pytest.mark.parametrize("concurrency", [0, -1])
def test_nobody_in_flight_is_refused(concurrency: int) -> None:
    with pytest.raises(ValueError, match=f"concurrency {concurrency}, requests 2: allowed: at least 1"):
        replay(rounds_of(constant_trace(4)), COSTS, ar, concurrency=concurrency, order=range(2))
