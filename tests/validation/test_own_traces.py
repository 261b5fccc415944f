"""A run's own trace tells what of an error is the acceptance; one that is not its own is refused."""

import json
from dataclasses import replace

import profiles
import pytest
from campaigns import as_measured, write
from strategies import random_trace

from recguide.sim.campaigns import Manifest, PointKey, manifest_of
from recguide.sim.costs import read_profile
from recguide.sim.measurement import served_path
from recguide.traces.files import write_trace

TRACE, OTHER = (random_trace(3, 12, ease=ease, min_output_tokens=12) for ease in (0.8, 0.5))
KEY = PointKey("fixed:8", "all", 3)


@pytest.fixture
def inputs(tmp_path):
    """A run of a model that accepts less than was recorded, beside it its own trace."""
    write_trace(TRACE, tmp_path / "trace.parquet", compression_level=1)
    costs = read_profile(profiles.write(tmp_path / "profile.csv")).costs()
    manifest_of(tmp_path / "campaign", Manifest(1, (KEY,), {"model": "tiny"}))
    measured = as_measured(OTHER, KEY.policy, KEY.concurrency, costs, acceptance="model")
    path = write(tmp_path / "campaign", OTHER, measured)
    known = {request.request_id: request for request in OTHER.requests}
    return tmp_path, served_path(path), [known[name] for name in measured.about.request_ids]


def validated(recguide, inputs, requests):
    """The command over a run with these requests in its own trace."""
    folder, path, _ = inputs
    named = tuple(replace(request, request_id=f"served/{i}") for i, request in enumerate(requests))
    write_trace(replace(OTHER, requests=named), path, compression_level=1)
    return recguide(
        "validate", folder / "campaign", "--trace", folder / "trace.parquet", "--profile", folder / "profile.csv",
        "--output-dir", folder / "out",
    )  # fmt: skip


def test_a_runs_own_trace_says_what_the_acceptance_is(inputs, recguide) -> None:
    assert validated(recguide, inputs, inputs[2]).code == 1
    (point,) = json.loads((inputs[0] / "out" / "validation.json").read_text())["points"]
    assert point["budget"]["acceptance_known"]
    assert point["budget"]["parts"]["acceptance"] == pytest.approx(point["budget"]["gap"], abs=1e-6)


def test_a_trace_of_other_requests_is_no_runs_own(inputs, recguide) -> None:
    folder, path, requests = inputs
    first = requests[0]
    longer = next(each for each in OTHER.requests if each.output_tokens > first.output_tokens)
    asked = replace(first, prompt_tokens=first.prompt_tokens + 1)
    whose = f"request {first.request_id!r}"
    for spoilt, found in (
        (requests[:-1], f"{path}: requests: found {len(requests) - 1}, allowed: {len(requests)}, as in fixed_8-all-c3"),
        ([asked, *requests[1:]], f"{path}: {whose}: prompt_tokens: found {asked.prompt_tokens}, allowed: "),
        (
            [replace(longer, prompt_tokens=first.prompt_tokens), *requests[1:]],
            f"{path}: {whose}: output_tokens: found {longer.output_tokens}, allowed: {first.output_tokens}",
        ),
    ):
        done = validated(recguide, inputs, spoilt)
        assert (done.code, found in done.stderr) == (2, True), done.stderr
    assert not (folder / "out").exists()
