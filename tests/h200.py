"""What was measured on an H200, as files of the repository hold it; pages that tell of it are held against them."""

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "h200"
CAMPAIGNS = FOLDER / "validation"


def validation(name: str) -> dict:
    """What `recguide validate` said of a campaign."""
    return json.loads((CAMPAIGNS / f"{name}.json").read_text(encoding="utf-8"))


def packed(path: Path, names: str = r"-r\d\.json$") -> Iterator[dict]:
    """The runs in an archive whose names have this in them: all that are no anchors."""
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            if re.search(names, member.name):
                held = archive.extractfile(member)
                assert held is not None
                yield json.load(held)


def reached_s(run: dict, tokens: int) -> float:
    """When so many tokens had been emitted."""
    steps, emissions, total = run["log"]["steps"], run["log"]["emissions"], 0
    for count, step in zip(emissions["tokens"], emissions["step"], strict=True):
        total += count
        if total >= tokens:
            return steps["start_s"][step] + steps["seconds"][step]
    raise AssertionError(f"{total} tokens")


def steady(run: dict) -> float:
    """Tokens a second while all places were taken."""
    return run["steady_output_throughput"]


def percent(share: float) -> str:
    """As pages write it."""
    return f"{100 * share:.1f}%"


def table_behind(page: str, mention: str) -> list[list[str]]:
    """The rows of the table behind the mention, below its head."""
    after = page[page.index(mention) :].split("\n\n")[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in after.splitlines()[2:]]
