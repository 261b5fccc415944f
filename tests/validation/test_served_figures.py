"""What the page on SGLang says was measured is what the files of these runs hold."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "h200"
PAGE = (ROOT / "docs" / "sglang.md").read_text(encoding="utf-8")
ADAPTIVE = "adaptive"
POLICIES = "sglang:ar", "fixed:16", "overlap:B=16", "recipe", ADAPTIVE
COMMIT = "2867227"


def runs(name: str) -> dict[tuple[str, int], dict]:
    """Those of one commit, by policy and concurrency, fitted blocks whatever their file's name."""
    found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    kept = [run for run in found if run["engine_commit"].startswith(COMMIT)]
    names = [ADAPTIVE if run["policy"].startswith(ADAPTIVE) else run["policy"] for run in kept]
    return {(name, run["max_concurrency"]): run for name, run in zip(names, kept, strict=True)}


def tables(file: str) -> dict[int, list[str]]:
    """The rows of the table behind the mention of a file, by their concurrency."""
    after = PAGE[PAGE.index(f"{file}.json`):") :].split("\n\n")[1]
    rows = [line.strip("| ").split("|") for line in after.splitlines()[2:]]
    return {int(cells[0]): [cell.strip() for cell in cells[1:]] for cells in rows}


@pytest.mark.parametrize("file", ["sglang-nld-8b-h200", "sglang-nld-8b-ours-h200"])
def test_throughputs_and_tpots_are_those_of_the_files(file: str) -> None:
    found, told = runs(file), tables(file)
    assert len(told) == 5
    for concurrency, cells in told.items():
        for policy, cell in zip(POLICIES, cells, strict=False):
            run = found.get((policy, concurrency))
            if run is None:
                assert cell in ("", "not yet")
            else:
                assert cell == f"{run['steady_output_throughput']:.0f}, {run['mean_tpot_ms']:.2f}"
        if "-ours-" in file and concurrency > 1:
            ours, recipe = (found[name, concurrency]["steady_output_throughput"] for name in (ADAPTIVE, "recipe"))
            assert cells[5] == f"{100 * (ours / recipe - 1):.0f} %"


def test_rounds_are_counted_again_from_the_runs() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import overlap_rounds

    told = json.loads((FOLDER / "sglang-overlap-rounds.json").read_text(encoding="utf-8"))
    by = {each["folder"]: each for each in told}
    folders = list((FOLDER / "sglang-runs").iterdir())
    assert {folder.name: overlap_rounds.folder_of(folder, 16) for folder in folders} == by
    small = by["smollm2"]
    assert f"take {100 * (small['ratio']['forward'] - 1):.1f} % more for SmolLM2" in " ".join(PAGE.split())
    steps = [100 * (by[name]["ratio_composed"]["step"] - 1) for name in ("nld-8b", "nld-8b-ours")]
    assert f"+{steps[0]:.1f} and +{steps[1]:.1f} % in all" in " ".join(PAGE.split())
