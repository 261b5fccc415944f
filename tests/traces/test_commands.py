"""`recguide traces show`, run as a command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from strategies import random_trace

from recguide.traces.files import write_trace

MAIN = "import sys; from recguide.sim.cli import main; sys.argv[0] = 'recguide'; main()"


def recguide(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def strict(text: str) -> Any:
    """JSON without NaN and the infinities, which Python would let through."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "t.parquet"
    write_trace(random_trace(1, 6, dropped={"gsm8k": {"prompt too long": 7}}), path)
    return path


def test_show_prints_provenance_counts_and_every_table(recorded: Path) -> None:
    done = recguide("traces", "show", recorded, cwd=recorded.parent)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("weights_sha256", "prompt too long", "over requests", "Table 1", "Figure 3", "continuation right"):
        assert words in done.stdout


def test_json_is_strict_and_holds_the_same(recorded: Path) -> None:
    done = recguide("traces", "show", recorded, "--json", cwd=recorded.parent)
    assert (done.returncode, done.stderr) == (0, "")
    found = strict(done.stdout)
    assert set(found) == {
        "provenance", "requests", "acceptance", "offsets", "transitions", "confidence", "rejections",
    }  # fmt: skip
    assert found["provenance"]["dropped"] == {"gsm8k": {"prompt too long": 7}}
    assert [curve["block_size"] for curve in found["offsets"]] == [4, 8, 16, 32]


def test_json_of_a_trace_without_rounds_is_strict(tmp_path: Path) -> None:
    write_trace(random_trace(1, 2, max_output_tokens=1), tmp_path / "t.parquet")
    done = recguide("traces", "show", "t.parquet", "--json", "--plot", "p.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert strict(done.stdout)["transitions"]["rates"] == [[None] * 3] * 3


def test_plot_writes_the_picture_and_nothing_else(recorded: Path) -> None:
    done = recguide("traces", "show", recorded, "--plot", "p.png", cwd=recorded.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert (recorded.parent / "p.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in recorded.parent.iterdir()) == ["p.png", "t.parquet"]


@pytest.mark.parametrize(
    ("plot", "message"), [("p.pdf", "p.pdf: found suffix '.pdf', allowed: .png"), ("none/p.png", "none")]
)
def test_a_picture_that_cannot_be_written_is_bad_input(recorded: Path, plot: str, message: str) -> None:
    done = recguide("traces", "show", recorded, "--plot", plot, cwd=recorded.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_an_unknown_option_is_bad_input(recorded: Path) -> None:
    done = recguide("traces", "show", recorded, "--no-such", cwd=recorded.parent)
    assert (done.returncode, done.stdout) == (2, "")
