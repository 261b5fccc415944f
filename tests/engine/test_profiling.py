"""A profile measures the steps of the serving engine, at every place of its grid."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model

from recguide.engine.places import LAYOUTS, Grid, Place
from recguide.engine.profile_command import LAYOUTS as DEFAULT
from recguide.engine.profiling import Effort, measure, rows, station_for, summary
from recguide.engine.shapes import SHAPES
from recguide.engine.visits import visit
from recguide.sim.costs import read_profile

TINY_GRID = Grid((1, 2), (8, 16), (4, 8), (8,), layout_requests=1)
PLANNED = {"host-adaptive", "host-allocation"}
KINDS = {"decode", "draft", "verify", "host", "rows", "host-rows", "quadratic", "host-quadratic", "prefill", *PLANNED}


def silent(text: str) -> None:
    pass


@pytest.fixture(scope="module")
def station():
    return station_for(tiny_model(2, 0).decoder, TINY_GRID)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (Place("linear", 2, 1, 16), {("decode", 2, 2, 32), ("host", 2, 2, 0)}),
        (Place("linear", 2, 4, 16), {("draft", 2, 8, 32), ("verify", 2, 8, 32), ("host", 2, 8, 0)}),
        (Place("rows", 1, 16, 8), {("host-rows", 1, 16, 0)}),
        (Place("rows", 1, 48, 8), {("rows", 1, 48, 8), ("host-rows", 1, 48, 0)}),
        (Place("rows", 1, 64, 8), {("rows", 1, 64, 8), ("host-rows", 1, 64, 0)}),
        (Place("rows", 1, 128, 8), {("rows", 1, 128, 8), ("host-rows", 1, 128, 0)}),
        (Place("quadratic", 1, 272, 8), {("quadratic", 1, 272, 8), ("host-quadratic", 1, 272, 0)}),
        (Place("adaptive", 2, 4, 16), {("host-adaptive", 2, 8, 0)}),
        (Place("allocation", 2, 6, 16), {("host-allocation", 2, 12, 0)}),
        (Place("prefill", 1, 8, 0), {("prefill", 1, 8, 0)}),
        (Place("prefill", 2, 8, 0), {("prefill", 2, 8, 0)}),
    ],
)
def test_a_visit_tells_of_the_rows_that_its_steps_have(station, place, told):
    found = visit(station, place, 0.0, warm_s=1e-3)
    assert set(found) == told
    assert all(0 <= seconds < 60 for seconds in found.values())
    assert not station.in_flight
    for step in station.log.log.steps[-3:]:
        assert step.requests == place.requests


@pytest.mark.parametrize(
    ("place", "tokens"),
    [
        (Place("rows", 1, 48, 8), {0, 48}),
        (Place("linear", 1, 4, 8), {4}),
        (Place("adaptive", 1, 4, 8, 1), {4}),
        (Place("quadratic", 1, 272, 8), {272}),
    ],
)
def test_a_place_is_warmed_up_with_every_kind_of_step_that_it_tells_of(place, tokens):
    fresh, ran = station_for(tiny_model(2, 0).decoder, TINY_GRID), []
    turn_to = fresh.turn_to

    def watched(*what):
        turn_to(*what)
        run, way = fresh.way.run, fresh.way
        way.run = lambda planned: ran.append((fresh.steps, planned.work.query_tokens)) or run(planned)

    fresh.turn_to = watched
    visit(fresh, place, 0.0)
    assert {count for steps, count in ran if steps == ran[0][0]} >= tokens


def test_every_pass_after_the_first_gives_a_timing_of_every_row(station):
    passes = [passed.timings for passed in measure(station, TINY_GRID, Effort(3, 0.0), silent)]
    assert len(passes) == 2
    linear, rows_of_one, quadratic, planned = 2 * 2 * 5 + 2 * 3, 2 * 4 + 5, 2 + 1, 2 + 1
    for timings in passes:
        assert {kind for kind, *_ in timings} == KINDS
        assert len(timings) == linear + rows_of_one + quadratic + planned + 1
    assert [timings["decode", 1, 1, 8].repeats for timings in passes] == [2, 3]
    (only,) = measure(station, Grid((1,), (8,), (4,), (8,), 0), Effort(1, 0.0), silent)
    assert {kind for kind, *_ in only.timings} == {"decode", "draft", "verify", "host", "host-adaptive", "prefill"}


def test_time_that_is_up_cuts_all_but_two_passes(station):
    (passed,) = measure(station, Grid((1,), (8,), (4,), (8,), 0), Effort(9, 0.0, seconds=0.0), silent)
    assert passed.timings["decode", 1, 1, 8].repeats == 2


def test_the_grid_has_every_place_once():
    grid = Grid((1, 2, 16), (8, 64), (4, 8), (32,), layout_requests=2)
    places = list(grid.places())
    assert len(places) == len(set(places)) == 3 * 2 * 3 + 2 * 2 * 6 + 3 + 2 * 2 + 1
    assert {place.requests for place in places if place.method in ("rows", "quadratic")} == {1, 2}
    assert not any(place.method == "quadratic" for place in Grid(layouts=("rows",)).places())
    assert {place.method for place in Grid(layouts=("rows", "quadratic")).places()} == {
        *LAYOUTS[:2],
        "linear",
        "prefill",
    }


def test_what_is_chosen_by_certainty_is_measured_at_the_middle_context():
    places = [place for place in Grid().places() if place.method in LAYOUTS[2:]]
    assert {place.context for place in places} == {512}
    assert {place.size for place in places if place.method == "adaptive"} == {4, 8, 16, 32}
    assert {place.size for place in places if place.method == "allocation"} == {6, 12, 24}
    for method in ("adaptive", "allocation"):
        assert {place.requests for place in places if place.method == method} == {2, 4, 8, 16, 32, 64, 128}
    # as many requests as the profile has at most
    assert max(place.requests + place.waiting for place in places) == 128
    assert {place.waiting for place in places if place.requests == 64} == {0, 32}
    # blocks that are not twice as large as each other are no such mixture
    assert not any(place.method == "allocation" for place in Grid(block_sizes=(3, 6, 16)).places())
    assert ",".join(LAYOUTS) == DEFAULT


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=9))
def test_a_timing_is_the_median_and_half_the_distance_of_the_quartiles(samples):
    timing = summary(samples)
    assert timing.median_s == pytest.approx(np.median(samples))
    assert timing.spread_s == pytest.approx((np.quantile(samples, 0.75) - np.quantile(samples, 0.25)) / 2)
    assert timing.repeats == len(samples)


@pytest.mark.parametrize(
    ("effort", "done", "spent", "goes_on"),
    [
        (Effort(5, 0, 10), 0, 0, True),
        (Effort(5, 0, 10), 1, 99, True),  # the second pass is never cut
        (Effort(5, 0, 10), 2, 6, True),
        (Effort(5, 0, 10), 2, 7, False),  # a third would end at 10.5 s
        (Effort(5, 0, 10), 5, 1, False),
        (Effort(1, 0, 10), 1, 1, False),
        (Effort(5, 0), 4, 1e9, True),
    ],
)
def test_passes_go_on_while_another_one_fits(effort, done, spent, goes_on):
    assert effort.another(done, spent) == goes_on


def test_rows_are_in_microseconds():
    (row,) = rows({("verify", 3, 12, 30): summary([1e-3, 2e-3, 4e-3])})
    assert tuple(row) == ("verify", 3, 12, 30, 2000.0, 750.0, 3)


@pytest.fixture
def profile(recguide, tiny_folder, tmp_path, monkeypatch):
    """Run the command on a tiny model and grid."""
    monkeypatch.chdir(tmp_path)
    options = {
        "--requests": "1,2",
        "--contexts": "8,16",
        "--block-sizes": "4,8",
        "--prefill": "8",
        "--layout-requests": 1,
    }
    rest = {"--repeats": 2, "--least-ms": 0, "--warm-ms": 1, "--dtype": "fp32", "--device": "cpu", "--output": "p.csv"}

    def run(*more: str):
        words = [word for pair in (options | rest).items() if pair[0] not in more for word in pair]
        return recguide("profile", tiny_folder, *words, *more)

    return run


def test_the_command_writes_a_profile_that_simulations_read(profile, tiny_folder, tmp_path):
    done = profile()
    assert (done.code, done.stdout) == (0, "p.csv\t46 rows\n")
    found = read_profile(tmp_path / "p.csv")
    assert found.header["model"] == "tiny-llama"
    # products are timed on a GPU alone
    assert {row.kind for row in found.rows} == KINDS
    assert found.header["command"].startswith(f"recguide profile {tiny_folder} --requests 1,2 ")
    assert 1 < float(found.header["python_loop_us"]) < 1e6
    assert 0 <= float(found.header["python_loop_spread_us"]) < 1e6
    # what the host adds is measured at every context, and told once
    assert {row.repeats for row in found.rows if row.context_tokens} == {2}
    costs = found.costs()
    assert math.isfinite(costs.forward_s("verify", 2, 8, 24))
    assert costs.host_s(2, 8) >= 0
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--requests", "4,2"], "--requests: found '4,2'"),
        (["--contexts", "0,8"], "--contexts: found '0,8'"),
        (["--block-sizes", "x"], "--block-sizes: found 'x'"),
        (["--block-sizes", "1,8"], "--block-sizes: found '1,8', allowed: ascending whole numbers from 2 to 32"),
        (["--block-sizes", "8,64"], "--block-sizes: found '8,64', allowed: ascending whole numbers from 2 to 32"),
        (["--layouts", "rows,padded"], "--layouts: found 'padded', allowed: rows, quadratic, adaptive, allocation"),
        (["--prefill", ""], "--prefill: found ''"),
        (["--repeats", "0"], "--repeats"),
        (["--seconds", "0"], "--seconds"),
        (["--dtype", "fp16"], "--dtype: found 'fp16', allowed: bf16, fp32"),
        (["--device", "tpu9"], "device 'tpu9': not a device"),
        (["--adapter", "nowhere"], "adapter 'nowhere': no such file"),
        (["--output", "nowhere/p.csv"], "--output: found 'nowhere/p.csv', allowed: a file in a folder that is there"),
        (["--output", "."], "--output: found '.', allowed: a file in a folder that is there"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_bad_input_exits_2_with_a_message_and_leaves_nothing_behind(profile, tmp_path, options, message):
    done = profile(*options)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_of_another_model_is_refused(profile, tmp_path):
    done = profile("--adapter", "smollm2-135m")
    assert done.code == 2
    assert "smollm2-135m.safetensors: made for smollm2-135m with weights d243511ad639, but the loaded" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "billions"), [("nld-3b", 3.83), ("nld-8b", 8.49), ("nld-14b", 13.51)])
def test_named_shapes_have_the_parameters_of_their_models(name, billions):
    config = SHAPES[name]
    attention = 2 * config.hidden_size * config.head_dim * (config.num_heads + config.num_kv_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size
    total = 2 * config.vocab_size * config.hidden_size + config.num_layers * layer
    assert total / 1e9 == pytest.approx(billions, abs=0.01)
