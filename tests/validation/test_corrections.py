"""A profile corrected by what steps took at other concurrencies."""

from dataclasses import replace

import numpy as np
import pytest
from campaigns import as_measured
from strategies import random_trace

from recguide.sim.costs import linear_costs
from recguide.validation.corrections import FORWARD, LAYOUT, LEAST, PREFILLED, corrected, ratios_of, samples_of
from recguide.validation.pricing import priced_apart

TRACE = random_trace(3, 20, ease=0.8, min_output_tokens=30)
PROFILE = linear_costs(2e-3, 1e-5, 1e-7, host_s=1e-4)


def served(policy, concurrency, factor):
    """A run whose forwards take ``factor`` times what the profile says, and its host what that says."""
    made = as_measured(TRACE, policy, concurrency, PROFILE)
    draft_s, forward_s, host_s = priced_apart(made.run, PROFILE)
    seconds = factor * (draft_s + forward_s) + host_s
    ends = np.cumsum(seconds)
    steps = {**made.run.steps, "seconds": seconds, "start_s": np.append(0.0, ends[:-1])}
    run = replace(made.run, steps=steps)
    return replace(made, run=run, draft_s=factor * draft_s, forward_s=factor * (draft_s + forward_s))


def test_forwards_are_told_apart_by_what_they_do() -> None:
    found = samples_of(served("fixed:8", 2, 1.5), PROFILE)
    assert {group: len(table) > 0 for group, table in found.items()} == {FORWARD: True, LAYOUT: False, PREFILLED: True}
    branched = samples_of(served("overlap:B=8", 2, 1.5), PROFILE)
    assert len(branched[LAYOUT]) > 0
    assert len(branched[FORWARD]) == 0
    for table in (*found.values(), *branched.values()):
        np.testing.assert_allclose(table[:, 1], 1.5 * table[:, 2])


@pytest.mark.parametrize("policy", ["ar", "fixed:8", "overlap:B=8"])
def test_what_all_forwards_take_longer_is_found_and_the_host_stays(policy) -> None:
    ratios = ratios_of([samples_of(served(policy, count, 1.25), PROFILE) for count in (1, 2, 4)] * LEAST)
    found = corrected(PROFILE, ratios)
    for kind, tokens in (("prefill", 64), {"ar": ("decode", 2), "fixed:8": ("verify", 16)}.get(policy, ("rows", 32))):
        assert found.forward_s(kind, 2, tokens, 100) == pytest.approx(1.25 * PROFILE.forward_s(kind, 2, tokens, 100))
    assert found.host_s(2, 16) == PROFILE.host_s(2, 16)
    assert found.name == "linear, corrected"


def test_sizes_that_few_forwards_had_are_interpolated_and_nothing_is_assumed_without_any() -> None:
    # half as slow again at 8 tokens as at 32
    tables = {8: 1.5, 32: 1.0}
    rows = [[size, ratio * 1e-3, 1e-3] for size, ratio in tables.items() for _ in range(20)] + [[16, 9.0, 1e-3]]
    none = np.zeros((0, 3))
    found = corrected(PROFILE, ratios_of([{FORWARD: np.array(rows), LAYOUT: none, PREFILLED: none}]))
    for tokens, ratio in ((4, 1.5), (8, 1.5), (16, 1.25), (32, 1.0), (99, 1.0)):
        assert found.forward_s("verify", 1, tokens, 10) == pytest.approx(
            ratio * PROFILE.forward_s("verify", 1, tokens, 10)
        )
    assert found.forward_s("prefill", 1, 64, 0) == PROFILE.forward_s("prefill", 1, 64, 0)
    assert found.forward_s("rows", 1, 64, 0) == PROFILE.forward_s("rows", 1, 64, 0)
