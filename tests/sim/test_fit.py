import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import profiles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import Recguide
from strategies import random_trace

from recguide.sim.adaptive import ALL, read_policy
from recguide.sim.catalogue import make_policy, rounds_for
from recguide.sim.costs import linear_costs, read_profile
from recguide.sim.crossfit import folds_of, splits_of
from recguide.sim.fit_command import fit
from recguide.sim.fit_run import fit_trace, parse_sizes
from recguide.sim.fitting import Settings, fit_in_sample
from recguide.sim.joint_file import read_joint
from recguide.sim.lowload import fit_low_load
from recguide.sim.regime import Regime
from recguide.traces.files import write_trace

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
TRACE = random_trace(3, 40, min_output_tokens=150, max_output_tokens=250)
QUICK = Settings(concurrencies=(1, 8, 64))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 999), ease=st.sampled_from([0.3, 0.6, 0.9]), bins=st.integers(1, 24))
def test_expected_tokens_never_fall_as_certainty_or_the_block_grows(seed: int, ease: float, bins: int) -> None:
    trace = random_trace(seed, 6, min_output_tokens=30, max_output_tokens=90, ease=ease)
    fitted = fit_in_sample(trace, COSTS, concurrencies=(4,), bins=bins)
    assert ALL in fitted.values
    for by_size in fitted.values.values():
        table = np.array([by_size[size] for size in fitted.candidates])
        assert (np.diff(table, axis=0) >= 0).all()
        assert (np.diff(table, axis=1) >= -1e-9).all()


def test_no_prompt_is_on_both_sides_of_a_fold() -> None:
    twice = (*TRACE.requests, *(replace(request, request_id=f"{request.request_id}b") for request in TRACE.requests))
    for way in ("by_prompt", "by_dataset"):
        tried = np.zeros(len(twice), np.int64)
        for train, test in splits_of(twice, way):
            assert not (train & test).any()
            if way == "by_prompt":
                prompts = [{twice[i].prompt_sha256 for i in np.flatnonzero(side)} for side in (train, test)]
                assert not prompts[0] & prompts[1]
            tried += test
        assert (tried == 1).all()
    assert len(set(folds_of(twice).tolist())) == 5


def test_gains_are_told_in_sample_by_prompt_and_by_dataset(tmp_path: Path) -> None:
    profile = read_profile(profiles.write(tmp_path / "profile.csv"))
    fitted, _ = fit_trace(TRACE, profile, QUICK)
    gain = fitted.provenance["gain"]
    assert set(gain) == {"in_sample", "by_prompt", "by_dataset", "of_dataset"}
    assert set(gain["of_dataset"]) == {request.dataset for request in TRACE.requests}
    for found in (gain["in_sample"], gain["by_prompt"], gain["by_dataset"]):
        assert list(found) == ["1", "8", "64"]
        assert all(each["low"] <= each["gain"] <= each["high"] for each in found.values())
    # no fixed block size is beaten by less than nothing on what the policy was fitted to
    assert all(each["gain"] >= -1e-3 for each in gain["in_sample"].values())


def test_the_same_fit_twice_gives_the_same_file(tmp_path: Path) -> None:
    profile = profiles.write(tmp_path / "profile.csv", model="tiny")
    write_trace(TRACE, tmp_path / "trace.parquet")
    for name in ("one.json", "two.json"):
        fit([str(tmp_path / "trace.parquet")], str(profile), tmp_path / name, max_concurrency=["1,8"])
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert (tmp_path / "one.png").stat().st_size > 10_000
    fitted = read_policy(tmp_path / "one.json")
    assert fitted.low_load is not None
    name = f"regime:file={tmp_path}/one.json"
    made = make_policy(name, rounds_for(TRACE, [name]), read_profile(profile).costs())
    assert isinstance(made, Regime)
    assert made.switch == fitted.low_load.switch
    assert made.overlap.delta == fitted.low_load.delta
    assert made.overlap.block_size == fitted.low_load.block_size
    assert json.loads((tmp_path / "one.json").read_text())["recguide_policy"] == 1


