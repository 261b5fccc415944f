"""Measured runs as files: what is written is read, and what cannot be true is refused."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from campaigns import as_measured, campaign, write
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import COSTS
from strategies import random_trace

from recguide.sim.campaigns import Manifest, PointKey, manifest_of, read_campaign, read_manifest
from recguide.sim.measurement import STEPS, read_measurement
from recguide.traces.errors import InputError

TRACE = random_trace(3, 6, ease=0.8)


@settings(max_examples=15)
@given(
    policy=st.sampled_from(["ar", "fixed:8", "overlap:B=8", "tidar:B=8", "window"]),
    concurrency=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_what_is_written_is_read(tmp_path_factory, policy, concurrency, seed) -> None:
    trace = random_trace(seed, 5, ease=0.8)
    made = as_measured(trace, policy, concurrency, COSTS, host_s=1e-4)
    found = read_measurement(write(tmp_path_factory.mktemp("m"), trace, made))
    assert found.about == made.about
    for name in STEPS:
        np.testing.assert_allclose(found.run.steps[name], made.run.steps[name], atol=1e-9)
    for name in ("request", "tokens", "step", "block_size", "outcome"):
        assert np.array_equal(getattr(found.run, f"emission_{name}"), getattr(made.run, f"emission_{name}"))
    for name in ("sent_s", "started_s", "first_token_s", "finished_s"):
        np.testing.assert_allclose(getattr(found.run, name), getattr(made.run, name), atol=1e-9)
    np.testing.assert_allclose(found.forward_s, made.forward_s, atol=1e-9)
    assert (found.run.concurrency, found.run.closed) == (concurrency, True)


def test_where_requests_were_made_to_end_and_that_a_run_stopped_is_read_too(tmp_path) -> None:
    made = as_measured(TRACE, "fixed:8", 2, COSTS)
    limits = made.run.output_tokens + 1
    found = read_measurement(write(tmp_path, TRACE, replace(made, limits=limits, stopped=True)))
    assert (found.limits.tolist(), found.stopped) == (limits.tolist(), True)
    without = read_measurement(write(tmp_path, TRACE, made))
    assert (without.limits, without.stopped) == (None, False)
    with pytest.raises(InputError, match=r"output_lens\[0\]: allowed: up to log.requests.limit"):
        read_measurement(write(tmp_path, TRACE, replace(made, limits=limits - 2)))


def test_the_file_has_the_keys_of_vllm(tmp_path) -> None:
    path = write(tmp_path, TRACE, as_measured(TRACE, "fixed:8", 2, COSTS))
    document = json.loads(gzip.decompress(path.read_bytes()))
    for name in ("output_throughput", "mean_ttft_ms", "p99_tpot_ms", "input_lens", "output_lens", "ttfts", "itls"):
        assert name in document
    assert len(document["itls"]) == document["completed"]


def put(document, place, value) -> None:
    *outer, last = place
    for name in outer:
        document = document[name]
    if value is None:
        del document[last]
    else:
        document[last] = value


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["recguide_measurement"], 2, "recguide_measurement: found 2, allowed: 1"),
        (["about", "concurrency"], 0, "about.concurrency: found 0"),
        (["about", "concurrency"], True, "about.concurrency: found True"),
        (["about", "acceptance"], "some", "about.acceptance: found 'some'"),
        (["about", "policy"], None, "about: found .'policy'."),
        (["about", "request_ids"], [], "about.request_ids"),
        (["log"], None, "log: found NoneType"),
        (["log", "steps", "seconds"], "1", "log.steps.seconds: found '1', allowed: a list"),
        (["log", "steps", "seconds", 0], "1", r"log.steps.seconds\[0\]: found '1', allowed: a number"),
        (["log", "steps", "seconds", 0], float("nan"), r"log.steps.seconds\[0\]: found nan"),
        (["log", "steps", "seconds", 0], -1.0, r"log.steps.seconds\[0\]: found -1.0"),
        (["log", "steps", "requests"], [1], "log.steps.requests: found 1 values"),
        (["log", "steps", "requests", 0], 1.5, r"log.steps.requests\[0\]: found 1.5, allowed: a whole number"),
        (["log", "steps", "start_s", 3], 0.0, r"log.steps.start_s\[2\]: allowed: no step before"),
        (["log", "steps", "draft_s", 1], 1e9, r"log.steps.draft_s\[1\]"),
        (["log", "emissions", "request", 0], 10**6, r"log.emissions.request\[0\]"),
        (["log", "emissions", "step", 0], 10**6, "log.emissions.step"),
        (["log", "emissions", "tokens", 0], 0, r"log.emissions.tokens\[0\]: allowed: at least 1"),
        (["log", "requests", "started_s", 0], 1e6, r"log.requests.started_s\[0\]: allowed: from when it was sent"),
        (["log", "preemptions"], -1, "log.preemptions: found -1"),
        (["output_lens", 0], 10**6, r"output_lens\[0\]: allowed: the sums"),
        (["total_output_tokens"], 1, "total_output_tokens: found 1"),
    ],
)
def test_what_cannot_be_true_is_refused_with_file_and_field(tmp_path, place, value, words) -> None:
    path = write(tmp_path, TRACE, as_measured(TRACE, "fixed:8", 2, COSTS))
    document = json.loads(gzip.decompress(path.read_bytes()))
    put(document, place, value)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(InputError, match=f"{path.name}: {words}"):
        read_measurement(path)


def test_a_file_that_is_cut_short_is_refused(tmp_path) -> None:
    path = write(tmp_path, TRACE, as_measured(TRACE, "ar", 1, COSTS))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"json.gz: not gzipped JSON"):
        read_measurement(path)


def test_a_folder_gives_its_runs_by_point_and_says_what_lacks(tmp_path) -> None:
    campaign(tmp_path, TRACE, COSTS, ("ar", "fixed:8"), (1, 4))
    found = read_campaign(tmp_path)
    assert {key: len(runs) for key, runs in found.runs.items()} == dict.fromkeys(found.manifest.points, 3)
    assert found.missing(found.manifest.points, 3) == {}
    (tmp_path / "fixed_8-all-c4-r2.json.gz").unlink()
    assert read_campaign(tmp_path).missing(found.manifest.points, 3) == {PointKey("fixed:8", "all", 4): 1}


def test_a_manifest_grows_but_never_mixes_two_setups(tmp_path) -> None:
    first, second = (PointKey("ar", "all", count) for count in (1, 2))
    manifest_of(tmp_path, Manifest(2, (first,), {"model": "a"}))
    grown = manifest_of(tmp_path, Manifest(3, (second,), {"model": "a"}))
    assert (grown.points, grown.repeats, grown.sessions) == ((first, second), 3, 2)
    with pytest.raises(InputError, match=r"campaign.json: model: found 'a', allowed: 'b'"):
        manifest_of(tmp_path, Manifest(3, (second,), {"model": "b"}))


def test_a_policy_whose_file_has_changed_is_another_one(tmp_path) -> None:
    file = tmp_path / "policy.json"
    key, plain = PointKey(f"allocation:{file}", "all", 1), PointKey("ar", "all", 1)
    file.write_text("{}")
    manifest_of(tmp_path, Manifest(1, (key, plain), {}))
    grown = manifest_of(tmp_path, Manifest(1, (plain,), {}))
    assert list(grown.policy_files) == list(read_manifest(tmp_path).policy_files) == [key.policy]
    assert manifest_of(tmp_path, Manifest(1, (key,), {})).policy_files == grown.policy_files
    file.write_text("{ }")
    with pytest.raises(InputError, match=r"campaign.json: the file of allocation:.*the one that was measured"):
        manifest_of(tmp_path, Manifest(1, (key,), {}))


def test_runs_of_different_acceptance_are_no_campaign(tmp_path) -> None:
    campaign(tmp_path, TRACE, COSTS, ("ar",), (1,))
    write(tmp_path, TRACE, as_measured(TRACE, "ar", 2, COSTS, acceptance="model"))
    with pytest.raises(InputError, match=r"ar-all-c2-r1.json.gz: about.acceptance: found 'model', allowed: 'forced'"):
        read_campaign(tmp_path)
