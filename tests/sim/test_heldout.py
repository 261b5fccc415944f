import json

import numpy as np
import pytest
from scipy.stats import ttest_1samp
from strategies import random_trace

from recguide.sim.costs import linear_costs
from recguide.sim.fitting import fit_in_sample
from recguide.sim.paper.heldout import COMPARED, READINGS, Rates, beaten_everywhere, gains_of, held_out, rates_of
from recguide.sim.paper.heldout_page import BEATS, claims, figure, html, plain, table_of
from recguide.traces.dense import DenseTrace

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
LOADS = (1, 8)


@pytest.fixture(scope="module")
def trace() -> DenseTrace:
    return random_trace(4, 30, min_output_tokens=60, max_output_tokens=90)


@pytest.fixture(scope="module")
def rates(trace: DenseTrace) -> dict[str, Rates]:
    return held_out(trace, COSTS, LOADS, jobs=1)


def test_every_dataset_is_served_by_every_way_at_every_load(trace: DenseTrace, rates: dict[str, Rates]) -> None:
    assert set(rates) == {request.dataset for request in trace.requests}
    ways = {way for pair in COMPARED.values() for way in pair}
    for found in rates.values():
        assert ways <= {way for way, _ in found}
        assert {load for _, load in found} == set(LOADS)
        assert all(rate > 0 for rate in found.values())
        assert found["in all", 1] == found["full", 1] == found["overlap", 1]
        assert found["in all", 8] == found["buckets", 8]
        assert found["full", 8] == found["full buckets", 8]
        for load in LOADS:
            assert found["paper", load] == max(found[way, load] for way in READINGS)
        assert found["best plain", 8] == max(found["best fixed", 8], found["overlap", 8])


def test_policies_are_fitted_to_other_datasets_alone(trace: DenseTrace, rates: dict[str, Rates]) -> None:
    name = next(iter(rates))
    assert rates_of(trace, COSTS, name, LOADS) == rates[name]
    others = [request for request in trace.requests if request.dataset != name]
    assert others
    fitted = fit_in_sample(DenseTrace(trace.provenance, tuple(others)), COSTS, concurrencies=LOADS)
    assert name not in fitted.provenance["trace"]["datasets"]


def test_intervals_are_those_of_students_t_over_datasets() -> None:
    rates: dict[str, Rates] = {
        str(i): {(way, 1): value for pair in COMPARED.values() for way, value in zip(pair, (ratio, 1.0), strict=True)}
        | {("joint", 1): ratio, **{(way, 1): 1.0 for way in READINGS}}
        for i, ratio in enumerate((1.1, 1.2, 1.05, 1.3))
    }
    gain = gains_of(rates)["joint over the paper's rule at its best"][0]
    logs = np.log([found["joint", 1] / found["paper", 1] for found in rates.values()])
    wanted = ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert (gain.low, gain.high) == pytest.approx((np.expm1(wanted.low), np.expm1(wanted.high)))
    assert gain.low < gain.gain < gain.high
    assert beaten_everywhere([gain]) == (gain.low > 0)


def test_gains_are_told_on_the_page_on_the_screen_and_as_data(rates: dict[str, Rates]) -> None:
    found = gains_of(rates)
    text = html(found, "tiny", "heldout")
    for what in COMPARED:
        assert what.replace("'", "&#x27;") in text
    table = table_of(found, "tiny")
    assert (table.row_count, len(table.columns)) == (len(COMPARED), 1 + len(LOADS))
    assert len(figure(found)["data"]) == len(COMPARED)
    assert json.loads(json.dumps(plain(found), allow_nan=False)).keys() == found.keys()
    assert len(claims(found)) == len(BEATS)


def test_one_dataset_alone_has_nothing_to_be_fitted_to(trace: DenseTrace) -> None:
    alone = tuple(request for request in trace.requests if request.dataset == "gsm8k")
    assert held_out(DenseTrace(trace.provenance, alone), COSTS, LOADS) == {}
