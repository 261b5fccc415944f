"""What the host takes longer than told, beside prefills and apart, out of runs whose truth is known."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import profiles
import pytest
from campaigns import as_measured, write
from strategies import random_trace

from recguide.sim.campaigns import Manifest, PointKey, manifest_of
from recguide.sim.costs import read_profile
from recguide.sim.log import PREFILL_STEP
from recguide.sim.stopped import first_steps
from recguide.validation.pricing import priced

TRACE = random_trace(3, 12, ease=0.8, min_output_tokens=12)
HEADS = "C,runs,rounds_us,rounds_beside_prefills_us,prefills_us"


@pytest.fixture
def turnover(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    yield __import__("turnover")
    sys.modules.pop("turnover")


def told(turnover, capsys, folder, steps=None) -> list[str]:
    """What it prints of an AR run, whose steps are told as long as they are but for 1 ms more of each prefill."""
    costs = read_profile(profiles.write(folder / "profile.csv")).costs()
    made = as_measured(TRACE, "ar", 2, costs)
    run = made.run if steps is None else first_steps(made.run, steps)
    ids = tuple(made.about.request_ids[number] for number in run.request)
    more_s = np.where(run.steps["block_size"] == PREFILL_STEP, 1e-3, 0.0)
    shift = np.cumsum(more_s) - more_s
    steps_s = {"start_s": run.steps["start_s"] + shift, "seconds": run.steps["seconds"] + more_s}
    run = replace(run, request=np.arange(len(ids)), steps=run.steps | steps_s)
    times = {name: np.interp(getattr(run, name), made.run.steps["start_s"][: len(shift)], steps_s["start_s"])
             for name in ("sent_s", "started_s")}  # fmt: skip
    run = replace(run, **times)
    forward_s = priced(run, costs)[0] + more_s
    about = replace(made.about, request_ids=ids)
    manifest_of(folder / "campaign", Manifest(1, (PointKey("ar", "all", 2),), {"model": "tiny"}))
    write(folder / "campaign", TRACE, replace(made, about=about, run=run, draft_s=0 * more_s, forward_s=forward_s,
                                              stopped=steps is not None))  # fmt: skip
    turnover.main(folder / "campaign", str(folder / "profile.csv"))
    return capsys.readouterr().out.splitlines()


def test_longer_prefills_are_told_apart_from_rounds(turnover, capsys, tmp_path) -> None:
    heads, line = told(turnover, capsys, tmp_path)
    assert heads == HEADS
    assert [abs(float(cell)) for cell in line.split(",")] == [2, 1, 0, 0, 1000]


def test_where_there_are_no_rounds_nothing_is_said_of_them(turnover, capsys, tmp_path) -> None:
    assert told(turnover, capsys, tmp_path, steps=1) == [HEADS, "2,1,,,1000"]
