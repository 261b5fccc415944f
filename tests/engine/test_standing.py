"""Requests that stand for a profile's steps: where they are, and what they accept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TINY

from recguide.engine.halves import Halves
from recguide.engine.outcomes import accepted
from recguide.engine.places import Grid, Place
from recguide.engine.profiling import station_for
from recguide.engine.requests import Live, Wish
from recguide.engine.scores import blank
from recguide.engine.shapes import random_decoder
from recguide.engine.standing import SAMPLES, Walk
from recguide.engine.visits import visit
from recguide.sim.rounds import AR

PLACES = st.sampled_from([*Grid((1, 2, 3, 8, 64, 128), (8, 64, 512, 2048)).places()]).filter(
    lambda place: place.method != "prefill"
)
GRID = Grid((1, 3, 12), (40, 64), (4, 16, 32), (16,), layout_requests=3)


def lives_of(count: int) -> list[Live]:
    return [Live(number, [1], Wish(99), frozenset(), 99, tokens=[1]) for number in range(count)]


def rounds_of(judge: Halves, count: int, size: int, rounds: int) -> np.ndarray:
    """[rounds, requests] What is accepted, one round behind the other."""
    positions, found = np.full(count, judge.start), []
    for _ in range(rounds):
        found.append(judge.accept_lens(np.arange(count), positions, size))
        positions = positions + found[-1]
    return np.array(found)


@given(st.integers(2, 32), st.booleans(), st.integers(1, 40), st.integers(1, 99))
def test_requests_accept_half_of_a_block_in_the_mean(size: int, whole: bool, count: int, start: int) -> None:
    judge = Halves(np.arange(40), whole)
    judge.start = start
    lens = rounds_of(judge, count, size, 16)
    assert lens.min() >= 1
    assert lens.max() <= (size if whole else max(size - 1, 1))
    two = lens.reshape(8, 2, count).sum(1)
    assert (two == (size + whole if size + whole > 2 else 2)).all()
    assert (lens.reshape(4, 4, count)[:, 0] == lens.reshape(4, 4, count)[:, 3]).all()


@given(st.sampled_from([8, 16, 32]))
def test_requests_accept_other_numbers_at_a_time(size: int) -> None:
    lens = rounds_of(Halves(np.arange(40)), size, size, 8)
    assert [sorted(row) for row in lens.tolist()] == [list(range(1, size + 1))] * 8
    assert len(set(lens[::4, 0].tolist())) == 2


@given(st.integers(1, 32), st.integers(1, 12), st.integers(1, 200), st.integers(3, 99))
def test_what_is_drafted_is_verified_as_far_as_it_is_accepted(size: int, count: int, at: int, vocab: int) -> None:
    judge, lives, positions = Halves(np.arange(5, 5 + vocab)), lives_of(count), at + np.arange(count)
    wanted = judge.accept_lens(np.arange(count), positions, size).tolist() if size > AR else [1] * count
    ids = judge.verified(lives, positions, size, blank(count * size)).first.reshape(count, size)
    for view, where in (("seeded", positions), ("continuation", positions - 1)):
        draft = judge.drafted(lives, view, where, size, blank(count * size))
        made = draft.first.reshape(count, size)[:, 1:]
        assert list(accepted(lives, made, ids).accept_len) == wanted
        assert not (draft.second.reshape(count, size)[:, 1:] == ids[:, :-1]).any()


@given(PLACES, st.integers(2100, 4000))
def test_contexts_are_those_of_the_place_in_the_mean(place: Place, room: int) -> None:
    walk = Walk(place, room)
    assert walk.steps in range(2, SAMPLES + 1, 2)
    for steps in range(2, walk.steps + 1, 2):
        contexts = walk.contexts(steps)
        count = place.requests + place.waiting
        assert len(contexts) == count
        assert contexts.min() >= 1
        assert contexts.sum() == count * walk.first(steps)
        assert np.ptp(contexts) < 16
        assert contexts.max() + 2 * place.block_size < room
    if place.context <= 64 < room - 200 and place.requests >= 64:
        assert np.ptp(walk.contexts(2)) >= min(14, 2 * walk.first(2) - 4)


@pytest.fixture(scope="module")
def station():
    decoder = random_decoder(replace(TINY, max_context=512), "cpu", torch.float32, 0)
    return station_for(decoder, GRID)


@pytest.mark.parametrize("least_s", [0.0, 60.0])
@pytest.mark.parametrize("method", ["linear", "rows", "quadratic"])
def test_steps_of_a_visit_are_those_of_served_requests(station, method: str, least_s: float) -> None:
    for place in GRID.places():
        if place.method != method:
            continue
        visit(station, place, least_s)
        station.check()
        assert station.scheduler.pool.num_free == station.scheduler.pool.num_pages
        steps = Walk(place, station.max_context).steps if least_s else 2
        log, told = station.log, slice(-steps - 1, -1)
        rounds = [step for step in log.log.steps[told] if step.query_tokens]
        assert len(log.log.steps[told]) == steps
        assert {(step.requests, step.query_tokens) for step in rounds} == {
            (place.requests, place.requests * place.size)
        }
        contexts = [step.context_tokens for step in rounds]
        off = abs(np.mean(contexts) / place.requests - place.context)
        # a request that is alone moves on by other numbers each time, which make up for each other in four rounds
        assert off <= 1 + (0 if len(rounds) % 4 == 0 else place.block_size / 4)
        moved = np.diff(contexts) / place.requests
        assert all(1 <= by <= place.block_size for by in moved)


def test_requests_near_the_end_of_the_context_run_whole_blocks() -> None:
    grid = Grid((1, 3), (383,), (4, 32), (8,), 3)
    decoder = random_decoder(replace(TINY, max_context=384), "cpu", torch.float32, 0)
    limited = station_for(decoder, grid)
    assert limited.max_context == 384
    for place in grid.places():
        if place.method != "prefill":
            visit(limited, place, 0.0)
            limited.check()
            tokens = {step.query_tokens for step in limited.log.log.steps[-3:]}
            assert tokens <= {0, place.requests * place.size}
            assert max(tokens) > 0
