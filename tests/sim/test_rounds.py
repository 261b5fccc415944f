from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import constant_trace, dense_traces, random_trace

from recguide.sim.rounds import AR, accept_lens, emitted_lens, largest_fitting, rounds_of
from recguide.traces.dense import DenseTrace


def test_a_draft_is_accepted_up_to_its_first_mismatch() -> None:
    match = np.array([0b0, 0b1, 0b1101, 0b0111, 2**31 - 1], np.uint32)
    assert accept_lens(match).tolist() == [1, 2, 2, 4, 32]


@given(match=st.integers(0, 2**31 - 1))
def test_acceptance_lengths_count_as_one_would_by_hand(match: int) -> None:
    matched = 0
    while match >> matched & 1:
        matched += 1
    assert accept_lens(np.array([match], np.uint32))[0] == matched + 1


@given(
    grid=st.lists(st.sampled_from((2, 4, 8, 16, 32)), min_size=1, unique=True).map(sorted),
    cached=st.integers(0, 200),
    limit=st.integers(1, 200),
)
def test_the_largest_recorded_block_that_fits_the_context_is_used(grid: list[int], cached: int, limit: int) -> None:
    fitting = [size for size in grid if cached + size <= limit]
    assert largest_fitting(grid, cached, limit) == max(fitting, default=AR)
    assert largest_fitting(grid, np.array([cached, 0]), limit).shape == (2,)


@pytest.mark.parametrize(
    ("accepted", "left", "eos_at", "emitted"),
    [(5, 9, 5, 5), (5, 3, 5, 3), (5, 9, 0, 1), (5, 2, 3, 2), (5, 9, 4, 5), (1, 1, 0, 1)],
)
def test_output_limit_and_eos_cut_what_is_emitted(accepted: int, left: int, eos_at: int, emitted: int) -> None:
    assert emitted_lens(np.array(accepted), left, eos_at) == emitted
    assert emitted_lens(np.array([accepted]), np.array([left]), np.array([eos_at])).tolist() == [emitted]
    assert emitted_lens(np.array(accepted), left) == min(accepted, left)


@given(trace=dense_traces())
def test_every_position_of_every_request_has_its_round(trace: DenseTrace) -> None:
    rounds = rounds_of(trace)
    for request, first in zip(trace.requests, rounds.first, strict=True):
        left = request.output_tokens - np.arange(request.output_tokens)
        for size in trace.provenance.block_sizes:
            expected = accept_lens(request.drafts["seeded", size].match)
            here = slice(first, first + request.output_tokens)
            assert (rounds.accept_len[size][here] == expected).all()
            assert (rounds.emitted[size][here] == np.minimum(expected, left)).all()
            assert (rounds.emitted[size][here] >= 1).all()
        assert rounds.finished[first + request.output_tokens]
    assert rounds.finished.sum() == len(trace.requests)


def test_an_ar_step_emits_one_token_until_the_end() -> None:
    rounds = rounds_of(random_trace(1, num_requests=3))
    assert (rounds.emitted[AR] == ~rounds.finished).all()


def test_blocks_shrink_only_where_the_context_ends() -> None:
    trace = constant_trace(4, num_requests=1, output_tokens=40)
    assert rounds_of(trace).largest is None
    prompt_tokens = trace.requests[0].prompt_tokens
    tight = replace(trace, provenance=replace(trace.provenance, max_context=prompt_tokens + 39))
    largest = rounds_of(tight).largest
    assert largest is not None
    room = 40 - np.arange(1, 40)
    assert largest[1:40].tolist() == [
        max([size for size in (4, 8, 16, 32) if size <= left], default=AR) for left in room
    ]


def test_an_unrecorded_block_size_is_refused_with_the_recorded_ones() -> None:
    with pytest.raises(ValueError, match=r"block size 64 was not recorded; recorded: 4, 8, 16, 32"):
        rounds_of(constant_trace(4)).check(64)
