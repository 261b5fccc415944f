from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from overlap_reference import Told, play
from strategies import constant_trace, random_trace

from recguide.sim.costs import constant_costs, linear_costs
from recguide.sim.metrics import metrics_of
from recguide.sim.overlap import CONTINUATIONS, SEEDED, Outcome, Overlap, prepared, prepared_of_one
from recguide.sim.replay import PREFILL_STEP, Replay, replay
from recguide.sim.rounds import rounds_of
from recguide.traces.dense import DenseTrace

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
rules_of = st.builds(
    Overlap,
    block_size=st.sampled_from([4, 8, 16]),
    delta=st.sampled_from([0.25, 0.5, 0.75, 1 / 256]),
    corrections=st.integers(0, 3),
    continuation=st.sampled_from(CONTINUATIONS),
    eos=st.sampled_from(["allowed", "barred"]),
    recursive=st.booleans(),
)
NAMES = {
    Outcome.CORRECTION_COVERED: "correction covered",
    Outcome.CORRECTION_REUSED: "correction reused",
    Outcome.CONTINUATION_COVERED: "continuation covered",
    Outcome.CONTINUATION_REUSED: "continuation reused",
}


@st.composite
def limited(draw: st.DrawFn, num_requests: int = 3) -> DenseTrace:
    """Random traces, some of which run into the output limit or the context limit."""
    trace = random_trace(
        draw(st.integers(0, 999)), num_requests, (4, 8, 16), ease=draw(st.sampled_from([0.3, 0.6, 0.9, 1.0]))
    )
    longest = max(request.output_tokens for request in trace.requests)
    total = max(request.prompt_tokens + request.output_tokens for request in trace.requests)
    limits = {
        "max_output_tokens": draw(st.sampled_from([longest, longest + 5, 4096])),
        "max_context": draw(st.sampled_from([total, total + 9, 8192])),
    }
    return replace(trace, provenance=replace(trace.provenance, **limits))


def run_of(trace: DenseTrace, rules: Overlap, concurrency: int) -> Replay:
    rounds = rounds_of(trace, rules.keys)
    return replay(rounds, COSTS, rules, concurrency=concurrency, order=range(len(trace.requests)))


def rounds_told(run: Replay, sent: int) -> list[tuple[int, bool, set[str]]]:
    """Tokens, whether a draft forward was needed, and events of every round of a request."""
    mine = (run.emission_request == sent) & (run.emission_block_size != PREFILL_STEP)
    assert run.emission_outcome is not None
    return [
        (tokens, bool(flags & Outcome.DRAFTED.value), {name for flag, name in NAMES.items() if flags & flag.value})
        for tokens, flags in zip(run.emission_tokens[mine].tolist(), run.emission_outcome[mine].tolist(), strict=True)
    ]


@given(trace=limited(), rules=rules_of, concurrency=st.integers(1, 4))
def test_every_round_is_the_one_of_the_plain_state_machine(trace: DenseTrace, rules: Overlap, concurrency: int) -> None:
    run = run_of(trace, rules, concurrency)
    for sent, row in enumerate(run.request.tolist()):
        wanted = play(trace, trace.requests[row], asdict(rules))
        assert rounds_told(run, sent) == [(told.emitted, told.drafted, told.events) for told in wanted]


@given(rules=rules_of, limit=st.integers(1, 20), room=st.integers(1, 40), data=st.data())
def test_branches_of_one_draft_are_those_that_it_has_among_many(rules, limit, room, data) -> None:
    margin = np.array(data.draw(st.lists(st.integers(0, 255), min_size=15, max_size=15)), np.uint8)
    margin = margin[: rules.block_size - 1]
    corrections, goes_on = prepared(margin[None], rules, np.array([limit]), np.array([room]), SEEDED)
    places = [int(at[0]) for at in corrections if at[0]]
    assert prepared_of_one(margin, rules, limit, room) == (places, bool(goes_on[0]))


@given(trace=limited(1), rules=rules_of)
def test_alone_every_forward_has_the_rows_of_the_state_machine(trace: DenseTrace, rules: Overlap) -> None:
    run = run_of(trace, rules, 1)
    forwards = forwards_of(play(trace, trace.requests[0], asdict(rules)))
    steps = run.steps["block_size"] != PREFILL_STEP
    tokens = (run.steps["query_tokens"] + run.steps["draft_tokens"])[steps]
    assert tokens.tolist() == forwards
    kinds = ["draft" if drafts else "other" for drafts in run.steps["draft_tokens"][steps]]
    assert kinds.count("draft") == sum(told.drafted for told in play(trace, trace.requests[0], asdict(rules)))


def forwards_of(told: list[Told]) -> list[int]:
    return [tokens for one in told for tokens in ([one.rows[0]] if one.drafted else []) + [sum(one.rows)]]


@settings(max_examples=40)
@given(trace=limited(6), rules=rules_of, concurrency=st.integers(1, 6))
def test_the_branch_table_adds_up(trace: DenseTrace, rules: Overlap, concurrency: int) -> None:
    run = run_of(trace, rules, concurrency)
    figures: dict[str, Any] = metrics_of(run, rounds_of(trace))
    if figures["no_hit"] is None:
        return
    covered = figures["correction_coverage"] + figures["continuation_coverage"]
    assert figures["no_hit"] == pytest.approx(1 - covered)
    assert figures["correction_reuse"] <= figures["correction_coverage"]
    assert figures["continuation_reuse"] <= figures["continuation_coverage"]
    assert rules.continuation != "never" or figures["continuation_coverage"] == 0
    assert rules.corrections > 0 or figures["correction_coverage"] == 0
    assert figures["wasted_query_tokens"] >= 0
    assert figures["tau"] == 2 * figures["tpf"]


def test_without_branches_it_is_plain_self_speculation() -> None:
    trace = random_trace(3, 6)
    rules = Overlap(8, corrections=0, continuation="never")
    costs = constant_costs(prefill=1.0, draft=2.0, verify=3.0, host=0.5, rows=100.0)
    run = replay(rounds_of(trace, rules.keys), costs, rules, concurrency=1, order=range(6))
    plain = replay(rounds_of(trace), costs, lambda seen: 8, concurrency=1, order=range(6))
    assert np.allclose(run.finished_s, plain.finished_s)
    assert run.emission_tokens.tolist() == plain.emission_tokens.tolist()


def test_full_acceptance_drafts_once_and_then_never_again() -> None:
    trace = constant_trace(16, 1, output_tokens=1 + 16 * 5)
    run = run_of(trace, Overlap(16), 1)
    # all margins are high, so every round prepares its continuation, and every one is reused
    assert run.steps["draft_tokens"].tolist() == [0, 16, 0, 0, 0, 0, 0]
    assert run.steps["query_tokens"].tolist() == [20, 0, 32, 32, 32, 32, 32]
    figures = metrics_of(run, rounds_of(trace))
    assert figures["tau"] == 2 * 80 / 6
    # the last round ends the text, so that its branch goes unused
    assert (figures["continuation_coverage"], figures["continuation_reuse"]) == (1.0, 0.8)


@settings(max_examples=25)
@given(trace=limited(6), rules=rules_of, concurrency=st.integers(2, 6))
def test_every_forward_carries_everyones_next_need(trace: DenseTrace, rules: Overlap, concurrency: int) -> None:
    run = run_of(trace, rules, concurrency)
    decoding = run.steps["block_size"] != PREFILL_STEP
    assert (run.steps["requests"] == run.steps["in_flight"])[decoding].all()
