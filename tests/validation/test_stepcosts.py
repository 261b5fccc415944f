"""Costs out of served steps."""

from dataclasses import replace

import numpy as np
import pytest
from campaigns import as_measured
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.costs import linear_costs
from recguide.traces.errors import InputError
from recguide.validation.pricing import priced
from recguide.validation.stepcosts import costs_of_steps

TRACE = random_trace(3, 20, ease=0.8, min_output_tokens=30)


def served(policy, concurrency, costs):
    """A run as measured under these costs, its forwards and its drafts with the time that they have there."""
    made = as_measured(TRACE, policy, concurrency, costs)
    steps = made.run.steps
    forward_s = priced(made.run, costs, "quadratic" if policy.startswith("tidar") else "rows")[0]
    both = (steps["draft_tokens"] > 0) & (steps["query_tokens"] > 0)
    shape = zip(steps["requests"], steps["draft_tokens"], steps["context_tokens"], strict=True)
    draft_s = [costs.forward_s("draft", int(n), int(tokens), float(context)) for n, tokens, context in shape]
    return replace(made, forward_s=forward_s, draft_s=np.where(both, draft_s, 0.0))


@settings(max_examples=25)
@given(
    policy=st.sampled_from(["ar", "fixed:8", "fixed:32", "tidar:B=8"]),
    concurrency=st.integers(2, 4),
    base=st.floats(1e-4, 1e-2),
    token=st.floats(0, 1e-4),
    context=st.floats(0, 1e-6),
)
def test_linear_costs_come_out_of_every_second_step(policy, concurrency, base, token, context) -> None:
    true = linear_costs(base, token, context)
    run = served(policy, concurrency, true)
    found = costs_of_steps([run])
    forward_s, host_s = priced(run.run, found, "quadratic")
    # a shape that no even step has may be any mixture of what is linear; all others are exact
    np.testing.assert_allclose((forward_s + host_s)[::2], run.run.steps["seconds"][::2], rtol=1e-6)


def test_the_hosts_time_is_fitted_apart_and_that_of_prefills_is_theirs() -> None:
    run = served("fixed:8", 2, linear_costs(1e-3, 2e-5, 1e-7, host_s=3e-4))
    found = costs_of_steps([run])
    assert found.host_s(2, 16) == pytest.approx(3e-4, rel=1e-6)
    assert found.forward_s("draft", 2, 16, 100) == pytest.approx(1e-3 + 16 * 2e-5 + 1e-5, rel=1e-3)


def test_a_kind_that_no_even_step_has_is_told() -> None:
    found = costs_of_steps([served("ar", 1, linear_costs(1e-3, 2e-5, 1e-7))])
    with pytest.raises(InputError, match="served steps: no even step with a forward of kind 'verify'; there are: "):
        found.forward_s("verify", 1, 8, 100)
