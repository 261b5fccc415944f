import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.sim.pricing import Cells, achieved, candidates, decide, search


def cells(seed: int, rows: int, options: int, truthful: bool = False) -> tuple[Cells, np.ndarray]:
    rng = np.random.default_rng(seed)
    value = np.cumsum(rng.uniform(0, 5, (rows, options)), axis=1) + 1
    tokens = value if truthful else value * rng.uniform(0.5, 1.5, value.shape)
    return Cells(rng.random(rows) + 0.01, value, tokens), np.cumsum(rng.uniform(0.1, 1, options))


tables = st.builds(cells, seed=st.integers(0, 9999), rows=st.integers(1, 5), options=st.integers(1, 3))
truthful = st.builds(cells, st.integers(0, 9999), st.integers(1, 4), st.integers(1, 3), st.just(True))


@given(tables, st.floats(0, 100))
def test_the_search_is_never_worse_than_any_price_on_its_grid_or_off_it(table: tuple, other: float) -> None:
    of, cost = table
    best = achieved(of, cost, search(of, cost))
    for rho in (*candidates(of.value, cost).tolist(), other):
        assert best >= achieved(of, cost, rho) - 1e-6


@given(tables)
def test_no_price_between_two_changes_of_a_decision_is_better(table: tuple) -> None:
    of, cost = table
    pairs = itertools.combinations(range(len(cost)), 2)
    changes = [((of.value[:, j] - of.value[:, i]) / (cost[j] - cost[i])).tolist() for i, j in pairs]
    ends = [0.0, *sorted(price for prices in changes for price in prices if price > 0)]
    best = achieved(of, cost, search(of, cost))
    for low, high in itertools.pairwise([*ends, ends[-1] + 2]):
        assert best >= achieved(of, cost, (low + high) / 2) - 1e-6


@given(truthful)
def test_where_the_tables_are_true_no_choice_of_block_sizes_achieves_more(table: tuple) -> None:
    of, cost = table
    rows = np.arange(len(of.weight))
    ratios = [
        (of.weight @ of.tokens[rows, list(choice)]) / (of.weight @ cost[list(choice)])
        for choice in itertools.product(range(len(cost)), repeat=len(rows))
    ]
    assert achieved(of, cost, search(of, cost)) == pytest.approx(max(ratios))


@given(tables, st.lists(st.floats(0, 50), min_size=2, max_size=2))
def test_dearer_compute_never_lengthens_a_block(table: tuple, prices: list[float]) -> None:
    of, cost = table
    cheap, dear = sorted(prices)
    assert (decide(of.value, cost, dear) <= decide(of.value, cost, cheap)).all()
