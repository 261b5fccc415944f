"""Sizes whose products are slow are filled up further, and nothing else changes by it."""

from dataclasses import replace

import profiles
import pytest
import torch
from engines import GRID, POLICIES, Load, loads, prompts, serve
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model

from recguide.engine.adapters import merge_drafts
from recguide.engine.decode import autoregressive
from recguide.engine.places import Grid, Place
from recguide.engine.product_times import CHILD, beyond_cache, passes_aside, product_seconds
from recguide.engine.profiling import product_rows, station_for
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.shapes import add_random_draft_adapter
from recguide.engine.sizes import (
    PLAIN,
    FillSizes,
    fill_sizes,
    layer_weights,
    portion,
    profiled_sizes,
    whole_products,
)
from recguide.engine.visits import visit
from recguide.sim.sizes import filled_up, moved_sizes, sizes_up_to

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = sizes_up_to(128)
times = st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=len(SIZES), max_size=len(SIZES))
moves = times.map(lambda seconds: moved_sizes(SIZES, seconds))
sizes = st.builds(FillSizes, moves, moves)


def answers(model, asked, load: Load):
    found = autoregressive(model.decoder, asked, load.max_new, max_context=load.max_context)
    return [list(one.tokens) for one in found]


@settings(max_examples=30)
@given(seed=st.integers(0, 50), asked=prompts, load=loads(), sizes=sizes)
def test_sizes_that_move_change_no_token_and_no_page_is_lost(seed, asked, load: Load, sizes: FillSizes) -> None:
    model = tiny_model(seed, 0)
    config = replace(load.config(), rounded=True, sizes=sizes)
    engine = Engine(model.decoder, POLICIES[load.policy], config)
    lives, _ = serve(engine, asked, load)
    assert [live.tokens for live in lives] == answers(model, asked, load)
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages
    for shape in engine.forwards._inputs:
        assert filled_up(shape.tokens) == shape.tokens
        assert shape.tokens not in sizes.moved_tokens
        assert shape.scores not in sizes.moved_scores


@pytest.mark.parametrize("name", ["fixed:4", "overlap", "tidar"])
def test_rounds_branches_and_prefills_are_filled_up(name) -> None:
    model, everything = tiny_model(3, 0), {size: 128 for size in SIZES if size < 128}
    config = EngineConfig(GRID, rounded=True, sizes=FillSizes(everything, everything))
    load = Load(name, "bucket", config.limits, 12, 96, 3, rounded=True)
    engine = Engine(model.decoder, POLICIES[name], config)
    lives, _ = serve(engine, [[4, 5, 6], [8, 10], [9]], load)
    assert [live.tokens for live in lives] == answers(model, [[4, 5, 6], [8, 10], [9]], load)
    assert {shape.tokens for shape in engine.forwards._inputs} == {128}
    assert {shape.scores for shape in engine.forwards._inputs} <= {0, 128}


def test_a_profile_is_of_the_forwards_that_serve() -> None:
    grid = Grid((1, 2), (8,), (4,), (8,), layout_requests=0)
    station = station_for(tiny_model(2, 0).decoder, grid)
    assert station.forwards.told() == {}
    station.forwards.rounded, station.forwards.sizes = True, FillSizes({8: 10}, {8: 9})
    assert set(visit(station, Place("linear", 2, 4, 8), 0.0)) == {
        ("draft", 2, 8, 16),
        ("verify", 2, 8, 16),
        ("host", 2, 8, 0),
    }
    assert {(shape.tokens, shape.scores) for shape in station.forwards._inputs} == {(10, 9)}
    visit(station, Place("prefill", 1, 8, 0), 0.0)
    assert {shape.tokens for shape in station.forwards._inputs} == {10}
    told = {"fill": "eighths of a power of 2", "fill_moved": "8>10", "fill_moved_scores": "8>9"}
    assert station.forwards.told() == told


def test_on_a_cpu_nothing_is_timed_and_nothing_moves() -> None:
    engine = Engine(tiny_model(2, 0).decoder, POLICIES["ar"], EngineConfig(GRID, rounded=True))
    assert engine.forwards.sizes is PLAIN
    assert PLAIN.told()["fill_moved"] == "none"
    assert product_rows(engine.forwards.sizes) == []


def test_a_profile_of_this_model_and_machine_says_which_sizes_move(tmp_path) -> None:
    decoder = tiny_model(2, 0).decoder
    here = {"model": "tiny", "dtype": "fp32", "gpu": "cpu", "torch": str(torch.__version__), "fill_moved": "8>10"}
    path = str(profiles.write(tmp_path / "here.csv", **here, fill_moved_scores="7>9"))
    found = profiled_sizes(path, decoder, "fp32")
    assert found is not None
    assert (found.moved_tokens, found.moved_scores) == ({8: 10}, {7: 9})
    others = [{"torch": "1.0"}, {"gpu": "another"}, {"model": "larger"}, {"dtype": "bf16"}]
    for number, change in enumerate(others):
        other = profiles.write(tmp_path / f"{number}.csv", **here | change)
        assert profiled_sizes(str(other), decoder, "fp32") is None
    del here["fill_moved"]
    assert profiled_sizes(str(profiles.write(tmp_path / "old.csv", **here)), decoder, "fp32") is None
    assert profiled_sizes(None, decoder, "fp32") is None
    wrong = profiles.write(tmp_path / "wrong.csv", **here, fill_moved="none", fill_moved_scores="9>7")
    with pytest.raises(ValueError, match="fill_moved_scores: found '9>7'"):
        profiled_sizes(str(wrong), decoder, "fp32")


