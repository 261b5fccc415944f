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
    ("start", "key"),
    [
        ("aggregate throughput", "mean_error"),
        ("the worst point", "worst_error"),
        ("throughput per request", "per_request_error"),
        ("p99 TPOT", "worst_tpot_error"),
    ],
)
def test_errors_are_those_of_the_files(found, start, key) -> None:
    of = found[0]["summary"]
    wanted = [of[name][key] for name in ("all points", "held out: concurrency", "held out: dataset")]
    assert row(start).removesuffix(" |").split(" | ")[2:] == [percent(each) for each in wanted]


def test_so_are_areas_rankings_and_spreads(found) -> None:
    one = found[0]
    cells = row("hypervolume, all").removesuffix(" |").split(" | ")
    for cell, among in ((2, ["all"]), (4, ["humaneval", "math500"])):
        frontiers = [each for each in one["frontiers"] if each["dataset"] in among]
        together = [abs(each["error"]) for each in frontiers if each["policy"] == "all policies"]
        alone = [abs(each["error"]) for each in frontiers if each["policy"] != "all policies"]
        assert cells[cell] == f"{percent(max(together))}, {percent(max(alone))}"
    assert f"| tau of the ranking, the lowest | 1 | **{checked(one, 'policy ranking'):.2f}** |" in PAGE
    right = [each["tau"] == 1 for each in one["rankings"]]
    assert f"{sum(right)} of {len(right)} rankings right" in " ".join(README.split())
    spreads = [one["summary"][name]["spread"] for name in ("all points", "held out: concurrency", "held out: dataset")]
    assert row("spread of").removesuffix(" |").split(" | ")[2:] == [percent(each) for each in spreads]


def test_so_are_errors_by_policy(found) -> None:
    by: dict[str, list[float]] = {}
    for point in found[0]["points"]:
        by.setdefault(point["key"]["policy"].partition(":")[0], []).append(point["error"]["throughput"])
    names = {"fixed blocks": "fixed"} | {name: name for name in ("ar", "recipe", "overlap", "adaptive", "regime")}
    for told, name in (names | {"allocation": "allocation"}).items():
        sizes = [abs(error) for error in by[name]]
        assert f"{told} {percent(sum(sizes) / len(sizes))} ({percent(max(sizes))})" in " ".join(PAGE.split())


def test_what_is_left_without_the_errors_of_steps_is_that_of_the_file(found) -> None:
    left = found[1]["summary"]["all points"]
    told = (
        f"leaves {percent(left['mean_error'])} and a bias of {percent(left['bias'])}, {percent(left['worst_error'])} at"
    )
    assert told in " ".join(PAGE.split())


def test_all_points_have_their_repeats_and_every_round_was_foretold(found) -> None:
    for one in found:
        assert {point["repeats"] for point in one["points"]} == {3}
        assert one["missing"] == []
        other = [point["key"]["policy"] for point in one["points"] if not point["agreement"]["same_steps"]]
        assert other == ["joint:joint.json"]
    foretold = [point["agreement"] for point in found[0]["points"] if point["agreement"]["same_steps"]]
    rounds = sum(each["rounds"] for each in foretold)
    assert f"{len(found[0]['points'])} points" in PAGE
    assert f"{rounds:,} rounds" in PAGE
    assert f"{rounds:,} rounds" in README


def test_the_rankings_that_are_not_right_are_named(found) -> None:
    wrong = [(rank["concurrency"], rank["disordered"]) for rank in found[0]["rankings"] if rank["tau"] < 1]
    assert wrong == [
        (2, [["regime:file=policy.json", "allocation:policy.json"]]),
        (8, [["allocation:policy.json", "joint:joint.json"]]),
    ]
    assert "have `joint` before `allocation` at C = 8,\nand `allocation` before `regime` at C = 2" in PAGE
    others = [p for p in found[0]["points"] if not p["key"]["policy"].startswith("joint")]
    largest = max(abs(point["error"]["throughput"]) for point in others)
    assert f"all others are within {percent(largest)}." in PAGE
    assert found[0]["summary"]["all points"]["mean_error"] < found[0]["summary"]["all points"]["spread"]


def test_shares_of_the_budget_are_those_of_the_points(found) -> None:
    parts = [point["budget"]["parts"] for point in found[0]["points"]]
    for name in ("step cost", "host time"):
        sizes = [abs(each[name]) for each in parts]
        mean, largest = percent(sum(sizes) / len(sizes)), percent(max(sizes))
        assert f"**{name.capitalize()}, {mean} in the mean, up to {largest}" in PAGE


def test_the_readme_says_how_far_off_it_was(found) -> None:
    mean, worst = (percent(checked(found[0], f"throughput, {name}")) for name in ("mean", "worst"))
    assert f"to within {mean} in the mean" in " ".join(README.split())
    assert f"by {mean} in the mean" in " ".join(README.split())
    of = document("smollm2")["summary"]["all points"]
    small = f"to within {percent(of['mean_error'])}, where repeats were {percent(of['spread'])} apart"
    assert small in " ".join(README.split())
    assert f"{worst} at worst" in README
    policies = ("fixed", "recipe", "overlap")
    points = [each for each in found[0]["points"] if each["key"]["policy"].partition(":")[0] in policies]
    largest = max(abs(each["error"]["throughput"]) for each in points)
    assert f"Fixed blocks, the recipe and overlap are within {percent(largest)}" in " ".join(README.split())
    created = f"# created: {found[0]['profile']['created']}\n"
    for path in (ROOT / "sim" / "profiles" / "nld-8b-h200.csv", FOLDER / "nld-8b-profile.csv"):
        assert created in path.read_text(encoding="utf-8")


