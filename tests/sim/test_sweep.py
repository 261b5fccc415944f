from collections.abc import Sequence
from pathlib import Path

import numpy as np
import profiles
import pyarrow.parquet as pq
import pytest
from strategies import constant_trace, random_trace

from recguide.sim.costs import constant_costs, linear_costs, read_profile
from recguide.sim.figures import Figures
from recguide.sim.loads import Load
from recguide.sim.pairs import Paid, speedup_interval
from recguide.sim.results import write_results
from recguide.sim.scenario import Scenario
from recguide.sim.store import Store, labels_of
from recguide.sim.sweep import Point, frontier, only_datasets, serving_order, sweep, warnings_of

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
NAMES = ["fixed:8", "recipe", "oracle"]


@pytest.fixture(scope="module")
def points() -> list[Point]:
    return sweep(random_trace(0, 12), COSTS, NAMES, [2, 1], seed=3)


def column(points: Sequence[Point], name: str) -> list[object]:
    return [point[name] for point in points]


def test_there_is_a_point_for_every_policy_and_concurrency_and_ar_comes_first(points: list[Point]) -> None:
    assert column(points, "policy") == [name for name in ["ar", *NAMES] for _ in range(2)]
    assert column(points, "max_concurrency") == [1, 2] * 4
    assert column(points, "speedup")[:2] == [1.0, 1.0]


