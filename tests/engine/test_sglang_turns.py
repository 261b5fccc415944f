"""Engines that started together serve in turn."""

import subprocess
import sys
import time
from pathlib import Path

from recguide.engine.sglang_client import ALIVE, is_alive, locked

SERVES = """
import sys, time
from pathlib import Path
from recguide.engine.sglang_client import ALIVE, Run, locked, turns
folder, repeats, dies = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
runs = [Run(level, [0], 0, "", repeat) for repeat in range(1, repeats + 1) for level in (1, 4)]
with locked(folder / ALIVE):
    (folder / "there").touch()
    while not (folder.parent / "go").exists():
        time.sleep(0.01)
    for group in turns(folder, runs):
        for run in group:
            with (folder.parent / "log").open("a") as file:
                file.write(f"{folder.name} {run.repeat} {run.concurrency}\\n")
            time.sleep(0.05)
        if run.repeat == dies:
            sys.exit(3)
"""


def served(folder: Path, repeats: int, dying: dict[str, int]) -> list[list[str]]:
    """Names, repeats and concurrencies in the order in which three engines served."""
    processes = []
    for name in "abc":
        (folder / name).mkdir()
        told = [str(folder / name), str(repeats), str(dying.get(name, 0))]
        processes.append(subprocess.Popen([sys.executable, "-c", SERVES, *told]))
    while not all((folder / name / "there").exists() for name in "abc"):
        time.sleep(0.01)
    (folder / "go").touch()
    codes = [each.wait(60) for each in processes]
    assert codes == [3 if name in dying else 0 for name in "abc"]
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def test_all_serve_one_repeat_before_one_serves_the_next(tmp_path: Path) -> None:
    order = served(tmp_path, 3, {})
    assert [repeat for _, repeat, _ in order] == ["1"] * 6 + ["2"] * 6 + ["3"] * 6
    for first in range(0, 18, 2):
        # nobody comes in between the runs of a repeat
        assert [level for _, _, level in order[first : first + 2]] == ["1", "4"]
        assert order[first][0] == order[first + 1][0]
    for start in (0, 6, 12):
        assert {name for name, _, _ in order[start : start + 6]} == {"a", "b", "c"}


def test_who_has_died_is_not_waited_for(tmp_path: Path) -> None:
    order = served(tmp_path, 3, {"b": 1})
    assert [repeat for name, repeat, _ in order if name != "b"] == ["1"] * 4 + ["2"] * 4 + ["3"] * 4
    assert [repeat for name, repeat, _ in order if name == "b"] == ["1"] * 2


def test_a_job_is_alive_as_long_as_its_file_is_locked(tmp_path: Path) -> None:
    assert not is_alive(tmp_path)
    with locked(tmp_path / ALIVE):
        assert is_alive(tmp_path)
    assert not is_alive(tmp_path)