def test_the_other_campaigns_are_those_of_their_files() -> None:
    ours, small = document("nld-8b-ours"), document("smollm2")
    places = [point["key"] for point in ours["points"] if point["key"]["dataset"] == "all"]
    points = [point for point in ours["points"] if point["key"] in places]
    speeds = {(p["key"]["policy"], p["key"]["concurrency"]): (p["measured"], p["simulated"]) for p in points}
    for count in (2, 8, 32, 128):
        cells = next(line for line in PAGE.splitlines() if line.startswith(f"| {count} | ")).strip("| ").split(" | ")
        plain = speeds["recipe", count]
        told = [f"{plain[0]['throughput']:,.0f}"]
        for name in ("adaptive", "allocation"):
            mine = speeds[f"{name}:policy.json", count]
            gains = [100 * (mine[who]["throughput"] / plain[who]["throughput"] - 1) for who in (0, 1)]
            told += [f"{mine[0]['throughput']:,.0f}", *(f"{gain:+.1f}%" for gain in gains)]
        assert cells[1:] == told
    fixed, above, ar = (speeds[name, 1] for name in ("fixed:16", "overlap", "ar"))
    gains = [100 * (above[who]["throughput"] / fixed[who]["throughput"] - 1) for who in (0, 1)]
    figures = [f"{each[0]['throughput']:.0f}" for each in (fixed, above, ar)]
    told = f"`overlap` {figures[1]} ({gains[0]:+.1f}%, simulated {gains[1]:+.1f}%), AR {figures[2]}"
    assert f"`fixed:16` has {figures[0]}, {told}" in " ".join(PAGE.split())
    assert all(each["tau"] == 1 for each in ours["rankings"])
    errors = ours["summary"]["all points"]
    told = f"Errors are {percent(errors['mean_error'])} in the mean, {percent(errors['worst_error'])} at worst"
    assert told in " ".join(PAGE.split())
    assert f"{sum(p['agreement']['rounds'] for p in ours['points']):,} rounds" in PAGE
    assert all(point["agreement"]["same_steps"] for point in ours["points"])
    of = small["summary"]["all points"]
    assert row("aggregate throughput, mean absolute error | 5%").endswith(f"{percent(of['mean_error'])} |")
    assert row("the worst point | - |").endswith(f"{percent(of['worst_error'])} |")
    assert row("its mean with its sign").endswith(f"{percent(of['bias'])} |")
    parts = [point["budget"]["parts"] for point in small["points"]]
    for name, words in (("step cost", "Step cost"), ("host time", "Host"), ("acceptance", "Acceptance")):
        mean = sum(abs(part[name]) for part in parts) / len(parts)
        bias = sum(part[name] for part in parts) / len(parts)
        assert f"- **{words}, {percent(mean)} ({100 * bias:+.1f}%).**" in PAGE


def test_what_smollm2_misses_is_told() -> None:
    small = document("smollm2")
    section = PAGE.split("\n### SmolLM2 with real acceptance\n")[1].split("\n### ")[0].replace("*", "")
    of = small["summary"]["all points"]
    assert f"| throughput per request, mean | 3% | {percent(of['per_request_error'])} |" in section
    assert f"| p99 TPOT, the worst point | 10% | {percent(of['worst_tpot_error'])} |" in section
    taus = [each["tau"] for each in small["rankings"] if each["dataset"] == "all"]
    told = next(line for line in section.splitlines() if line.startswith("| tau of the ranking")).split(" | ")[2]
    assert [float(cell.split()[0]) for cell in told.removesuffix(" |").split(", ")] == [round(tau, 2) for tau in taus]
    frontiers = [each for each in small["frontiers"] if each["dataset"] == "all"]
    together, *alone = sorted(frontiers, key=lambda each: each["policy"] != "all policies")
    worst = max(abs(each["error"]) for each in alone)
    assert f"| 2% | {percent(abs(together['error']))}, {percent(worst)} |" in section
    apart = [each for each in small["frontiers"] if each["dataset"] != "all"]
    sizes = [
        max(abs(each["error"]) for each in apart if (each["policy"] == "all policies") is together)
        for together in (True, False)
    ]
    assert [(each["tau"], each["pairs"]) for each in small["rankings"] if each["dataset"] != "all"] == [(-1, 1)] * 2
    assert f"| 1, 2% | -1 (of one pair each), {percent(sizes[0])}, {percent(sizes[1])} |" in section
    by: dict[str, list[float]] = {}
    for point in small["points"]:
        by.setdefault(point["key"]["policy"].partition(":")[0], []).append(point["budget"]["parts"]["host time"])
    means = [100 * sum(by[name]) / len(by[name]) for name in ("ar", "fixed", "adaptive", "allocation")]
    assert (round(means[1]), [f"{abs(each):.0f}" for each in means]) == (0, ["4", "0", "6", "11"])
    assert "4% less than the profile says under AR, as much under fixed blocks" in " ".join(section.split())
    assert "6% more under `adaptive` and 11% more under `allocation`" in " ".join(section.split())
    worst = max(small["points"], key=lambda point: abs(point["error"]["throughput"]))["key"]
    told = f"The worst point is `{worst['policy'].partition(':')[0]}` at C = {worst['concurrency']}, whose planning"
    assert told in " ".join(section.split())
    places = [(count, "all") for count in (1, 4, 8, 16, 64)] + [(4, "math-500"), (4, "humaneval")]
    for who in ("simulated", "measured"):
        speeds = {
            (p["key"]["policy"], p["key"]["concurrency"], p["key"]["dataset"]): p[who]["throughput"]
            for p in small["points"]
        }
        gains = [100 * (speeds["allocation:policy.json", *at] / speeds["fixed:16", *at] - 1) for at in places]
        assert f"| {who} | {' | '.join(f'{gain:+.1f}' for gain in gains)} |" in section