def test_processes_do_not_change_the_results(points: list[Point], tmp_path: Path) -> None:
    trace = random_trace(0, 12)
    assert sweep(trace, COSTS, NAMES, [2, 1], seed=3, jobs=2) == points
    for folder, result in (("one", points), ("two", sweep(trace, COSTS, NAMES, [1, 2], seed=3, jobs=2))):
        write_results(tmp_path / folder, result, {"trace": "random"}, "a title")
    for name in ("results.json", "results.parquet", "frontier.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_parquet_holds_every_figure_of_every_point(points: list[Point], tmp_path: Path) -> None:
    plot = write_results(tmp_path / "new" / "folder", points, {"trace": "random"}, "a title")
    table = pq.read_table(plot.with_name("results.parquet"))
    assert table.to_pylist() == points
    assert table.schema.metadata[b"recguide"] == b'{"trace": "random"}'
    assert sorted(path.name for path in plot.parent.iterdir()) == ["frontier.png", "results.json", "results.parquet"]


def test_all_policies_serve_the_same_requests(points: list[Point]) -> None:
    assert len({(point["num_prompts"], point["total_output_tokens"]) for point in points}) == 1


def test_the_seed_decides_the_order_and_more_prompts_repeat_the_recorded_ones() -> None:
    assert sorted(serving_order(9, None, 1)) == list(range(9))
    assert serving_order(9, None, 1) == serving_order(9, 9, 1) != serving_order(9, 9, 2)
    assert serving_order(9, 4, 1) == serving_order(9, 9, 1)[:4]
    longer = serving_order(9, 20, 1)
    assert longer[:9] == serving_order(9, 9, 1)
    assert {longer.count(row) for row in range(9)} == {2, 3}


def test_a_constant_acceptance_length_gives_the_closed_form_speedup() -> None:
    costs = constant_costs(prefill=0.0, decode=1.0, draft=1.0, verify=1.0)
    points = sweep(constant_trace(8, 8, output_tokens=81), costs, ["fixed:8"], [4])
    assert points[1]["speedup"] == pytest.approx(8 / 2)
    assert frontier(points[1])[1] == pytest.approx(4 * frontier(points[1])[0])


def test_every_policy_is_swept_at_every_rate_and_compared_with_ar_at_the_same_one(tmp_path: Path) -> None:
    trace, profile = random_trace(0, 12), read_profile(profiles.write(tmp_path / "profile.csv"))
    scenario = Scenario(Load((), rate=1.0))
    stored = [Store(tmp_path, "inputs", labels_of(trace)) for _ in range(2)]
    points, again = (
        sweep(trace, profile.costs(), ["fixed:8"], [0], rates=[50.0, 5.0], scenario=scenario, store=store)
        for store in stored
    )
    assert column(points, "request_rate") == [5.0, 50.0] * 2
    assert column(points, "speedup")[:2] == [1.0, 1.0]
    first, second, *others = column(points, "mean_e2el_ms")
    assert float(str(second)) > float(str(first))
    assert float(str(others[1])) > float(str(others[0]))
    assert again == points
    assert stored[1].reused == 4
    alone = sweep(trace, profile.costs(), ["fixed:8"], [0], scenario=Scenario(Load((), rate=5.0)))
    assert alone == [points[0], points[2]]
    names = sorted(path.name for path in (tmp_path / "requests").iterdir())
    assert names == [f"{policy}-c0-r{rate}.parquet" for policy in ("ar", "fixed_8") for rate in (5.0, 50.0)]


def test_a_speedup_has_a_paired_interval_and_that_of_ar_none_to_speak_of() -> None:
    scenario = Scenario(figures=Figures(resamples=200))
    points = sweep(random_trace(0, 40, min_output_tokens=30), COSTS, ["fixed:8", "oracle"], [4], scenario=scenario)
    for point in points:
        low, high, speedup = (float(str(point[f"speedup{end}"])) for end in ("_ci_low", "_ci_high", ""))
        assert low <= speedup <= high
        assert (low == high) == (point["policy"] == "ar")


def test_pairs_are_surer_than_their_two_sides_apart() -> None:
    """Long requests are slow under both policies; what they have in common does not blur the ratio."""
    rng = np.random.default_rng(0)
    tokens, slow = rng.integers(50, 500, 200).astype(float), rng.uniform(0.5, 2.0, 200)
    base, figures = Paid(tokens, 20 * tokens * slow), Figures(resamples=500)
    paired = speedup_interval(2.0, Paid(tokens, 10 * tokens * slow * rng.uniform(0.98, 1.02, 200)), base, figures)
    shuffled = rng.permutation(200)
    apart = speedup_interval(2.0, Paid(tokens[shuffled], (10 * tokens * slow)[shuffled]), base, figures)
    assert paired is not None
    assert apart is not None
    assert paired[1] - paired[0] < (apart[1] - apart[0]) / 5
    assert speedup_interval(2.0, Paid(tokens, 0 * tokens), base, figures) is None


def test_policies_are_checked_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="policy 'fixed:5': block size 5 was not recorded; recorded: 4, 8, 16, 32"):
        sweep(random_trace(0), COSTS, ["ar", "fixed:5"], [1])


def test_only_the_named_datasets_are_served() -> None:
    trace = random_trace(0, 20)
    kept = only_datasets(trace, ["mbpp"])
    assert 0 < len(kept.requests) < 20
    assert {request.dataset for request in kept.requests} == {"mbpp"}
    assert only_datasets(trace, []).requests == trace.requests
    with pytest.raises(ValueError, match="dataset 'gpqa': not in the trace; there are: gsm8k, mbpp, mt-bench"):
        only_datasets(trace, ["mbpp", "gpqa"])


def test_a_reader_is_warned_of_few_and_of_repeated_requests() -> None:
    points = sweep(random_trace(0, 6), COSTS, [], [1, 2, 8], num_prompts=7)
    told = "\n".join(warnings_of(points, 6))
    assert "7 requests are served from 6 recorded ones" in told
    assert "7 requests are fewer than 4 for each place at max-concurrency 2, 8" in told
    assert "max-concurrency 8 is never reached by 7 requests" in told
    assert warnings_of(sweep(random_trace(0, 6), COSTS, [], [1]), 6) == []
    little, much = ({**points[0], "extrapolated_share": share} for share in (0.04, 0.06))
    assert warnings_of([little], 7) == []
    assert (
        "1 of 2 points spend more than 5% of their time outside the profiled grid" in warnings_of([little, much], 7)[0]
    )
