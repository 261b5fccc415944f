from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.adaptive import adaptive
from recguide.sim.arrivals import Clients, as_recorded
from recguide.sim.batching import BATCHINGS
from recguide.sim.catalogue import make_policy, rounds_for
from recguide.sim.closed import plan_of
from recguide.sim.costs import linear_costs
from recguide.sim.figures import Figures
from recguide.sim.fitting import fit_in_sample
from recguide.sim.history import Signal
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy, method_of
from recguide.sim.metrics import metrics_of
from recguide.sim.overlap import Overlap
from recguide.sim.regime import Regime
from recguide.sim.replay import Replay, serve
from recguide.sim.rounds import Rounds
from recguide.sim.tiers import Tier, tiered

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
FITTED = fit_in_sample(
    random_trace(1, 12, min_output_tokens=80, max_output_tokens=120), COSTS, concurrencies=(1, 2, 3, 5, 8, 12, 20, 40)
)
FOLLOWED: dict[str, Policy] = {
    "adaptive": adaptive(FITTED),
    "adaptive-s": adaptive(FITTED, strata=False),
    "adaptive-head": adaptive(replace(FITTED, signal=Signal(head=3, bonus=False))),
    "regime": Regime(Overlap(8), adaptive(FITTED), 3),
    "tiers": tiered([Tier(1, 1, 32), Tier(2, 2, 4), Tier(3, 5, 1), Tier(6, 9, 16)]),
}
CATALOGUED = ("ar", "fixed:8", "fixed:16", "recipe", "window", "overlap:B=8", "overlap:B=16,recursive=no", "tidar:B=8")
KEYS = [*CATALOGUED, "overlap:B=8"]


def assert_same(one: Replay, other: Replay) -> None:
    """Every array, its type included: the log of events."""
    for field in fields(Replay):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        for name in theirs if field.name == "steps" else [None]:
            a, b = (mine, theirs) if name is None else (mine[name], theirs[name])
            assert np.array_equal(a, b) if isinstance(b, np.ndarray) else a == b, (field.name, name)
            assert getattr(a, "dtype", None) == getattr(b, "dtype", None), (field.name, name)


def both(
    rounds: Rounds, policy: Policy, order: list[int], concurrency: int | None, batching: str, limits: Limits
) -> Replay:
    """The run with and without the event loop, after a check that they are the same, their figures included."""
    quick, events = (
        serve(
            rounds,
            COSTS,
            policy,
            Clients(as_recorded(rounds, order), concurrency),
            batching=BATCHINGS[batching],
            limits=limits,
            closed=True,
            fast=fast,
        )
        for fast in (True, False)
    )
    assert_same(quick, events)
    figures = Figures((50.0, 99.0), {"ttft": 30.0}, 20)
    assert metrics_of(quick, rounds, figures) == metrics_of(events, rounds, figures)
    return quick


@settings(max_examples=250)
@given(
    seed=st.integers(0, 999),
    name=st.sampled_from([*CATALOGUED, *FOLLOWED]),
    room=st.sampled_from([0, 9, 60, 5000]),
    concurrency=st.none() | st.integers(1, 12),
    batching=st.sampled_from(sorted(BATCHINGS)),
    max_batched=st.sampled_from((1, 300, 10_000)),
    max_running=st.sampled_from((None, 1, 3)),
    order=st.lists(st.integers(0, 3), min_size=1, max_size=20),
)
def test_without_the_event_loop_every_event_and_figure_is_the_same(
    seed: int,
    name: str,
    room: int,
    concurrency: int | None,
    batching: str,
    max_batched: int,
    max_running: int | None,
    order: list[int],
) -> None:
    trace = random_trace(seed, 4)
    longest = max(request.prompt_tokens + request.output_tokens for request in trace.requests)
    trace = replace(trace, provenance=replace(trace.provenance, max_context=longest + room))
    rounds = rounds_for(trace, KEYS)
    policy = FOLLOWED[name] if name in FOLLOWED else make_policy(name, rounds, COSTS)
    assert plan_of(rounds, policy, method_of(policy, rounds, COSTS, BATCHINGS[batching]), BATCHINGS[batching])
    both(rounds, policy, order, concurrency, batching, Limits(max_batched, max_running=max_running))


def test_hundreds_of_requests_in_unequal_blocks_are_served_the_same() -> None:
    trace = random_trace(7, 40, min_output_tokens=40, max_output_tokens=160)
    rounds = rounds_for(trace, KEYS)
    order = np.random.default_rng(0).integers(0, 40, 200).tolist()
    for name, batching in (
        ("window", "bucket"),
        ("adaptive", "bucket"),
        ("adaptive", "bucket:round-robin"),
        ("adaptive", "bucket:oldest"),
        ("regime", "bucket:oldest"),
    ):
        policy = FOLLOWED[name] if name in FOLLOWED else make_policy(name, rounds, COSTS)
        run = both(rounds, policy, order, 48, batching, Limits())
        assert len(set(run.emission_block_size.tolist())) > 2


@pytest.mark.parametrize(("seed", "batching"), [(20, "bucket"), (31, "bucket"), (41, "bucket"), (57, "bucket:oldest")])
def test_who_waited_longest_is_known_after_the_load_changed_what_everyone_does(seed: int, batching: str) -> None:
    """Here the first in line is not the one who waited longest."""
    rounds = rounds_for(random_trace(seed, 30, min_output_tokens=20, max_output_tokens=80), KEYS)
    order = np.random.default_rng(seed).integers(0, 30, 60).tolist()
    both(rounds, FOLLOWED["adaptive"], order, 40, batching, Limits())


@pytest.mark.parametrize("fast", [True, False])
def test_a_block_size_that_was_not_recorded_is_told(fast: bool) -> None:
    rounds = rounds_for(random_trace(0, 2), [])
    small = replace(rounds, block_sizes=(4, 8), emitted={size: rounds.emitted[size] for size in (1, 4, 8)})
    clients, policy = Clients(as_recorded(small, [0]), 1), tiered([Tier(1, 9, 32)])
    with pytest.raises(ValueError, match="block size 32 was not recorded; recorded: 4, 8"):
        serve(small, COSTS, policy, clients, closed=True, fast=fast)
