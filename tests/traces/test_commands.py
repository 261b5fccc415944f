"""`recguide traces show`, run as a command."""

import json
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pytest
from running import Recguide
from spoiling import at, with_cell, with_provenance
from strategies import random_trace

from recguide.traces.files import write_trace


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


def test_show_prints_provenance_counts_and_every_table(recorded: Path, recguide: Recguide) -> None:
    done = recguide("traces", "show", recorded)
    assert (done.code, done.stderr) == (0, "")
    for words in ("weights_sha256", "prompt too long", "over requests", "Table 1", "Figure 3", "continuation right"):
        assert words in done.stdout


def test_json_is_strict_and_holds_the_same(recorded: Path, recguide: Recguide) -> None:
    done = recguide("traces", "show", recorded, "--json")
    assert (done.code, done.stderr) == (0, "")
    found = strict(done.stdout)
    assert set(found) == {
        "provenance", "requests", "acceptance", "offsets", "transitions", "confidence", "rejections",
    }  # fmt: skip
    assert found["provenance"]["dropped"] == {"gsm8k": {"prompt too long": 7}}
    assert [curve["block_size"] for curve in found["offsets"]] == [4, 8, 16, 32]


def test_json_of_a_trace_without_rounds_is_strict(tmp_path: Path, recguide: Recguide) -> None:
    write_trace(random_trace(1, 2, max_output_tokens=1), tmp_path / "t.parquet")
    done = recguide("traces", "show", tmp_path / "t.parquet", "--json", "--plot", tmp_path / "p.png")
    assert done.code == 0, done.stderr
    assert strict(done.stdout)["transitions"]["rates"] == [[None] * 3] * 3


def test_plot_writes_the_picture_and_nothing_else(recorded: Path, recguide: Recguide) -> None:
    done = recguide("traces", "show", recorded, "--plot", recorded.with_name("p.png"))
    assert (done.code, done.stderr) == (0, "")
    assert (recorded.parent / "p.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in recorded.parent.iterdir()) == ["p.png", "t.parquet"]


@pytest.mark.parametrize(
    ("plot", "message"), [("p.pdf", "p.pdf: found suffix '.pdf', allowed: .png"), ("none/p.png", "none")]
)
def test_a_picture_that_cannot_be_written_is_bad_input(
    recorded: Path, recguide: Recguide, plot: str, message: str
) -> None:
    done = recguide("traces", "show", recorded, "--plot", recorded.parent / plot)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr


def test_an_unknown_option_is_bad_input(recorded: Path, recguide: Recguide) -> None:
    done = recguide("traces", "show", recorded, "--no-such")
    assert (done.code, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:500]), "t.parquet: not a readable Parquet file"),
        (lambda path: path.write_bytes(b""), "t.parquet: not a readable Parquet file"),
        (lambda path: path.unlink(), "t.parquet: no such file, folder or shipped trace"),
        (lambda path: with_provenance(path, block_sizes=[8, 4]).replace(path), "t.parquet: block_sizes: found"),
        (lambda path: with_cell(path, "entropy", 0, at(0, nan)).replace(path), "request 'r0': entropy[0]: found nan"),
    ],
)
def test_the_command_exits_2_with_the_message_and_leaves_no_output(
    tmp_path: Path,
    recguide: Recguide,
    spoil: Callable[[Path], object],
    message: str,
) -> None:
    path = tmp_path / "t.parquet"
    write_trace(random_trace(11, 3, (4, 8)), path)
    spoil(path)
    before = sorted(tmp_path.iterdir())
    done = recguide("traces", "show", path, "--json", "--plot", tmp_path / "p.png")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_plot_for_a_folder_that_is_not_there_is_refused(recorded: Path, tmp_path: Path, recguide: Recguide) -> None:
    done = recguide("traces", "show", recorded, "--plot", tmp_path / "none" / "p.png")

    assert done.code == 2
    assert done.stderr.startswith("error: --plot: found ")
