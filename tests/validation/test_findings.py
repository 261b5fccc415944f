"""What the documentation says was found is what the files of the campaign hold."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "h200" / "validation"
PAGE = (ROOT / "docs" / "validate.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def document(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found() -> tuple[dict, dict]:
    return document("nld-8b"), document("nld-8b-corrected")


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def checked(found: dict, name: str) -> float:
    return next(check["found"] for check in found["checks"] if check["name"].startswith(name))


def row(start: str) -> str:
    return next(line for line in PAGE.splitlines() if line.startswith(f"| {start}")).replace("*", "")


@pytest.mark.parametrize(
    ("start", "check"),
    [
        ("aggregate throughput", "throughput, mean"),
        ("the worst point", "throughput, worst"),
        ("throughput per request", "throughput per request"),
        ("p99 TPOT", "p99 TPOT"),
    ],
)
def test_errors_are_those_of_the_files(found, start, check) -> None:
    assert row(start).split(" | ")[2:] == [percent(checked(found[0], check)), percent(checked(found[1], check)) + " |"]


def test_so_are_areas_rankings_and_spreads(found) -> None:
    for number, one in enumerate(found, 2):
        areas = {each["policy"]: abs(each["error"]) for each in one["frontiers"]}
        together = areas.pop("all policies")
        assert (
            row("hypervolume, all").removesuffix(" |").split(" | ")[number]
            == f"{percent(together)}, {percent(max(areas.values()))}"
        )
        assert f"{checked(one, 'policy ranking'):.2f}" in row("tau of").split(" | ")[number]
        assert [each["concurrency"] for each in one["rankings"] if each["tau"] < 1] == [2]
        assert percent(one["summary"]["all points"]["spread"]) in row("spread of")


def test_all_points_have_their_repeats_and_every_round_was_foretold(found) -> None:
    for one in found:
        assert {point["repeats"] for point in one["points"]} == {3}
        assert all(point["agreement"]["same_steps"] for point in one["points"])
        assert one["missing"] == []
    rounds = sum(point["agreement"]["rounds"] for point in found[0]["points"])
    assert f"{len(found[0]['points'])} points" in PAGE
    assert f"{rounds:,} rounds" in PAGE
    assert f"{rounds:,} rounds" in README


def test_the_readme_says_how_far_off_it_was(found) -> None:
    mean, worst = (percent(checked(found[0], f"throughput, {name}")) for name in ("mean", "worst"))
    assert README.count(f"by {mean} in the") == 2
    assert f"{worst} at worst" in README
    shipped = (ROOT / "sim" / "profiles" / "nld-8b-h200.csv").read_text(encoding="utf-8")
    assert f"# created: {found[0]['profile']['created']}\n" in shipped
