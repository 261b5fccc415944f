"""What docs/sglang.md says of the later runs by our trace is what their files hold."""

import json
from collections.abc import Callable
from statistics import mean

import numpy as np
import pytest
from h200 import CAMPAIGNS, FOLDER, ROOT, packed, steady, table_behind, validation

FILE = "sglang-nld-8b-ours-bbe484c"
PAGE = (ROOT / "docs" / "sglang.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
POLICIES = "recipe", "adaptive", "allocation"
LOADS = {"recipe": (4, 16, 64, 128), "adaptive": (4, 16, 128), "allocation": (4, 8, 16, 64, 128)}
SEAMLESS_S = 1e-6
"""A round that begins so soon behind a prefill ran beside it."""

Figure = Callable[[dict], float]


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, int], list[dict]]:
    """Repeats by policy and concurrency."""
    told: dict[tuple[str, int], list[dict]] = {}
    for run in json.loads((FOLDER / f"{FILE}-h200.json").read_text(encoding="utf-8")):
        told.setdefault((run["policy"].partition(":")[0], run["max_concurrency"]), []).append(run)
    return told


@pytest.fixture(scope="module")
def logs() -> dict[tuple[str, int, int], dict]:
    """The runs themselves, by policy, concurrency and repeat."""
    return {
        (about["policy"].partition(":")[0], about["concurrency"], about["repeat"]): run
        for run in packed(FOLDER / f"{FILE}-runs.tar.xz")
        if (about := run["about"])
    }


def requests(run: dict) -> float:
    return run["num_rounds"] / run["verify_forwards"]


def of_rounds(run: dict) -> float:
    """Tokens a second of rounds that no prefill was beside, had all been such."""
    steps = run["verify_forwards"] + run["decode_forwards"]
    return (run["total_output_tokens"] - run["num_prompts"]) / steps / run["mean_step_ms"]


def over(found: dict[tuple[str, int], list[dict]], policy: str, load: int, figure: Figure = steady) -> float:
    """By how many per cent a policy is ahead of the recipe, by means of the repeats."""
    one, other = (mean(figure(run) for run in found[name, load]) for name in (policy, "recipe"))
    return 100 * (one / other - 1)


def of_our_engine(campaign: str) -> dict[tuple[str, int], float]:
    """Tokens a second by policy and concurrency."""
    points = validation(campaign)["points"]
    return {
        (point["key"]["policy"].partition(":policy")[0], point["key"]["concurrency"]): point["measured"]["throughput"]
        for point in points
        if point["key"]["dataset"] == "all"
    }


def test_all_are_of_one_commit_and_no_repeat_is_hidden(found) -> None:
    assert {name: tuple(load for other, load in found if other == name) for name in POLICIES} == LOADS
    twice = [key for key, runs in found.items() if len(runs) == 2]
    assert twice == [("recipe", 4), ("recipe", 16), ("recipe", 64)]
    runs = [run for each in found.values() for run in each]
    assert len({run["engine_commit"] for run in runs}) == 1
    assert all(run["merge_drafts"] and not run["failed"] and run["note"] for run in runs)


def test_their_throughputs_are_those_of_the_file(found) -> None:
    told = {int(load): cells for load, *cells in table_behind(PAGE, f"`{FILE}-h200.json`")}
    assert sorted(told) == [4, 8, 16, 64, 128]
    ours = of_our_engine("nld-8b-ours")
    for load, cells in told.items():
        wanted = []
        for policy in POLICIES:
            runs = found.get((policy, load))
            shown = (mean(map(steady, runs)), mean(run["mean_tpot_ms"] for run in runs)) if runs else None
            wanted.append(f"{shown[0]:.0f}, {shown[1]:.2f}" if shown else "")
            if policy != "recipe":
                known = runs and ("recipe", load) in found
                wanted.append(f"{over(found, policy, load):+.0f} %" if known else "")
        engine = [ours.get((policy, load)) for policy in POLICIES]
        wanted.append(" / ".join(f"{value:.0f}" for value in engine if value))
        assert cells == wanted


def test_so_are_their_steps(found) -> None:
    figures: tuple[tuple[Figure, int], ...] = (
        (lambda run: run["mean_step_ms"], 2),
        (lambda run: run["mean_host_ms"], 2),
        (requests, 1),
        (lambda run: run["accept_length"], 2),
    )
    rows = table_behind(PAGE, "By our trace at bbe484c, and the requests")
    for (figure, digits), (_, *cells) in zip(figures, rows, strict=True):
        assert cells == [
            " / ".join(f"{mean(map(figure, found[policy, load])):.{digits}f}" for load in LOADS[policy])
            for policy in POLICIES
        ]


