"""What the page on SGLang says was measured is what the files of these runs hold."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from recguide.engine.sglang_times import beside_prefills
from recguide.sim.log import PREFILL_STEP
from recguide.sim.measurement import Measurement, read_measurement
from recguide.sim.windows import steady_window

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "h200"
PAGE = (ROOT / "docs" / "sglang.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
PAPER, OURS = "sglang-nld-8b-h200", "sglang-nld-8b-ours-h200"
ADAPTIVE, ALLOCATION = "adaptive", "allocation"
POLICIES = "sglang:ar", "fixed:16", "overlap:B=16", "recipe", ADAPTIVE, ALLOCATION
FIRST, SECOND, LATER = "ca4aefd", "2867227", "eba6681"
LOADS = 2, 8, 32, 64


def runs(name: str, commit: str = SECOND) -> dict[tuple[str, int], dict]:
    """Those of one commit, by policy and concurrency, fitted blocks whatever their file's name."""
    found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    kept = [run for run in found if run["engine_commit"].startswith(commit)]
    heads = [run["policy"].partition(":")[0] for run in kept]
    names = [head if head in (ADAPTIVE, ALLOCATION) else run["policy"] for head, run in zip(heads, kept, strict=True)]
    return {(name, run["max_concurrency"]): run for name, run in zip(names, kept, strict=True)}


def shown(name: str) -> dict[tuple[str, int], dict]:
    """Those in the tables: by the paper's acceptance, policies that share a step's requests out are of a later run."""
    return runs(name) | (runs(name, LATER) if name == PAPER else {})


def steady(run: dict) -> float:
    return run["steady_output_throughput"]


def table(mention: str) -> list[list[str]]:
    """The rows of the table behind the mention, below its head."""
    after = PAGE[PAGE.index(mention) :].split("\n\n")[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in after.splitlines()[2:]]


def by_load(file: str) -> dict[int, list[str]]:
    """The same by concurrency."""
    return {int(cells[0]): cells[1:] for cells in table(f"{file}.json`")}


@pytest.mark.parametrize("file", [PAPER, OURS])
def test_throughputs_and_tpots_are_those_of_the_files(file: str) -> None:
    found, told = shown(file), by_load(file)
    policies = POLICIES if file == PAPER else POLICIES[:-1]
    assert len(told) == 5
    for concurrency, cells in told.items():
        for policy, cell in zip(policies, cells, strict=False):
            run = found.get((policy, concurrency))
            if run is None:
                assert cell in ("", "not measured")
            else:
                assert cell == f"{steady(run):.0f}, {run['mean_tpot_ms']:.2f}"
        if concurrency > 1:
            ours, other = (ALLOCATION, ADAPTIVE) if file == PAPER else (ADAPTIVE, "recipe")
            ratio = steady(found[ours, concurrency]) / steady(found[other, concurrency])
            assert cells[len(policies)] == f"{100 * (ratio - 1):+.0f} %"


def test_steps_and_their_host_are_those_of_the_files() -> None:
    rows = table("The time of a step")
    for file, figure, (_, *cells) in zip(
        (PAPER, PAPER, OURS, OURS), ("mean_step_ms", "mean_host_ms") * 2, rows, strict=True
    ):
        found = shown(file)
        for policy, cell in zip(POLICIES[1:], cells, strict=True):
            loads = (1,) if policy in POLICIES[:3] else LOADS
            values = [found[policy, load][figure] for load in loads if (policy, load) in found]
            assert cell == " / ".join(f"{value:.2f}" for value in values)


