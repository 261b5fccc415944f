"""Sizes that forwards are filled up to, and which of them move to a larger one that is faster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.sim.sizes import LEAST_GAIN, REACH, filled_up, moved_in, moved_sizes, moved_text, sizes_up_to

SIZES = sizes_up_to(2048)
times = st.lists(st.floats(1e-6, 1, allow_subnormal=False), min_size=len(SIZES), max_size=len(SIZES))
noisy = st.lists(st.floats(1, 1 / (1 - LEAST_GAIN) - 1e-9), min_size=len(SIZES), max_size=len(SIZES))
EDGE = 1 - 1e-12
"""Of what rounding leaves."""


@given(st.integers(1, 1 << 20))
def test_sizes_have_room_and_are_few(tokens) -> None:
    size = filled_up(tokens)
    assert tokens <= size <= 1.125 * tokens
    assert filled_up(size) == size


def test_all_sizes_are_listed() -> None:
    assert sorted({filled_up(tokens) for tokens in range(1, 2049)}) == SIZES
    assert SIZES[13:20] == [14, 15, 16, 18, 20, 22, 24]
    assert sizes_up_to(1) == [1]


@given(times)
def test_a_size_moves_to_a_larger_one_that_is_faster_and_stays(seconds) -> None:
    moved, time_of = moved_sizes(SIZES, seconds), dict(zip(SIZES, seconds, strict=True))
    for size, to in moved.items():
        assert size < to
        assert to in time_of
        assert time_of[to] <= (1 - LEAST_GAIN) * time_of[size]
        assert to not in moved
    for size in SIZES:
        # whatever could have saved more than noise, has
        within = [time_of[to] for to in SIZES if size <= to <= REACH * size]
        to = filled_up(size, moved)
        assert time_of[to] * (1 - LEAST_GAIN) * EDGE <= min(within)
        assert filled_up(to, moved) == to


@given(times, st.integers(1, 2048))
def test_forwards_have_the_same_size_whichever_of_its_tokens_are_nobodys(seconds, tokens) -> None:
    moved = moved_sizes(SIZES, seconds)
    assert filled_up(tokens, moved) == filled_up(filled_up(tokens), moved) >= tokens


@given(noisy)
def test_noise_moves_nothing(seconds) -> None:
    assert moved_sizes(SIZES, seconds) == {}


@given(times)
def test_where_larger_sizes_take_longer_nothing_moves(seconds) -> None:
    assert moved_sizes(SIZES, sorted(seconds)) == {}


def test_the_sizes_that_were_slow_on_an_h200_move() -> None:
    found = {416: 12.7, 448: 17.2, 480: 13.5, 512: 13.6, 576: 18.0, 640: 14.5, 704: 15.5}
    assert moved_sizes(list(found), list(found.values())) == {448: 480, 576: 640}
    # far away is not the place to go
    assert moved_sizes([100, 151], [2.0, 1.0]) == {}
    assert moved_sizes([100, 140, 200], [3.0, 2.0, 1.0]) == {100: 200, 140: 200}


@given(times)
def test_files_say_which_sizes_move(seconds) -> None:
    moved = moved_sizes(SIZES, seconds)
    assert moved_in(moved_text(moved), "p.csv: moved") == moved
    assert moved_text({}) == "none"
    assert moved_text({576: 640, 448: 480}) == "448>480 576>640"


@pytest.mark.parametrize(
    "text",
    ["", "448", "448>449", "447>480", "480>448", "448>448", "448>480 448>512", "448>480,576>640", " ", "448>480  none",
     "0>1", "448>480 480>512", "9" * 99 + ">1", "none 448>480"],
)  # fmt: skip
def test_what_is_no_such_text_is_refused(text) -> None:
    with pytest.raises(ValueError, match=r"p\.csv: moved: .* allowed: "):
        moved_in(text, "p.csv: moved")