def test_so_is_what_adaptive_lost_and_why(found, logs) -> None:
    losses = [-over(found, "adaptive", load) for load in (4, 16)]
    apart = [100 * (max(map(steady, found["recipe", n])) / min(map(steady, found["recipe", n])) - 1) for n in (4, 16)]
    alone = [-over(found, "adaptive", load, of_rounds) for load in (4, 16)]
    assert "`adaptive` is {:.0f} and {:.0f} % behind the recipe at C = 4 and 16".format(*losses) in TEXT
    assert "two of the recipe are {:.0f} and {:.0f} % apart".format(*apart) in TEXT
    assert "no prefill was beside, {:.0f} and {:.0f} %".format(*alone) in TEXT
    shares = {n: [100 * (logs["adaptive", n, 1][f"block_share_{b}"] or 0) for b in (8, 16, 32)] for n in (4, 16, 128)}
    assert "At C = 4 {:.0f}, {:.0f} and {:.0f} % of the rounds had B = 8, 16 and 32".format(*shares[4]) in TEXT
    assert "At C = 16 {:.0f}, {:.0f} and {:.0f} % had them".format(*shares[16]) in TEXT
    assert f"too little to tell: {shares[128][0]:.0f} % had B = 8" in TEXT
    steps = logs["adaptive", 4, 1]["log"]["steps"]
    waiting = mean(count for count, size in zip(steps["in_flight"], steps["block_size"], strict=True) if size)
    assert f"of {waiting:.1f} requests in flight a step served {requests(found['adaptive', 4][0]):.1f}" in TEXT
    pairs = [(found["allocation", n][0], found["adaptive", n][0]) for n in (4, 16, 128)]
    more = [100 * (steady(one) / steady(other) - 1) for one, other in pairs]
    assert "(by our trace {:.0f}, {:.0f} and {:.0f} % more at C = 4, 16 and 128".format(*more) in TEXT


def test_so_is_what_allocation_had(found, logs) -> None:
    loads = 4, 16, 64, 128
    told = "{:+.0f}, {:+.0f}, {:+.0f} and {:+.0f} %"
    whole = told.format(*(over(found, "allocation", load) for load in loads))
    alone = told.format(*(over(found, "allocation", load, of_rounds) for load in loads))
    assert f"{whole} at C = 4, 16, 64 and 128, by its rounds alone {alone}" in TEXT
    prefills = [prefill_ms(logs[key]) for key in (("allocation", 4, 1), ("recipe", 4, 1), ("recipe", 4, 2))]
    assert "took {:.0f} ms in its run, {:.0f} and {:.0f} in the recipe's two".format(*prefills) in TEXT
    ends = over(found, "allocation", 4, lambda run: run["output_throughput"])
    assert f"With the ends of the load it has {ends:.0f} % there" in TEXT
    first = logs["allocation", 4, 1]
    assert f"prefill {first['log']['steps']['start_s'][0]:.2f} s passed, of {first['duration']:.1f}" in TEXT
    many = found["allocation", 128][0]
    steps = many["decode_forwards"] + many["verify_forwards"]
    assert f"{many['decode_forwards']} of its {steps} steps are AR steps" in TEXT
    hosts = [
        mean(run["mean_host_ms"] for run in found["allocation", n])
        - mean(run["mean_host_ms"] for run in found["recipe", n])
        for n in (4, 128)
    ]
    assert "adds {:.1f} ms more a step than the recipe's at C = 4, {:.1f} ms more at 128".format(*hosts) in TEXT


def prefill_ms(run: dict) -> float:
    steps = run["log"]["steps"]
    each = zip(steps["seconds"], steps["block_size"], strict=True)
    return 1e3 * mean(seconds for seconds, size in each if not size)


def longer(run: dict, size: int) -> float:
    """By how many per cent drafts took longer than verifications of as many tokens."""
    steps = {name: np.array(run["log"]["steps"][name]) for name in run["log"]["steps"]}
    ends = steps["start_s"] + steps["seconds"]
    beside = np.zeros(len(ends), np.bool_)
    beside[1:] = (steps["block_size"][:-1] == 0) & (steps["start_s"][1:] - ends[:-1] < SEAMLESS_S)
    kept = (steps["block_size"] == size) & ~beside & (steps["draft_s"] > 0)
    drafts, both = steps["draft_s"][kept].sum(), steps["forward_s"][kept].sum()
    return 100 * (drafts / (both - drafts) - 1)


def test_drafts_were_not_merged_there_by_their_times(logs) -> None:
    few, many = longer(logs["recipe", 4, 1], 32), longer(logs["recipe", 128, 1], 8)
    assert f"the recipe's drafts take {few:.1f} % longer than verifications of as many tokens" in TEXT
    assert f"at C = 128 those of B = 8 {many:.1f} %" in TEXT
    merged = next(
        run
        for run in packed(CAMPAIGNS / "nld-8b-ours-runs.tar.xz")
        if run["about"]["policy"] == "fixed:16" and run["about"]["concurrency"] == 1
    )
    assert merged["about"]["origin"]["drafts"] == "by weights with the adapter merged"
    assert f"with merged ones in our own engine {longer(merged, 16):.1f} %" in TEXT


def test_our_own_engine_has_what_it_is_said_to_have() -> None:
    ours, paper = of_our_engine("nld-8b-ours"), of_our_engine("nld-8b")
    ahead = [100 * (ours["allocation", load] / ours["recipe", load] - 1) for load in (8, 128)]
    assert "In our own engine it was {:.0f} % ahead at C = 8 and {:.0f} % at 128".format(*ahead) in TEXT
    bases = paper["recipe", 8], paper["fixed:16", 32], paper["recipe", 64]
    of = [100 * (paper["allocation", load] / base - 1) for load, base in zip((8, 32, 64), bases, strict=True)]
    told = f"it is {of[0]:.0f} and {of[1]:.0f} % ahead at C = 8 and 32, {-of[2]:.0f} % behind at 64"
    assert told in TEXT