def test_allocation_is_told_of_as_it_was() -> None:
    found = runs(PAPER, LATER)
    over = {load: 100 * (steady(found[ALLOCATION, load]) / steady(found[ADAPTIVE, load]) - 1) for load in LOADS}
    assert (
        "it is {:.0f}, {:.0f} and {:.0f} % ahead at C = 8, 32 and 64".format(*(over[load] for load in LOADS[1:]))
        in TEXT
    )
    assert f"{over[32]:.0f} to {over[8]:.0f} % more tokens a second from C = 8 on" in TEXT
    many = [found[policy, 64] for policy in (ALLOCATION, ADAPTIVE)]
    assert (
        "{:.1f} requests instead of {:.1f}".format(*(run["num_rounds"] / run["verify_forwards"] for run in many))
        in TEXT
    )
    assert "({:.2f} instead of {:.2f})".format(*(run["accept_length"] for run in many)) in TEXT
    assert "{:.0f} ms, not {:.0f})".format(*(run["p99_itl_ms"] for run in many)) in TEXT
    recipe = [100 * (steady(found[ALLOCATION, load]) / steady(found["recipe", load]) - 1) for load in (2, 8)]
    assert f"{-recipe[0]:.0f} % behind at C = 2 and {recipe[1]:.0f} % ahead at C = 8" in TEXT
    ours, other = (found[policy, 8]["output_throughput"] for policy in (ALLOCATION, "recipe"))
    assert f"{100 * (1 - ours / other):.0f} % behind ({ours:.0f}, {other:.0f})" in TEXT


def test_three_runs_of_adaptive_are_those_of_the_file() -> None:
    each = [runs(PAPER, commit) for commit in (FIRST, SECOND, LATER)]
    values = {load: [steady(found[ADAPTIVE, load]) for found in each] for load in LOADS}
    for load, (one, two, three) in values.items():
        assert f"{one:.0f}, {two:.0f} and {three:.0f} at C = {load}" in TEXT
    more = [100 * (steady(each[2][ALLOCATION, load]) / values[load][0] - 1) for load in LOADS]
    assert "`allocation` has {:.0f}, {:.0f}, {:.0f} and {:.0f} % more".format(*more) in TEXT


def measured(policy: str, load: int) -> Measurement:
    (path,) = (FOLDER / "sglang-block-runs").glob(f"{policy}*-c{load}-r1.json.gz")
    return read_measurement(path)


def steady_without(run: Measurement, seconds: float) -> float:
    """Tokens a second in the steady window, had it been so much shorter."""
    window = steady_window(run.run)
    assert window is not None
    start, end = window
    ends = run.run.steps["start_s"] + run.run.steps["seconds"]
    when = ends[run.run.emission_step]
    return float(run.run.emission_tokens[(when > start) & (when <= end)].sum() / (end - start - seconds))


def rounds_ms(run: Measurement) -> np.ndarray:
    """How long each round took, but for those that still ran when a prefill came."""
    steps = run.run.steps
    rounds: np.ndarray = steps["seconds"][(steps["block_size"] != PREFILL_STEP) & ~beside_prefills(steps)] * 1e3
    return rounds


def test_pauses_and_slow_steps_are_those_of_the_runs() -> None:
    ours, other = measured(ALLOCATION, 8), measured(ADAPTIVE, 8)
    pause = float(
        (other.run.steps["start_s"][1:] - (other.run.steps["start_s"] + other.run.steps["seconds"])[:-1]).max()
    )
    assert f"a pause of {pause:.2f} s before a prefill" in TEXT
    left = 100 * (steady_without(ours, 0) / steady_without(other, pause) - 1)
    assert f"without it {left:.0f} % are left" in TEXT
    few, more = rounds_ms(ours), rounds_ms(measured(ALLOCATION, 32))
    slow, slower = np.sort(few[few > 40]), np.sort(more[more > 40])
    assert (len(slow), len(slower)) == (3, 2)
    assert f"three of {slow[0]:.0f} to {slow[-1]:.0f} ms" in TEXT
    assert f"others take {np.median(few):.1f} by the median" in TEXT
    assert f"at C = 32 two of {slower[0]:.0f} and {slower[1]:.0f}" in TEXT


def test_rounds_are_counted_again_from_the_runs() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import overlap_rounds

    told = json.loads((FOLDER / "sglang-overlap-rounds.json").read_text(encoding="utf-8"))
    by = {each["folder"]: each for each in told}
    folders = list((FOLDER / "sglang-runs").iterdir())
    assert {folder.name: overlap_rounds.folder_of(folder, 16) for folder in folders} == by
    small = by["smollm2"]
    assert f"take {100 * (small['ratio']['forward'] - 1):.1f} % more for SmolLM2" in TEXT
    steps = [100 * (by[name]["ratio_composed"]["step"] - 1) for name in ("nld-8b", "nld-8b-ours")]
    assert f"+{steps[0]:.1f} and +{steps[1]:.1f} % in all" in TEXT