def test_options_of_the_regime_go_over_those_of_the_file(tmp_path: Path) -> None:
    profile = profiles.write(tmp_path / "profile.csv", model="tiny")
    write_trace(TRACE, tmp_path / "trace.parquet")
    fit([str(tmp_path / "trace.parquet")], str(profile), tmp_path / "one.json", max_concurrency=["1"])
    name = f"regime:file={tmp_path}/one.json,B=4,delta=0.875,switch=3"
    made = make_policy(name, rounds_for(TRACE, [name]), read_profile(profile).costs())
    assert isinstance(made, Regime)
    assert (made.overlap.block_size, made.overlap.delta, made.switch) == (4, 0.875, 3)


def test_rows_and_block_sizes_are_fitted_together_where_that_is_asked_for(tmp_path: Path) -> None:
    profile = profiles.write(tmp_path / "profile.csv", model="tiny")
    write_trace(TRACE, tmp_path / "trace.parquet")
    fit(
        [str(tmp_path / "trace.parquet")],
        str(profile),
        tmp_path / "one.json",
        max_concurrency=["1"],
        joint=tmp_path / "joint.json",
    )
    joint = read_joint(tmp_path / "joint.json")
    assert joint.fitted == read_policy(tmp_path / "one.json")
    assert list(joint.rho) == [1]


def test_overlap_is_fitted_only_where_branches_were_profiled() -> None:
    fitted = fit_in_sample(TRACE, COSTS, concurrencies=(1, 8))
    low = fit_low_load(TRACE, COSTS, fitted)
    assert low is not None
    assert low.switch in (0, 2, 8)


def test_too_few_rounds_are_refused_with_what_is_needed(tmp_path: Path) -> None:
    few = replace(TRACE, requests=TRACE.requests[:4])
    with pytest.raises(ValueError, match=r"found \d+ rounds .* of 4 requests; needed: 480 .* of at least 10 requests"):
        fit_trace(few, read_profile(profiles.write(tmp_path / "profile.csv")), QUICK)


@pytest.mark.parametrize(("text", "found"), [(None, [8, 16, 32]), ("16, 4", [4, 16])], ids=["the paper's", "chosen"])
def test_candidates_are_the_papers_or_those_asked_for(text: str | None, found: list[int]) -> None:
    assert parse_sizes(text, (4, 8, 16, 32)) == found
    assert parse_sizes(None, (4, 6)) == [4, 6]
    with pytest.raises(ValueError, match="block-sizes: found '5', allowed: of 4, 6"):
        parse_sizes("5", (4, 6))


def test_the_command_refuses_what_it_cannot_fit(tmp_path: Path) -> None:
    write_trace(replace(TRACE, requests=TRACE.requests[:3]), tmp_path / "few.parquet")
    profiles.write(tmp_path / "profile.csv", model="tiny")
    command = [sys.executable, "-c", "from recguide.sim.cli import main; main()", "fit", "--trace", "few.parquet"]
    done = subprocess.run(
        [*command, "--profile", "profile.csv"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: trace: found ")
    assert not (tmp_path / "policy.json").exists()


@pytest.mark.parametrize("option", ["output", "plot", "joint"])
def test_a_file_that_cannot_be_written_is_refused_before_the_fit(
    recguide: Recguide, tmp_path: Path, option: str
) -> None:
    shipped = ("--trace", "smollm2-135m", "--profile", "smollm2-135m-h200")
    options = {"output": tmp_path / "p.json", option: tmp_path / "nowhere" / "file"}
    done = recguide("fit", *shipped, *(word for name, path in options.items() for word in (f"--{name}", path)))
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: --{option}: found ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("--output", "p.json", "--joint", "./p.json"), "--joint: found 'p.json', allowed: a file of its own"),
        (("--output", "p.png"), "--plot: found 'p.png', allowed: a file of its own"),
        (("--output", ""), "--output: found '.', allowed: a file in a folder that is there"),
    ],
)
def test_two_outputs_under_one_name_are_refused(recguide: Recguide, names: tuple[str, ...], message: str) -> None:
    done = recguide("fit", "--trace", "smollm2-135m", "--profile", "smollm2-135m-h200", *names)
    assert (done.code, done.stdout, done.stderr) == (2, "", f"error: {message}\n")
