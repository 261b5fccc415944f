import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.sim.pareto import Spot, crossover, hypervolume, undominated

SPOTS = st.lists(st.tuples(st.integers(0, 6).map(float), st.integers(0, 6).map(float)), max_size=12)


def beats(one: Spot, other: Spot) -> bool:
    return one[0] >= other[0] and one[1] >= other[1] and one != other


@given(SPOTS)
def test_a_spot_is_undominated_when_no_other_is_as_good_in_both_and_better_in_one(spots: list[Spot]) -> None:
    assert undominated(spots) == [not any(beats(other, spot) for other in spots) for spot in spots]


def test_equal_spots_are_both_kept_and_ties_in_one_figure_are_beaten() -> None:
    assert undominated([(2.0, 1.0), (2.0, 1.0), (1.0, 2.0)]) == [True, True, True]
    assert undominated([(2.0, 1.0), (1.0, 1.0), (2.0, 0.5)]) == [True, False, False]


@given(SPOTS)
def test_the_hypervolume_counts_the_cells_below_any_spot(spots: list[Spot]) -> None:
    cells = sum(any(x > i and y > j for x, y in spots) for i in range(6) for j in range(6))
    assert hypervolume(spots) == cells


@given(SPOTS)
def test_beaten_spots_add_no_area(spots: list[Spot]) -> None:
    kept = [spot for spot, stands in zip(spots, undominated(spots), strict=True) if stands]
    assert hypervolume(kept) == hypervolume(spots)


def test_the_crossover_lies_on_the_line_between_the_last_fast_and_the_first_slow_concurrency() -> None:
    assert crossover([(4, 1.5), (1, 2.0), (16, 0.5)]) == pytest.approx(8.0)
    assert crossover([(1, 2.0), (2, 1.0)]) is None
    assert crossover([(2, 0.9), (8, 0.8)]) == 2.0
    # slow in between does not count when it ends fast
    assert crossover([(1, 2.0), (2, 0.5), (4, 1.1)]) is None
    assert crossover([(1, 2.0), (2, 0.5), (4, 1.5), (8, 1.0), (16, 0.0)]) == pytest.approx(8.0)
