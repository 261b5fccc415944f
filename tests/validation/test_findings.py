"""What the documentation says was found is what the files of the campaign hold."""

import pytest
from h200 import CAMPAIGNS, ROOT, packed, percent, reached_s, validation

PAGE = (ROOT / "docs" / "validate.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def found() -> tuple[dict, dict]:
    return validation("nld-8b"), validation("nld-8b-cpu-speed")


def checked(found: dict, name: str) -> float:
    return next(check["found"] for check in found["checks"] if check["name"].startswith(name))


def row(start: str) -> str:
    return next(line for line in PAGE.splitlines() if line.startswith(f"| {start}")).replace("*", "")


@pytest.mark.parametrize(
    ("start", "key", "which"),
    [
        ("aggregate throughput", "mean_error", 0),
        ("the same with the CPU's speed known (`--costs cpu-speed`)", "mean_error", 1),
        ("the worst point", "worst_error", 0),
        ("the same with the CPU's speed known | 5% | **10", "worst_error", 1),
        ("throughput per request", "per_request_error", 0),
        ("p99 TPOT", "worst_tpot_error", 0),
    ],
)
def test_errors_are_those_of_the_files(found, start, key, which) -> None:
    of = found[which]["summary"]
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
    assert {each["tau"] for each in one["rankings"]} == {1}
    assert row(f"tau of the ranking, the lowest of {len(one['rankings'])} ").endswith("| 1 | 1 | 1 | 1 |")
    assert f"all {len(one['rankings'])} rankings right" in " ".join(README.split())
    alone = {p["policy"]: abs(p["error"]) for p in one["frontiers"] if p["dataset"] == "all"}
    del alone["all policies"], alone["joint:joint.json"]
    assert f"of the others that is {percent(max(alone.values()))}." in " ".join(PAGE.split())
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


def test_all_rounds_were_foretold_and_what_lacks_is_told(found) -> None:
    for one in found:
        kept = {3} if any(p["held_out"] == ["policy"] for p in one["points"]) else set()
        assert kept == {p["repeats"] for p in one["points"] if p["held_out"] == ["policy"]}
        held = [point["repeats"] for point in one["points"] if point["held_out"] != ["policy"]]
        assert (len(held), held.count(2), held.count(1)) == (16, 14, 2)
        assert all(point["agreement"]["same_steps"] for point in one["points"])
    assert "of these the time sufficed for two repeats, of two of them for one" in " ".join(PAGE.split())
    rounds = sum(point["agreement"]["rounds"] for point in found[0]["points"])
    assert f"{len(found[0]['points'])} points" in PAGE
    assert f"{rounds:,} rounds" in PAGE
    assert f"{rounds:,} rounds" in README


def test_the_policy_that_no_profile_knows_is_named(found) -> None:
    worst = []
    for one in found:
        others = [p for p in one["points"] if not p["key"]["policy"].startswith("joint")]
        worst.append(percent(max(abs(point["error"]["throughput"]) for point in others)))
    told = f"all others are within {worst[0]}, and with the CPU's speed known within {worst[1]}."
    assert told in " ".join(PAGE.split())
    whole = found[0]["summary"]["all points"]
    assert whole["mean_error"] < whole["spread"]
    known = found[1]["summary"]["all points"]
    bias, left = percent(whole["bias"]), percent(known["bias"])
    told = f"too fast by {bias} in the mean with its sign. With the speed known that is {left}"
    assert told in " ".join(PAGE.split())
    joint = next(p for p in found[0]["points"] if p["key"]["policy"].startswith("joint"))
    assert f"The {percent(joint['budget']['parts']['host time'])} are those of `joint`" in PAGE


def test_shares_of_the_budget_are_those_of_the_points(found) -> None:
    parts = [point["budget"]["parts"] for point in found[0]["points"]]
    for name, words in (("step cost", "Step cost"), ("CPU speed", "CPU speed"), ("host time", "Host time")):
        sizes = [abs(each[name]) for each in parts]
        mean, largest = percent(sum(sizes) / len(sizes)), percent(max(sizes))
        assert f"**{words}, {mean} in the mean, up to {largest}" in PAGE
    loops = [loop for point in found[0]["points"] for loop in point["loop_us"]]
    told = f"took {min(loops) / 1e3:.2f} to {max(loops) / 1e3:.2f} ms from one run to another"
    assert told in " ".join(PAGE.split())
    profiled = int(found[0]["profile"]["python_loop_us"])
    share = 100 * sum(loop > profiled for loop in loops) / len(loops)
    told = f"and {profiled / 1e3:.2f} while the profile was measured, so {share:.0f}% of the runs had a slower host"
    assert told in " ".join(PAGE.split())


def test_the_readme_says_how_far_off_it_was(found) -> None:
    mean, worst = (percent(checked(found[0], f"throughput, {name}")) for name in ("mean", "worst"))
    assert f"to within {mean} in the mean" in " ".join(README.split())
    assert f"by {mean} in the mean" in " ".join(README.split())
    of, known = validation("smollm2")["summary"]["all points"], found[1]["summary"]["all points"]
    apart = percent(found[0]["summary"]["all points"]["spread"])
    told = f"({percent(known['mean_error'])} where the speed of the CPU is known), where repeats were {apart} apart"
    assert told in " ".join(README.split())
    small = f"to within {percent(of['mean_error'])}, where repeats were {percent(of['spread'])} apart"
    assert small in " ".join(README.split())
    assert f"{worst} at worst" in README
    policies = ("fixed", "recipe", "overlap")
    points = [each for each in found[0]["points"] if each["key"]["policy"].partition(":")[0] in policies]
    largest = max(abs(each["error"]["throughput"]) for each in points)
    assert f"Fixed blocks, the recipe and overlap are within {percent(largest)}" in " ".join(README.split())
    for profile in (found[0]["profile"], validation("smollm2")["profile"]):
        path = ROOT / "sim" / "profiles" / f"{profile['model']}-h200.csv"
        assert f"# created: {profile['created']}\n" in path.read_text(encoding="utf-8")


def gains_on_the_same_tokens(name: str) -> tuple[int, list[float]]:
    """At C = 1, of overlap over fixed:16 by repeats, on so many tokens as the slower one emitted."""
    runs = packed(CAMPAIGNS / f"{name}-runs.tar.xz", r"/(fixed_16|overlap)-all-c1-r\d\.json$")
    found = {(run["about"]["policy"], run["about"]["repeat"]): run for run in runs}
    tokens = min(sum(run["log"]["emissions"]["tokens"]) for run in found.values())
    pairs = [(found["fixed:16", each], found["overlap", each]) for each in range(1, len(found) // 2 + 1)]
    return tokens, [100 * (reached_s(slow, tokens) / reached_s(fast, tokens) - 1) for slow, fast in pairs]


def test_so_is_what_overlap_gains_on_the_same_tokens() -> None:
    tokens, ours = gains_on_the_same_tokens("nld-8b-ours")
    told = "on the same {} tokens `overlap` is {:.0f} and {:.0f}% ahead in the two repeats".format(tokens, *ours)
    assert told in " ".join(PAGE.split())
    many, paper = gains_on_the_same_tokens("nld-8b")
    assert f"in the campaign above, {min(paper):.0f} to {max(paper):.0f}% on {many}." in " ".join(PAGE.split())
    measured = " ".join((ROOT / "docs" / "measured.md").read_text(encoding="utf-8").split())
    told = f"by {min(paper):.0f} to {max(paper):.0f} %, by our trace by {ours[0]:.0f} and {ours[1]:.0f} %."
    assert told in measured


def test_the_other_campaigns_are_those_of_their_files() -> None:
    ours, small = validation("nld-8b-ours"), validation("smollm2")
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
    known = validation("nld-8b-ours-cpu-speed")["summary"]["all points"]
    told = f"known, they are {100 * known['mean_error']:.1f} and {percent(known['worst_error'])}"
    assert told in " ".join(PAGE.split())
    errors = ours["summary"]["all points"]
    told = f"Errors are {percent(errors['mean_error'])} in the mean, {percent(errors['worst_error'])} at worst"
    areas = {each["policy"]: abs(each["error"]) for each in ours["frontiers"] if each["dataset"] == "all"}
    area = (
        f"hypervolume {percent(areas.pop('all policies'))} ({percent(max(areas.values()))} of the worst policy alone)"
    )
    assert f"{told}, rankings right at every C, {area}." in " ".join(PAGE.split())
    assert f"{sum(p['agreement']['rounds'] for p in ours['points']):,} rounds" in PAGE
    assert all(point["agreement"]["same_steps"] for point in ours["points"])
    of, known = (validation(name)["summary"]["all points"] for name in ("smollm2", "smollm2-cpu-speed"))
    told = row(f"the same with the CPU's speed known | 5% | **{percent(known['mean_error'])}")
    assert told.endswith(f"{percent(known['mean_error'])} |")
    assert row("aggregate throughput, mean absolute error | 5%").endswith(f"{percent(of['mean_error'])} |")
    assert row("the worst point | - |").endswith(f"{percent(of['worst_error'])} |")
    assert row("its mean with its sign").endswith(f"{percent(of['bias'])} |")
    # allocation had other prices when it was served: with its own trace it is no longer foretold
    parts = [p["budget"]["parts"] for p in small["points"] if not p["key"]["policy"].startswith("allocation")]
    shares = {}
    for name in ("acceptance", "step cost", "CPU speed", "host time"):
        mean = sum(abs(part[name]) for part in parts) / len(parts)
        bias = sum(part[name] for part in parts) / len(parts)
        shares[name] = f"{percent(mean)} ({100 * bias:+.1f}%)"
    for name in ("Acceptance", "Step cost"):
        assert f"- **{name}, {shares[name.lower()]}.**" in PAGE
    assert f"- **Host, {shares['host time']}, and CPU speed, {shares['CPU speed']}.**" in PAGE


def test_what_smollm2_misses_is_told() -> None:
    small = validation("smollm2")
    section = PAGE.split("\n### SmolLM2 with real acceptance\n")[1].split("\n### ")[0].replace("*", "")
    of = small["summary"]["all points"]
    assert f"| throughput per request, mean | 3% | {percent(of['per_request_error'])} |" in section
    assert f"| p99 TPOT, the worst point | 10% | {percent(of['worst_tpot_error'])} |" in section
    assert {point["repeats"] for point in small["points"]} == {3}
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
    assert [(each["tau"], each["pairs"]) for each in small["rankings"] if each["dataset"] != "all"] == [(1, 1)] * 2
    assert f"| 1, 2% | 1, {percent(sizes[0])}, {percent(sizes[1])} |" in section
    places = [(count, "all") for count in (1, 4, 8, 16, 64)] + [(4, "math-500"), (4, "humaneval")]
    for who in ("simulated", "measured"):
        speeds = {
            (p["key"]["policy"], p["key"]["concurrency"], p["key"]["dataset"]): p[who]["throughput"]
            for p in small["points"]
        }
        gains = [100 * (speeds["allocation:policy.json", *at] / speeds["fixed:16", *at] - 1) for at in places]
        assert f"| {who} | {' | '.join(f'{gain:+.1f}' for gain in gains)} |" in section
