import numpy as np
import pytest

from recguide.sim.costs import read_profile, resolve_profile
from recguide.sim.paper import published
from recguide.sim.paper.acceptance import model_name
from recguide.sim.paper.b200 import at_the_edge, forwards_alone, host_ms, profile_of
from recguide.sim.paper.published import BENCHMARKS, BLOCK_SIZES, FORWARD_MS, LOADS, MODELS

WEIGHTS = np.array([list(BENCHMARKS.values()).count(category) for category in published.CATEGORIES]) / len(BENCHMARKS)


@pytest.mark.parametrize("model", MODELS)
def test_the_papers_means_are_those_of_its_own_figures(model: str) -> None:
    for method, taus in published.TABLE2_TAU[model].items():
        assert np.mean(taus) == pytest.approx(published.OVERALL_TAU[model][method], abs=0.02)
        speeds = published.TABLE2_SPEEDUP[model][method]
        assert np.mean(speeds) == pytest.approx(published.OVERALL_SPEEDUP[model][method], abs=0.02)
    shares = np.array([published.TABLE3[model][category] for category in published.CATEGORIES])
    assert WEIGHTS @ shares == pytest.approx(np.array(published.TABLE3[model]["overall"]), abs=0.05)
    assert shares[:, [0, 2, 4]].sum(axis=1) == pytest.approx(100.0, abs=0.03)
    for load, by_category in published.TABLE4[model].items():
        sizes = np.array([by_category[category] for category in published.CATEGORIES])
        assert sizes.sum(axis=1) == pytest.approx(100.0, abs=0.03)
        assert WEIGHTS @ sizes == pytest.approx(np.array(published.TABLE4_OVERALL[model][load]), abs=0.02)


def test_figure_2a_is_where_table_1_is_in_balance() -> None:
    table, shares = np.array(published.TABLE1) / 100, np.array(published.FIGURE2A)
    assert table.sum(axis=1) == pytest.approx(1.0, abs=2e-4)
    assert shares @ table == pytest.approx(shares, abs=0.1)


@pytest.mark.parametrize("model", MODELS)
def test_the_shipped_profile_is_made_of_the_published_times(model: str) -> None:
    shipped, made = read_profile(resolve_profile(f"{model_name(model)}-b200")), profile_of(model)
    assert list(shipped.rows) == list(made.rows)
    assert {key: shipped.header[key] for key in made.header} == made.header
    assert "inferred" in shipped.header
    costs = shipped.costs()
    for size in BLOCK_SIZES:
        for count, ms in zip(LOADS, FORWARD_MS[model][size], strict=True):
            assert costs.forward_s("verify", count, count * size, 700 * count) == pytest.approx(ms * 1e-3, rel=1e-4)
            seconds = costs.round_curve(size, count)(700 * count)
            one, more = host_ms(model)
            assert seconds == pytest.approx((2 * ms + one + more * (count - 1)) * 1e-3, rel=1e-4)


def test_what_is_inferred_has_a_band_and_what_is_published_has_none() -> None:
    for row in profile_of("8b").rows:
        if row.kind in ("verify", "draft"):
            assert row.spread_us == 0
        if row.kind in ("rows", "quadratic", "prefill"):
            assert row.spread_us > 0
    profile = profile_of("8b")
    cheap, dear = (at_the_edge(profile, side).costs() for side in (-1, 1))
    middle = profile.costs()
    for kind, tokens in (("rows", 64), ("quadratic", 272)):
        times = [costs.forward_s(kind, 1, tokens, 100) for costs in (cheap, middle, dear)]
        assert times == sorted(times)
        assert times[0] < times[2]
    assert cheap.forward_s("verify", 4, 64, 0) == dear.forward_s("verify", 4, 64, 0)


def test_linear_self_speculation_at_one_request_has_the_throughput_it_was_inferred_from() -> None:
    for model in MODELS:
        seconds = profile_of(model).costs().round_curve(16, 1)(500)
        found = published.OVERALL_TAU[model]["LinearSS"] / seconds
        assert found == pytest.approx(published.TABLE5["LinearSS"][model], rel=1e-3)
        assert forwards_alone(model).costs().round_curve(16, 1)(0) == pytest.approx(2e-3 * FORWARD_MS[model][16][0])


def test_a_bucket_of_a_third_of_the_requests_takes_most_of_the_time_of_all() -> None:
    """The shares that ``reasons`` and docs/reproduce.md tell of 8B at B = 16."""

    def ms(size: int, count: float) -> float:
        return float(np.interp(count, LOADS, FORWARD_MS["8b"][size]))

    for count, share, three in ((8, 0.74, 2.2), (32, 0.71, 2.2), (128, 0.44, 1.4)):
        assert ms(16, count / 3) / ms(16, count) == pytest.approx(share, abs=0.005)
        assert sum(ms(size, count / 3) for size in BLOCK_SIZES) / ms(16, count) == pytest.approx(three, abs=0.05)
