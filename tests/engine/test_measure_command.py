"""`recguide measure`, and `recguide validate` of what it wrote."""

import json

import profiles
import pytest
from strategies import random_trace
from toy_adapter import write_adapter

from recguide.sim.measurement import read_measurement
from recguide.traces.files import write_trace

TRACE = random_trace(7, 8, (4, 8), max_output_tokens=16, ease=0.8, max_context=512)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measure")
    write_trace(TRACE, folder / "trace.parquet", compression_level=1)
    profiles.write(folder / "profile.csv", model="tiny-llama")
    return folder


def arguments(inputs, tiny_folder, output, *more):
    return (
        "measure", tiny_folder, "--trace", inputs / "trace.parquet", "--acceptance", "forced", "--dtype", "fp32",
        "--device", "cpu", "--policy", "fixed:8", "--policy", "overlap:B=4", "--max-concurrency", "1,3",
        "--requests-each", 1, "--least-requests", 4, "--repeats", 2, "--output-dir", output, *more,
    )  # fmt: skip


def test_a_campaign_is_measured_in_pieces_and_foretold_step_by_step(inputs, tiny_folder, tmp_path, recguide) -> None:
    output = tmp_path / "campaign"
    stopped = recguide(*arguments(inputs, tiny_folder, output, "--time-limit", 1e-9, "--anchor", "fixed:8@2"))
    assert (stopped.code, stopped.stdout) == (75, "")
    assert "8 runs are still to be made" in stopped.stderr
    done = recguide(*arguments(inputs, tiny_folder, output, "--anchor", "fixed:8@2"))
    assert (done.code, len(done.stdout.splitlines())) == (0, 9), done.stderr
    again = recguide(*arguments(inputs, tiny_folder, output, "--anchor", "fixed:8@2"))
    assert (again.code, again.stdout) == (0, "")
    one = read_measurement(output / "overlap_B=4-all-c3-r2.json.gz")
    assert (one.about.session, one.about.acceptance, one.about.origin["gpu"]) == (2, "forced", "cpu")
    assert one.about.request_ids == read_measurement(output / "overlap_B=4-all-c3-r1.json.gz").about.request_ids

    validated = recguide(
        "validate", output, "--trace", inputs / "trace.parquet", "--profile", inputs / "profile.csv",
        "--cross-model", "--force", "--output-dir", tmp_path / "out", "--min-repeats", 2,
    )  # fmt: skip
    assert validated.code in (0, 1), validated.stderr
    found = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert [point["agreement"]["same_steps"] for point in found["points"]] == [True] * 4
    assert [point["difference"]["forwards"] for point in found["points"]] == [0] * 4
    assert found["missing"] == []


def test_runs_that_stop_are_foretold_up_to_their_last_step(inputs, tiny_folder, tmp_path, recguide) -> None:
    output = tmp_path / "campaign"
    more = (
        "--steady-seconds",
        0.02,
        "--warm-seconds",
        0.01,
        "--more",
        "ar@2",
        "--more",
        f"ar@2@{TRACE.requests[0].dataset}",
    )
    done = recguide(*arguments(inputs, tiny_folder, output, *more, "--repeats", 2, "--policy", "ar@1"))
    assert (done.code, len(done.stdout.splitlines())) == (0, 14), done.stderr
    runs = [[read_measurement(output / f"overlap_B=4-all-c3-r{n}.json.gz") for n in (1, 2)]]
    runs += [[read_measurement(output / f"ar-all-c2-r{n}.json.gz") for n in (1, 2)]]
    for first, second in runs:
        assert first.stopped == second.stopped
        assert first.limits.tolist() == second.limits.tolist()
        assert len(first.run.steps["seconds"]) == len(second.run.steps["seconds"])
    assert any(first.stopped for first, _ in runs)
    validated = recguide(
        "validate", output, "--trace", inputs / "trace.parquet", "--profile", inputs / "profile.csv",
        "--cross-model", "--force", "--output-dir", tmp_path / "out", "--min-repeats", 2,
    )  # fmt: skip
    assert validated.code in (0, 1), validated.stderr
    found = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert [point["agreement"]["same_steps"] for point in found["points"]] == [True] * 7


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--policy", "oracle"], "policy 'oracle': knows the future"),
        (["--policy", "fixed:16"], "block size 16 was not recorded"),
        (["--dataset", "nothing"], "dataset 'nothing': not in the trace"),
        (["--acceptance", "model"], "model: found 'tiny-llama', allowed: 'tiny', the trace's"),
        (["--acceptance", "some"], "--acceptance: found 'some'"),
        (["--steady-seconds", "0"], "--steady-seconds: found 0"),
        (["--warm-seconds", "inf"], "--warm-seconds: found inf"),
        (["--anchor", "ar"], "--anchor: found 'ar'"),
        (["--more", "ar"], "--more: found 'ar'"),
        (["--policy", "ar@7"], "--policy ar: concurrency: found [7]"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(
    inputs, tiny_folder, tmp_path, recguide, more, words
) -> None:
    done = recguide(*arguments(inputs, tiny_folder, tmp_path / "campaign", *more))
    assert (done.code, done.stdout) == (2, "")
    assert words in done.stderr
    assert not (tmp_path / "campaign").exists()


def test_a_folder_of_other_measurements_is_refused(inputs, tiny_folder, tmp_path, recguide) -> None:
    once = ("--time-limit", 1e-9)
    assert recguide(*arguments(inputs, tiny_folder, tmp_path, *once)).code == 75
    done = recguide(*arguments(inputs, tiny_folder, tmp_path, *once, "--seed", 1))
    assert (done.code, "campaign.json: seed: found 0, allowed: 1, or another folder" in done.stderr) == (2, True)


def test_a_folder_with_drafts_of_the_other_kind_is_refused(inputs, tiny_folder, tmp_path, recguide) -> None:
    adapter = write_adapter(tmp_path / "adapter.safetensors", tiny_folder)
    output, once = tmp_path / "campaign", ("--time-limit", 1e-9)
    assert recguide(*arguments(inputs, tiny_folder, output, *once, "--adapter", adapter)).code == 75
    done = recguide(*arguments(inputs, tiny_folder, output, *once, "--adapter", adapter, "--merge-drafts"))
    allowed = "'by weights with the adapter merged' (--merge-drafts or --no-merge-drafts), or another folder"
    told = f"campaign.json: drafts: found None, allowed: {allowed}"
    assert (done.code, told in done.stderr) == (2, True)
    again = ("--adapter", adapter, "--no-merge-drafts")
    assert recguide(*arguments(inputs, tiny_folder, output, *once, *again)).code == 75
    done = recguide(*arguments(inputs, tiny_folder, tmp_path / "other", *once, "--merge-drafts"))
    assert (done.code, "--merge-drafts: found" in done.stderr, "without a draft adapter" in done.stderr) == (
        2,
        True,
        True,
    )
