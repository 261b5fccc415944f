"""What docs/validate.md says of SmolLM2's campaigns, the second one and `allocation`, is what their files hold."""

from h200 import ROOT, percent, validation

PAGE = " ".join((ROOT / "docs" / "validate.md").read_text(encoding="utf-8").split())
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_what_was_begun_anew_is_told() -> None:
    again = validation("smollm2-again")
    of, worst = again["summary"]["all points"], max(again["points"], key=lambda p: abs(p["error"]["throughput"]))
    told = f"{len(again['points'])} points, the points at C = 8 and of single datasets lack, and four repeats"
    assert told in PAGE
    lacking = [(each["concurrency"], each["dataset"]) for each in again["missing"] if each["repeats"] == 3]
    assert {count for count, dataset in lacking if dataset == "all"} == {8}
    assert sum(each["repeats"] for each in again["missing"] if each["repeats"] < 3) == 4
    assert f"Its error is {percent(of['mean_error'])}, " in PAGE
    assert f"repeats {percent(of['spread'])} apart" in PAGE
    assert (worst["key"]["policy"], worst["key"]["concurrency"]) == ("adaptive:policy.json", 4)
    acceptance = worst["budget"]["parts"]["acceptance"]
    told = f"is {percent(worst['error']['throughput'])} off, {percent(acceptance)} of it acceptance"
    assert told in PAGE
    told = f"in a second campaign to within {percent(of['mean_error'])}, where they were {percent(of['spread'])} apart"
    assert told in README


def test_so_is_what_it_ranks_wrongly() -> None:
    again = validation("smollm2-again")
    taus = {each["concurrency"]: round(each["tau"], 2) for each in again["rankings"]}
    assert taus == {1: 1, 4: 0.87, 16: 1, 64: 0.4}
    assert "The ranking is right at C = 1 and 16; tau is 0.87 at 4 and 0.40 at 64" in PAGE
    assert "and two of four rankings wrong" in README
    speeds = {p["key"]["policy"]: p for p in again["points"] if p["key"]["concurrency"] == 64}
    gains = [
        100 * (speeds["allocation:policy.json"][who]["throughput"] / speeds["fixed:16"][who]["throughput"] - 1)
        for who in ("simulated", "measured")
    ]
    told = f"`allocation` is simulated {gains[0]:.1f}% ahead of `fixed:16` and was {-gains[1]:.1f}% behind"
    assert told in PAGE
    together, *alone = sorted(again["frontiers"], key=lambda each: each["policy"] != "all policies")
    tpot = percent(again["summary"]["all points"]["worst_tpot_error"])
    areas = f"{percent(abs(together['error']))}, of the worst policy alone {percent(max(e['error'] for e in alone))}"
    assert f"p99 TPOT is {tpot} off at worst, hypervolume {areas}." in PAGE


def test_the_simulator_says_so_at_six_of_seven_points() -> None:
    speeds = {tuple(p["key"].values()): p for p in validation("smollm2")["points"]}
    gains = {
        who: [
            p[who]["throughput"] / speeds["fixed:16", *key[1:]][who]["throughput"] - 1
            for key, p in speeds.items()
            if key[0].startswith("allocation")
        ]
        for who in ("simulated", "measured")
    }
    assert max(gains["measured"]) < 0
    assert [gain < 0 for gain in gains["simulated"]].count(True) == 6
    assert 0.3 < sum(gains["simulated"]) / sum(gains["measured"]) < 0.4


def test_ties_are_told() -> None:
    large, small = validation("nld-8b")["rankings"], validation("smollm2")["rankings"]
    pairs, ties = (sum(each[name] for each in large) for name in ("pairs", "ties"))
    assert f"Of the {pairs} pairs that are ranked {ties} are closer than their repeats are apart" in PAGE
    pairs, ties = (sum(each[name] for each in small) for name in ("pairs", "ties"))
    assert f"so it is one of {ties} ties among {pairs} pairs" in PAGE
