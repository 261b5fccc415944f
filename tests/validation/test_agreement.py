"""Decisions compared round by round."""

from campaigns import as_measured
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import COSTS
from strategies import random_trace

from recguide.validation.agreement import agreement

TRACE = random_trace(3, 12, ease=0.8, min_output_tokens=20)


@settings(max_examples=20)
@given(policy=st.sampled_from(["ar", "fixed:8", "overlap:B=8", "window"]), concurrency=st.integers(1, 5))
def test_a_run_agrees_with_itself(policy, concurrency) -> None:
    run = as_measured(TRACE, policy, concurrency, COSTS).run
    found = agreement(run, run)
    assert (found.places, found.decisions, found.outcomes, found.same_steps) == (1, 1, 1, True)
    assert found.rounds == (run.emission_block_size > 0).sum()


def test_another_policy_stands_at_some_of_the_places_and_decides_otherwise() -> None:
    small, large = (as_measured(TRACE, f"fixed:{size}", 2, COSTS).run for size in (4, 16))
    found = agreement(small, large)
    assert 0 < found.places < 1
    assert (found.decisions, found.outcomes, found.same_steps) == (0, 0, False)


def test_other_acceptance_at_the_same_places_is_no_other_decision() -> None:
    one = as_measured(TRACE, "fixed:8", 2, COSTS).run
    other = as_measured(random_trace(3, 12, ease=0.6, min_output_tokens=20), "fixed:8", 2, COSTS).run
    found = agreement(other, one)
    assert found.places == found.decisions
    assert found.outcomes < found.decisions < 1
