import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import COSTS, Setup, setups
from strategies import random_trace

from recguide.sim.arrivals import Clients
from recguide.sim.batching import BATCHINGS
from recguide.sim.figures import Figures
from recguide.sim.loads import Drawn, Load, groups_of
from recguide.sim.metrics import metrics_of
from recguide.sim.policies import fixed
from recguide.sim.replay import stream
from recguide.sim.rounds import rounds_of
from recguide.sim.scenario import Scenario
from recguide.sim.sketch import ERROR, Sketch
from recguide.sim.sweep import sweep
from recguide.sim.workloads import Workload

FIGURES = Figures(percentiles=(50.0, 90.0), goodput={"ttft": 5.0, "e2el": 100.0})
ROUGH = ("median_", "p50_", "p90_")


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=200), st.sampled_from([0.0, 50.0, 90.0, 100.0]))
def test_a_percentile_of_a_sketch_is_a_number_of_that_rank_within_its_error(values: list[float], rank: float) -> None:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    found = sketch.percentile(rank)
    assert found is not None
    assert found == pytest.approx(np.percentile(values, rank, method="lower"), rel=2 * ERROR)
    assert sketch.mean == pytest.approx(np.mean(values))
    assert sketch.std == pytest.approx(np.std(values), abs=1e-4 * max(values))


def test_an_empty_sketch_has_no_figures_and_zeros_are_zero() -> None:
    sketch = Sketch()
    assert (sketch.mean, sketch.std, sketch.percentile(50)) == (None, None, None)
    sketch.add(0.0)
    assert sketch.percentile(99) == 0.0


@settings(max_examples=60)
@given(setups())
def test_a_stream_has_the_figures_of_the_whole_run(setup: Setup) -> None:
    setup = replace(setup, resized=True)
    whole: dict[str, Any] = metrics_of(setup.run(), setup.rounds, FIGURES)
    sums = stream(
        setup.rounds,
        COSTS,
        setup.make_policy(COSTS),
        Clients(setup.arrivals, setup.cap),
        FIGURES,
        batching=BATCHINGS[setup.batching],
        limits=setup.limits,
        closed=setup.closed,
    )
    for name, value in sums.items():
        if value is None or name.startswith(ROUGH):
            assert (value is None) == (whole[name] is None), name
        else:
            assert value == pytest.approx(whole[name], rel=1e-6, abs=1e-4), name


def lines(rows: int) -> Iterator[str]:
    yield "arrival_s,input_tokens,output_tokens\n"
    for row in islice(count(), rows):
        yield f"{row / 50},{20 + row % 50},{1 + row % 40}\n"


def peak(folder: Path, rows: int) -> int:
    with (folder / "arrivals.csv").open("w") as file:
        file.writelines(lines(rows))
    trace = random_trace(0, 10)
    rounds, groups = rounds_of(trace), groups_of(trace)
    load = Load((), workload=Workload(folder / "arrivals.csv"))
    tracemalloc.start()
    figures = stream(rounds, COSTS, fixed(8), Clients(load.arrivals(rounds, groups, Drawn()), None), Figures())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert figures["completed"] == rows
    return most


def test_memory_stays_flat_while_a_file_ten_times_as_long_streams(tmp_path: Path) -> None:
    peak(tmp_path, 100)
    short, long = peak(tmp_path, 500), peak(tmp_path, 5000)
    # less than one number for each further request; what grows are caches of the shapes that were met
    assert long - short < 8 * 4500


def test_a_streamed_sweep_has_the_throughputs_of_a_kept_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(lines(60)))
    load, trace = Load((), workload=Workload(tmp_path / "a.csv")), random_trace(0, 10)
    kept, streamed = (
        sweep(trace, COSTS, ["fixed:8", "overlap:B=8"], [0, 3], scenario=Scenario(load, stream=flag))
        for flag in (False, True)
    )
    for one, other in zip(kept, streamed, strict=True):
        assert list(one)[:2] == list(other)[:2]
        assert set(one) == set(other)
        for name in ("policy", "max_concurrency", "completed", "output_throughput", "accept_length", "num_rounds"):
            assert other[name] == (pytest.approx(one[name]) if isinstance(one[name], float) else one[name])
