"""Policies that choose by certainty, where a profile visits their steps: as they are, over tables that are made up."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TINY

from recguide.engine.certain_policies import Mixture, made_up_fit, one_size
from recguide.engine.places import Grid, Place
from recguide.engine.profiling import station_for
from recguide.engine.shapes import random_decoder
from recguide.engine.standing import Walk
from recguide.engine.visits import visit
from recguide.sim.adaptive import Equation3, read_policy, write_policy
from recguide.sim.fitting import BINS
from recguide.sim.policies import Outcomes
from recguide.sim.sharing import Allocation

GRID = Grid((1, 2, 3, 8, 12), (8, 40, 64), (4, 8, 16), (16,), 0, ("adaptive", "allocation"))
PLACES = [place for place in GRID.places() if place.method in GRID.layouts]


def seen(count: int, rng: np.random.Generator, last: int) -> Outcomes:
    """Requests behind rounds at this block size."""
    sizes, lens = np.full(count, last), rng.integers(1, last + 1, count) if last else np.zeros(count, np.int64)
    return Outcomes(np.arange(count), sizes, sizes, lens, 99 * count, rng.exponential(2, count), rng.random(count))


@given(st.integers(1, 128), st.sampled_from([4, 8, 16, 32]), st.integers(0, 99), st.sampled_from([0, 4, 8, 16, 32]))
def test_whoever_had_a_round_gets_the_size_and_nobody_else(count: int, size: int, seed: int, last: int) -> None:
    policy = one_size(size)
    assert isinstance(policy, Equation3)
    assert policy.tables.shape[2] == BINS
    wanted = policy(seen(count, np.random.default_rng(seed), last))
    if last in (8, 16, 32, size):
        assert (wanted == size).all()
    else:
        assert (wanted != size).all()


@given(st.integers(2, 128), st.sampled_from([4, 8, 16]), st.integers(0, 9))
def test_a_number_of_large_blocks_and_the_next_one_make_all_requests(count: int, small: int, seed: int) -> None:
    policy, rng = Mixture(small), np.random.default_rng(seed)
    assert isinstance(policy, Allocation)
    larger = []
    for _ in range(7):
        sizes = policy(seen(count, rng, small))
        assert set(sizes.tolist()) == {small, 2 * small}
        larger.append(int((sizes > small).sum()))
    assert {one + other for one, other in pairwise(larger)} == {count}
    assert count == 2 or larger[0] != larger[1]
    assert abs(larger[0] - larger[1]) <= 2


def test_what_is_made_up_is_a_policy_that_a_file_may_hold(tmp_path) -> None:
    fitted = replace(made_up_fit((8, 16, 32)), model="tiny", weights_sha256="0")
    write_policy(fitted, tmp_path / "p.json")
    assert read_policy(tmp_path / "p.json") == fitted


@pytest.fixture(scope="module")
def station():
    return station_for(random_decoder(replace(TINY, max_context=512), "cpu", torch.float32, 0), GRID)


@pytest.mark.parametrize("least_s", [0.0, 60.0])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_steps_of_a_visit_are_those_of_the_place(station, place: Place, least_s: float) -> None:
    ((_, count, tokens, context),) = visit(station, place, least_s)
    assert (count, tokens, context) == (place.requests, place.requests * place.size, 0)
    station.check()
    assert station.scheduler.pool.num_free == station.scheduler.pool.num_pages
    steps = station.log.log.steps[-1 - (Walk(place, station.max_context).steps if least_s else 2) : -1]
    assert {step.requests for step in steps} == {count}
    assert {step.in_flight for step in steps} == {count + place.waiting}
    assert sum(step.query_tokens for step in steps) == len(steps) * tokens
    assert max(step.block_size for step in steps) == place.block_size
    if place.method == "adaptive" or count == 2:
        assert {step.query_tokens for step in steps} == {tokens}
    else:
        assert len({step.query_tokens for step in steps}) > 1


@pytest.mark.parametrize("place", [place for place in PLACES if place.requests in (3, 8)], ids=str)
def test_history_is_kept_and_nobody_is_without_one(station, place: Place, monkeypatch) -> None:
    figures, ways, turn_to = [], [], station.turn_to

    def watched(*what) -> None:
        turn_to(*what)
        way = station.way
        plan = way.plan
        way.plan = lambda running, step: figures.append(running.figures.copy()) or plan(running, step)
        ways.append(way.way)

    monkeypatch.setattr(station, "turn_to", watched)
    visit(station, place, 60.0)
    assert len(figures) == Walk(place, station.max_context).steps + 2
    assert not np.isnan(figures).any()
    # the verifier's own entropies, of all who took part
    assert ((figures[-1][:2] > 0).all(axis=0).sum()) == place.requests
    assert sum(tally.rounds for tally in ways[0].tallies.values()) == place.requests * (len(figures) - 1)
