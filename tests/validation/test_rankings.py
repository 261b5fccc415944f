"""Rankings with ties, areas below frontiers, and crossovers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from recguide.validation.rankings import area_error, crossing, ranking

speeds = st.lists(st.integers(1, 10**6), min_size=2, max_size=7, unique=True)


@given(measured=speeds, data=st.data())
def test_without_spread_tau_is_kendalls(measured, data) -> None:
    simulated = data.draw(st.permutations(measured))
    names = [str(i) for i in range(len(measured))]
    found = ranking(dict(zip(names, simulated, strict=True)), {n: [m] for n, m in zip(names, measured, strict=True)})
    assert found.tau == pytest.approx(kendalltau(simulated, measured).statistic)
    assert found.tau_b == pytest.approx(found.tau)
    assert (found.pairs, found.ties) == (len(names) * (len(names) - 1) // 2, 0)


@given(measured=speeds, scale=st.floats(0.1, 10))
def test_the_measured_order_itself_has_tau_1(measured, scale) -> None:
    names = [str(i) for i in range(len(measured))]
    repeats = {name: [value * 0.9, value * 1.1] for name, value in zip(names, measured, strict=True)}
    found = ranking({name: value * scale for name, value in zip(names, measured, strict=True)}, repeats)
    assert found.tau in (1.0, None)
    assert (found.tau is None) == (found.pairs == found.ties)
    assert found.disordered == ()


def test_a_pair_closer_than_the_spread_of_its_repeats_is_a_tie() -> None:
    measured = {"a": [100.0, 102.0, 101.0], "b": [100.0, 100.0, 100.5], "c": [50.0, 50.0, 50.0]}
    found = ranking({"a": 90.0, "b": 95.0, "c": 40.0}, measured)
    assert (found.tau, found.pairs, found.ties) == (1.0, 3, 1)
    assert found.tau_b == pytest.approx(1 / 3)


def test_a_pair_further_apart_than_that_is_none_and_a_wrong_order_is_named() -> None:
    measured = {"a": [104.0, 103.0], "b": [100.0, 101.0], "c": [50.0, 51.0]}
    found = ranking({"a": 90.0, "b": 95.0, "c": 40.0}, measured)
    assert (found.tau, found.ties) == (pytest.approx(1 / 3), 0)
    assert found.disordered == (("a", "b"),)


def test_a_tie_in_the_simulation_alone_counts_as_neither() -> None:
    found = ranking({"a": 1.0, "b": 1.0}, {"a": [2.0], "b": [1.0]})
    assert (found.tau, found.disordered) == (0.0, ())


def test_ties_are_no_equivalence_and_the_outer_pair_still_counts() -> None:
    measured = {"a": [10.0, 12.0], "b": [12.0, 14.0], "c": [14.0, 16.0]}
    found = ranking({"a": 1.0, "b": 2.0, "c": 3.0}, measured)
    assert (found.tau, found.ties) == (1.0, 2)


def test_areas_by_hand() -> None:
    # measured: 10 x 100 and 5 x (160 - 100); simulated: 10 x 110 and 5 x (160 - 110)
    assert area_error([(10, 110), (5, 160)], [(10, 100), (5, 160)]) == (1350.0, 1300.0, pytest.approx(50 / 1300))
    assert area_error([(1, 1)], [(0, 0)]) == (1.0, 0.0, None)


def test_crossovers_by_hand() -> None:
    measured = [(8, 2.0), (16, 1.5), (32, 0.5)]
    late = crossing([(8, 2.0), (32, 1.5), (64, 0.5)], measured)
    assert late.octaves == pytest.approx(1.0)
    assert late.agrees
    never = crossing([(8, 2.0), (32, 1.5)], measured)
    assert (never.simulated, never.octaves, never.agrees) == (None, None, False)
    assert crossing([(8, 2.0)], [(8, 1.0)]).agrees
