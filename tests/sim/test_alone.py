from dataclasses import fields, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.adaptive import adaptive
from recguide.sim.catalogue import make_policy, rounds_for
from recguide.sim.costs import linear_costs
from recguide.sim.fitting import fit_in_sample
from recguide.sim.history import Signal
from recguide.sim.replay import Replay, replay

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
FITTED = fit_in_sample(random_trace(1, 12, min_output_tokens=80, max_output_tokens=120), COSTS, concurrencies=(1, 4))
ADAPTIVE = {
    "adaptive": adaptive(FITTED),
    "adaptive-s": adaptive(FITTED, strata=False),
    "adaptive-head": adaptive(replace(FITTED, signal=Signal(head=3, bonus=False))),
}
CATALOGUED = ["ar", "fixed:8", "fixed:16", "overlap:B=8", "overlap:B=16,recursive=no,eos=barred", "tidar:B=8"]


def assert_same(one: Replay, other: Replay) -> None:
    for field in fields(Replay):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        for name in theirs if field.name == "steps" else [None]:
            a, b = (mine, theirs) if name is None else (mine[name], theirs[name])
            assert np.array_equal(a, b) if isinstance(b, np.ndarray) else a == b, (field.name, name)
            assert getattr(a, "dtype", None) == getattr(b, "dtype", None), (field.name, name)


@given(
    seed=st.integers(0, 999),
    name=st.sampled_from([*CATALOGUED, *ADAPTIVE]),
    room=st.sampled_from([0, 9, 60, 5000]),
    data=st.data(),
)
def test_without_the_event_loop_every_number_is_the_same(seed: int, name: str, room: int, data: st.DataObject) -> None:
    trace = random_trace(seed, 4)
    longest = max(request.prompt_tokens + request.output_tokens for request in trace.requests)
    trace = replace(trace, provenance=replace(trace.provenance, max_context=longest + room))
    rounds = rounds_for(trace, [name] if name in CATALOGUED else [])
    order = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    policy = make_policy(name, rounds, COSTS) if name in CATALOGUED else ADAPTIVE[name]
    quick, events = (replay(rounds, COSTS, policy, concurrency=1, order=order, fast=fast) for fast in (True, False))
    assert_same(quick, events)
