from dataclasses import replace
from pathlib import Path

import profiles
import pyarrow.parquet as pq
import pytest
from strategies import random_trace

from recguide.sim.costs import Profile, read_profile
from recguide.sim.levels import Level
from recguide.sim.store import Store, inputs_hash, labels_of
from recguide.sim.sweep import Point, sweep
from recguide.traces.dense import DenseTrace

TRACE = random_trace(0, 12)


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    return read_profile(profiles.write(tmp_path / "profile.csv"))


def stored(folder: Path, profile: Profile, trace: DenseTrace = TRACE, seed: int = 0) -> Store:
    return Store(folder, inputs_hash(trace, profile, {"seed": seed}), labels_of(trace))


def run(store: Store, profile: Profile, policies: list[str], seed: int = 0) -> list[Point]:
    return sweep(TRACE, profile.costs(), policies, [1, 2], seed=seed, store=store)


def test_a_stopped_sweep_goes_on_where_it_stopped(profile: Profile, tmp_path: Path) -> None:
    whole = run(stored(tmp_path / "whole", profile), profile, ["fixed:8", "oracle"])
    part = stored(tmp_path / "out", profile)
    run(part, profile, ["fixed:8"])
    part.path("fixed:8", Level(2)).unlink()
    # what a process that was killed leaves of a file
    torn = part.path("ar", Level(1))
    torn.write_bytes(torn.read_bytes()[:100])
    again = stored(tmp_path / "out", profile)
    assert run(again, profile, ["fixed:8", "oracle"]) == whole
    assert again.reused == 2
    complete = stored(tmp_path / "out", profile)
    assert run(complete, profile, ["fixed:8", "oracle"]) == whole
    assert complete.reused == 6


def test_points_of_other_inputs_are_computed_again(profile: Profile, tmp_path: Path) -> None:
    run(stored(tmp_path / "out", profile), profile, ["fixed:8"])
    dearer = replace(profile, rows=[row._replace(median_us=row.median_us + 1) for row in profile.rows])
    for changed in (
        stored(tmp_path / "out", profile, seed=1),
        stored(tmp_path / "out", dearer),
        stored(tmp_path / "out", profile, random_trace(1, 12)),
    ):
        assert changed.load("fixed:8", Level(1)) is None
        assert changed.load("ar", Level(2)) is None
    assert stored(tmp_path / "out", profile).load("fixed:8", Level(1)) is not None
    assert stored(tmp_path / "out", profile, random_trace(0, 12)).load("fixed:8", Level(1)) is not None


@pytest.mark.parametrize("form", ["{}:small", "allocation:{}", "regime:file={},above=allocation", "joint:{}"])
def test_a_changed_policy_file_is_another_policy(profile: Profile, tmp_path: Path, form: str) -> None:
    (tmp_path / "mine").write_text("one")
    name = form.format(tmp_path / "mine")
    store = stored(tmp_path / "out", profile)
    run(store, profile, [])
    served = pq.read_table(store.path("ar", Level(1))).select(["trace_row"])
    store.save(name, Level(1), {"policy": name, "max_concurrency": 1}, served)
    assert store.load(name, Level(1)) == {"policy": name, "max_concurrency": 1}
    (tmp_path / "mine").write_text("another")
    assert store.load(name, Level(1)) is None


def test_the_folder_holds_every_request_of_every_point_of_one_sweep(profile: Profile, tmp_path: Path) -> None:
    store = stored(tmp_path, profile)
    points = run(store, profile, ["fixed:8", "oracle"])
    kept = [point for point in points if point["policy"] != "oracle"]
    store.keep_only(kept)
    table = pq.read_table(tmp_path / "requests").to_pandas()
    assert sorted(set(zip(table["policy"], table["max_concurrency"], strict=True))) == [
        ("ar", 1), ("ar", 2), ("fixed:8", 1), ("fixed:8", 2),
    ]  # fmt: skip
    for point in kept:
        mine = table[(table["policy"] == point["policy"]) & (table["max_concurrency"] == point["max_concurrency"])]
        assert sorted(mine["request_id"]) == sorted(request.request_id for request in TRACE.requests)
        assert mine["output_tokens"].sum() == point["total_output_tokens"]
        for name in ("queue", "ttft", "tpot", "e2el"):
            assert mine[f"{name}_ms"].mean() == pytest.approx(point[f"mean_{name}_ms"])
        assert mine["rounds"].sum() == point["num_rounds"]
    drafted = table[table["policy"] == "fixed:8"]
    assert (table[[f"rounds_b{size}" for size in (4, 8, 16, 32)]].sum(axis=1) == table["rounds"]).all()
    assert (drafted["rounds_b8"] == drafted["rounds"]).mean() > 0.5
    assert drafted["accept_length"].notna().sum() == (drafted["rounds"] > 0).sum() > 0


def test_block_shares_are_those_of_the_rounds_of_each_dataset(profile: Profile, tmp_path: Path) -> None:
    store = stored(tmp_path, profile)
    points = run(store, profile, ["oracle"])
    found = store.block_shares(points)["oracle", Level(2)]
    assert set(found) == {request.dataset for request in TRACE.requests}
    assert all(sum(shares.values()) == pytest.approx(1.0) for shares in found.values())
    table = pq.read_table(store.path("oracle", Level(2))).to_pandas()
    mbpp = table[table["dataset"] == "mbpp"]
    whole = sum(mbpp[f"rounds_b{size}"].sum() for size in (1, 4, 8, 16, 32))
    assert found["mbpp"][8] == mbpp["rounds_b8"].sum() / whole


def test_quantiles_are_the_sorted_values_where_they_are_few(profile: Profile, tmp_path: Path) -> None:
    store = stored(tmp_path, profile)
    points = run(store, profile, [])
    found = store.quantiles(points, ["e2el_ms"])
    assert found["ar", Level(1)]["e2el_ms"] == sorted(pq.read_table(store.path("ar", Level(1)))["e2el_ms"].to_pylist())
