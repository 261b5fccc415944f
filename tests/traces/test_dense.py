"""Reading bits and levels of a dense trace, and the random traces that tests use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import constant_trace, random_trace

from recguide.traces.checks import check_trace
from recguide.traces.dense import is_risky, matched_lens, num_draft_tokens, unpack_bits


@given(masks=st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_matched_tokens_are_the_ones_before_the_first_zero(masks: list[int]) -> None:
    wanted = [len(bin(mask + (1 << 33))) - len(bin(mask + (1 << 33)).rstrip("1")) for mask in masks]
    assert matched_lens(np.array(masks, np.uint32)).tolist() == wanted


def test_a_block_of_32_matches_with_every_bit() -> None:
    assert matched_lens(np.array([2**32 - 1, 2**31 - 1, 0], np.uint32)).tolist() == [32, 31, 0]


@given(mask=st.integers(0, 2**32 - 1), num_bits=st.integers(1, 32))
def test_bits_unpack_lowest_first(mask: int, num_bits: int) -> None:
    bits = unpack_bits(np.array([mask], np.uint32), num_bits)
    assert bits.tolist() == [[bool(mask >> i & 1) for i in range(num_bits)]]


def test_a_seed_takes_one_of_the_block() -> None:
    assert (num_draft_tokens("seeded", 16), num_draft_tokens("continuation", 16)) == (15, 16)


def test_a_margin_on_the_threshold_is_not_risky() -> None:
    assert is_risky(np.array([0, 127, 128, 255], np.uint8), 0.5).tolist() == [True, True, False, False]


@pytest.mark.parametrize("delta", [0, 1, -0.5, 0.3, 1 / 512, float("nan"), float("inf")])
def test_a_threshold_between_two_steps_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="allowed: multiples of 1/256"):
        is_risky(np.zeros(1, np.uint8), delta)


@pytest.mark.parametrize(("ease", "matched"), [(0.0, 0), (1.0, 15)])
def test_the_ends_of_ease_accept_nothing_and_everything(ease: float, matched: int) -> None:
    trace = random_trace(1, 3, min_output_tokens=40, ease=ease)
    for request in trace.requests:
        inner = matched_lens(request.drafts["seeded", 16].match)[:20]
        assert set(inner.tolist()) == {matched}


@pytest.mark.parametrize("accept_len", [1, 4, 5, 32, 40])
def test_a_constant_trace_keeps_every_promise(accept_len: int) -> None:
    trace = constant_trace(accept_len)
    check_trace(trace)
    for block_size in trace.provenance.block_sizes:
        matched = matched_lens(trace.requests[0].drafts["seeded", block_size].match)
        assert set(matched.tolist()) == {min(accept_len, block_size) - 1}