def test_a_profile_of_something_else_is_named_on_stderr(tmp_path, capsys) -> None:
    decoder = tiny_model(2, 0).decoder
    here = {"model": "tiny", "dtype": "fp32", "gpu": "cpu", "torch": str(torch.__version__)}
    profiled_sizes(str(profiles.write(tmp_path / "here.csv", **here)), decoder, "fp32")
    assert capsys.readouterr().err == ""
    other = profiles.write(tmp_path / "other.csv", **here | {"gpu": "another", "model": "larger"})
    profiled_sizes(str(other), decoder, "fp32")
    told = f"warning: {other}: model: found larger, but here is tiny; gpu: found another, but here is cpu\n"
    assert capsys.readouterr().err == told
    apart = str(profiles.write(tmp_path / "apart.csv", **here, fill_moved="8>10"))
    add_random_draft_adapter(decoder, 4)
    merge_drafts(decoder)
    found = profiled_sizes(apart, decoder, "fp32")
    assert found is not None
    assert found.moved_tokens == {8: 10}
    told = "drafts: found by weights and adapter apart, but here is by weights with the adapter merged\n"
    assert capsys.readouterr().err == f"warning: {apart}: {told}"


def test_every_size_is_timed_with_all_weights() -> None:
    decoder = tiny_model(2, 0).decoder
    layers = layer_weights(decoder)
    assert [len(layer) for layer in layers] == [4, 4]
    # so little stays in any cache
    assert len(beyond_cache(layers)) == 8
    large = [torch.empty(2**15, 2**12, device="meta"), torch.empty(2**10, 2**12, device="meta")]
    assert len(beyond_cache([large, large, large])) == 2
    seconds = product_seconds(beyond_cache(layers), SIZES, passes=2)
    assert len(seconds) == len(SIZES)
    assert all(0 < each < 10 for each in seconds)


def test_products_are_timed_in_another_process(capfd) -> None:
    decoder = tiny_model(2, 0).decoder
    work = [beyond_cache(layer_weights(decoder)), [decoder.head]]
    found = passes_aside(work, [1, 4])
    assert [[len(seconds) for seconds in samples] for samples in found] == [[2] * 7] * 2
    assert all(0 < each < 10 for samples in found for seconds in samples for each in seconds)
    assert capfd.readouterr() == ("", "")
    moved = fill_sizes(layer_weights(decoder), decoder.head)
    assert moved.of_tokens(2048) == 2048
    told = product_rows(moved)
    assert [row[:4] for row in told] == [("products", 1, size, 0) for size in sizes_up_to(2048)]
    assert all(row.median_us > 0 and row.repeats == 7 for row in told)


def test_products_of_a_forward_are_those_of_all_layers_and_of_one_head() -> None:
    weights = [torch.empty(2**12, 2**10, device="meta"), torch.empty(2**10, 2**12, device="meta")]
    assert portion(weights * 3, weights) == 3
    assert portion(weights[:1], weights[:1] * 4) == 0.25
    # a forward of 8 tokens is one of 10, of which 9 are scored where 8 are asked for
    moved, asked = FillSizes({8: 10}, {8: 9}), [8, 9, 10]
    layers, heads = [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]], [[10.0, 20.0, 40.0], [30.0, 50.0, 80.0]]
    found = whole_products(moved, asked, [layers, heads], [3, 0.25])
    assert found == {8: [9 + 5, 12 + 12.5], 9: [6 + 5, 9 + 12.5], 10: [9 + 10, 12 + 20]}
    (first, *_) = product_rows(replace(moved, products_s=found))
    assert first == ("products", 1, 8, 0, 19.25e6, 2.625e6, 2)


@pytest.mark.parametrize(
    ("child", "why"),
    [
        ("raise MemoryError('too little')", "MemoryError: too little"),
        ("import os; os._exit(3)", "status 3"),
        ("print('done')", "Expecting value: line 1 column 1 (char 0)"),
        ("import os; os.write(2, bytes([255])); os._exit(3)", "\ufffd"),
        ("import time; time.sleep(60)", "no answer for 3 s"),
    ],
)
def test_without_another_process_products_are_timed_here(monkeypatch, capsys, child, why) -> None:
    monkeypatch.setattr("recguide.engine.product_times.CHILD", child)
    monkeypatch.setattr("recguide.engine.product_times.LONGEST_S", 3)
    found = passes_aside([[tiny_model(2, 0).decoder.head]], [1, 4])
    assert [len(seconds) for seconds in found[0]] == [2] * 7
    told = f"warning: products are timed in this process, whose forwards are slower by it: {why}\n"
    assert capsys.readouterr().err == told


def test_the_other_process_imports_and_reads_nothing_else(monkeypatch, capsys, tmp_path) -> None:
    for name in ("json", "recguide", "torch"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('found in the folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recguide.engine.product_times.CHILD", f"print('before')\n{CHILD}\nprint('[[[1.0]]]')")
    found = passes_aside([[tiny_model(2, 0).decoder.head]], [1, 4])
    assert [len(seconds) for seconds in found[0]] == [2] * 7
    assert capsys.readouterr().err == ""
