"""What the page on SGLang says was measured is what the files of these runs hold."""

import json
import sys

import pytest
from h200 import FOLDER, ROOT, steady, table_behind

from recguide.sim.policies import RECIPE

PAGE = (ROOT / "docs" / "sglang.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
PAPER, OURS = "sglang-nld-8b-h200", "sglang-nld-8b-ours-h200"
ADAPTIVE, ALLOCATION = "adaptive", "allocation"
POLICIES = "sglang:ar", "fixed:16", "overlap:B=16", "recipe", ADAPTIVE, ALLOCATION
FIRST, SECOND, LATER, SLOW, REPEATED, TWICE = "ca4aefd", "2867227", "eba6681", "f40fcbe", "1eca69f", "1709d84"
LOADS = 2, 8, 32, 64
TWICE_LOADS = 4, 16, 128
BLOCKS = "recipe", ADAPTIVE, ALLOCATION


def runs(name: str, commit: str = SECOND) -> dict[tuple[str, int], dict]:
    """Those of one commit, by policy and concurrency, fitted blocks whatever their file's name."""
    found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    kept = [run for run in found if run["engine_commit"].startswith(commit)]
    heads = [run["policy"].partition(":")[0] for run in kept]
    names = [head if head in (ADAPTIVE, ALLOCATION) else run["policy"] for head, run in zip(heads, kept, strict=True)]
    return {(name, run["max_concurrency"]): run for name, run in zip(names, kept, strict=True)}


def repeats(policy: str, load: int, commit: str = REPEATED) -> list[dict]:
    """Those by the paper's acceptance, the slowest first."""
    found = json.loads((FOLDER / f"{PAPER}.json").read_text(encoding="utf-8"))
    own = [run for run in found if run["engine_commit"].startswith(commit) and run["max_concurrency"] == load]
    return sorted((run for run in own if run["policy"].startswith(policy)), key=steady)


def both(policy: str, load: int) -> dict:
    """The means of the two runs."""
    one, other = repeats(policy, load, TWICE)
    return {name: (value + other[name]) / 2 for name, value in one.items() if isinstance(value, (int, float))}


def second(policy: str, load: int) -> dict:
    """The later one of the two runs."""
    return next(run for run in repeats(policy, load, TWICE) if run["repeat"] == 2)


def apart(own: list[dict]) -> float:
    """By how many per cent the highest of repeats is above the lowest."""
    return 100 * (steady(own[-1]) / steady(own[0]) - 1)


def shown(name: str) -> dict[tuple[str, int], dict]:
    """Those in the tables; by the paper's acceptance some are of a later run, middle ones of three or means of two."""
    if name != PAPER:
        return runs(name)
    pairs = [(policy, load) for policy in ("recipe", ALLOCATION) for load in LOADS[1:]]
    middle = {pair: repeats(*pair)[1] for pair in pairs}
    means = {(policy, load): both(policy, load) for policy in BLOCKS for load in TWICE_LOADS}
    return runs(name) | runs(name, LATER) | middle | means


def over(found: dict[tuple[str, int], dict], load: int) -> float:
    """By how many per cent allocation is ahead of the recipe."""
    return 100 * (steady(found[ALLOCATION, load]) / steady(found["recipe", load]) - 1)


def by_load(file: str) -> dict[int, list[str]]:
    """The same by concurrency."""
    return {int(cells[0]): cells[1:] for cells in table_behind(PAGE, f"{file}.json`")}


@pytest.mark.parametrize("file", [PAPER, OURS])
def test_throughputs_and_tpots_are_those_of_the_files(file: str) -> None:
    found, told = shown(file), by_load(file)
    policies = POLICIES if file == PAPER else POLICIES[:-1]
    assert len(told) == (8 if file == PAPER else 5)
    for concurrency, cells in told.items():
        for policy, cell in zip(policies, cells, strict=False):
            run = found.get((policy, concurrency))
            if run is None:
                assert cell in ("", "not measured")
            else:
                assert cell == f"{steady(run):.0f}, {run['mean_tpot_ms']:.2f}"
        if concurrency > 1:
            ours = ALLOCATION if file == PAPER else ADAPTIVE
            ratio = steady(found[ours, concurrency]) / steady(found["recipe", concurrency])
            assert cells[len(policies)] == f"{100 * (ratio - 1):+.0f} %"


def test_steps_and_their_host_are_those_of_the_files() -> None:
    rows = table_behind(PAGE, "The time of a step")
    kinds = [(file, each) for file, each in ((PAPER, LOADS), (PAPER, TWICE_LOADS), (OURS, LOADS)) for _ in range(2)]
    for (file, each), figure, (_, *cells) in zip(kinds, ("mean_step_ms", "mean_host_ms") * 3, rows, strict=True):
        found = shown(file)
        for policy, cell in zip(POLICIES[1:], cells, strict=True):
            alone = () if each == TWICE_LOADS else (1,)
            loads = alone if policy in POLICIES[:3] else each
            values = [found[policy, load][figure] for load in loads if (policy, load) in found]
            assert cell == " / ".join(f"{value:.2f}" for value in values)


def test_allocation_is_told_of_as_it_was() -> None:
    found = shown(PAPER)
    losses = [f"{-over(found, load):.0f}" for load in LOADS]
    assert "{}, {}, {} and {} % behind at C = 2, 8, 32 and 64".format(*losses) in TEXT
    each = [repeats(policy, load) for policy in ("recipe", ALLOCATION) for load in LOADS[1:]]
    spreads = [apart(own) for own in each]
    assert {len(own) for own in each} == {3}
    assert f"({min(spreads):.0f} to {max(spreads):.0f} % between the lowest and the highest)" in TEXT
    by_round = [100 * (of_rounds(found[ALLOCATION, load]) / of_rounds(found["recipe", load]) - 1) for load in LOADS[1:]]
    assert "Its rounds by themselves give {:+.0f}, {:+.0f} and {:+.0f} % tokens".format(*by_round) in TEXT
    longer = [found[ALLOCATION, load]["mean_host_ms"] - found["recipe", load]["mean_host_ms"] for load in LOADS[1:]]
    assert "takes {:.1f}, {:.1f} and {:.1f} ms longer a step".format(*longer) in TEXT
    many = found[ALLOCATION, 64]
    assert f"{many['num_rounds'] / many['verify_forwards']:.1f} requests in the mean" in TEXT
    assert f"accepts {many['accept_length']:.2f} tokens a round" in TEXT
    slow = runs(PAPER, SLOW)
    losses = [f"{-over(slow, load):.0f}" for load in LOADS[1:]]
    assert "it was {}, {} and {} % behind".format(*losses) in TEXT


def test_two_runs_each_are_told_of_as_they_were() -> None:
    found = shown(PAPER)
    assert "it is {:.0f}, {:.0f} and {:.0f} % ahead".format(*(over(found, load) for load in TWICE_LOADS)) in TEXT
    spreads = [[apart(repeats(policy, load, TWICE)) for load in TWICE_LOADS] for policy in BLOCKS]
    told = "recipe's two are {:.0f}, {:.0f} and {:.0f} % apart, its own {:.0f}, {:.0f} and {:.0f} %"
    assert told.format(*spreads[0], *spreads[2]) in TEXT
    waits = {run["repeat"]: run["mean_ttft_ms"] for run in repeats("recipe", 4, TWICE)}
    assert f"{waits[1]:.0f} ms in the mean at C = 4, {waits[2]:.0f} in the second one" in TEXT
    later = {(policy, load): second(policy, load) for policy in BLOCKS for load in TWICE_LOADS}
    ahead = [over(later, load) for load in TWICE_LOADS]
    assert "second runs alone it is {:.0f}, {:.0f} and {:.0f} % ahead".format(*ahead) in TEXT
    by_both = [over_whole(found, load) for load in TWICE_LOADS]
    by_second = [-over_whole(later, load) for load in TWICE_LOADS]
    assert "{:+.0f}, {:+.0f} and {:+.0f} % by both runs".format(*by_both) in TEXT
    assert "and {:.0f}, {:.0f} and {:.0f} % less than the recipe by the second ones".format(*by_second) in TEXT
    one, other = repeats(ALLOCATION, 128, TWICE)
    steps = one["verify_forwards"] + one["decode_forwards"]
    assert f"{one['decode_forwards']} of its {steps} steps are AR steps" in TEXT
    hosts = sorted(run["mean_host_ms"] for run in (one, other))
    assert f"{hosts[1]:.1f} ms a step in one run, {hosts[0]:.1f} in the other" in TEXT


def test_so_is_what_adaptive_lost() -> None:
    found, same = shown(PAPER), runs(PAPER, LATER)
    losses = [behind(found, load) for load in TWICE_LOADS]
    assert "too: {:.0f}, {:.0f} and {:.0f} % at C = 4, 16 and 128".format(*losses) in TEXT
    spreads = [apart(repeats(ADAPTIVE, load, TWICE)) for load in TWICE_LOADS]
    assert "which are {:.0f}, {:.0f} and {:.0f} % apart".format(*spreads) in TEXT
    once = [behind(same, load) for load in (2, 8)]
    assert "once, at eba6681, {:.0f} % at C = 2 and {:.0f} % at 8".format(*once) in TEXT
    pair = [found[policy, 16] for policy in (ADAPTIVE, "recipe")]
    steps = [figure for run in pair for figure in (run["num_rounds"] / run["verify_forwards"], run["mean_step_ms"])]
    told = "a step of it had {:.1f} requests and took {:.1f} ms, one of the recipe {:.1f} and {:.1f} ms"
    assert told.format(*steps) in TEXT
    assert "accepted were {:.1f} and {:.1f} tokens".format(*(run["accept_length"] for run in pair)) in TEXT


def behind(found: dict[tuple[str, int], dict], load: int) -> float:
    """What adaptive has over the recipe, per cent."""
    return 100 * (steady(found[ADAPTIVE, load]) / steady(found["recipe", load]) - 1)


def over_whole(found: dict[tuple[str, int], dict], load: int) -> float:
    """What allocation has over the recipe, per cent, with the ends of the loads."""
    one, other = (found[policy, load]["output_throughput"] for policy in (ALLOCATION, "recipe"))
    return 100 * (one / other - 1)


def test_what_our_own_engine_has_beside_them_is_that_of_its_campaign() -> None:
    points = json.loads((FOLDER / "validation" / "nld-8b.json").read_text(encoding="utf-8"))["points"]
    speeds = {
        (point["key"]["policy"].partition(":policy")[0], point["key"]["concurrency"]): point["measured"]["throughput"]
        for point in points
        if point["key"]["dataset"] == "all"
    }
    for load, cells in by_load(PAPER).items():
        block = next(size for most, size in RECIPE if most is None or load <= most)
        recipe = speeds.get(("recipe", load)) or speeds[f"fixed:{block}", load]
        wanted = [speeds["ar", load], recipe, *(speeds[policy, load] for policy in (ADAPTIVE, ALLOCATION))]
        assert cells[-1] == " / ".join(f"{value:.0f}" for value in wanted)


def test_what_it_gains_over_others_is_that_of_the_tables() -> None:
    by_paper, by_ours, same = shown(PAPER), shown(OURS), runs(PAPER, LATER)
    gains = [
        [steady(found["recipe", load]) / steady(found["sglang:ar", load]) for load in (8, 64)]
        for found in (by_paper, by_ours)
    ]
    told = "with the recipe {:.1f} times at C = 8 and {:.1f} times at C = 64 ({:.1f} and {:.1f})"
    assert told.format(*gains[0], *gains[1]) in TEXT
    ones = [steady(found["overlap:B=16", 1]) / steady(found["sglang:ar", 1]) for found in (by_paper, by_ours)]
    assert "{:.1f} times the throughput of SGLang's AR with overlap ({:.1f} by our trace)".format(*ones) in TEXT
    shares = [steady(same[ADAPTIVE, load]) / steady(same[ALLOCATION, load]) for load in LOADS[1:]]
    assert "it has {:.0f}, {:.0f} and {:.0f} %".format(*(100 * share for share in shares)) in TEXT
    twice = [steady(by_paper[ADAPTIVE, load]) / steady(by_paper[ALLOCATION, load]) for load in TWICE_LOADS]
    assert "all of one commit, it has {:.0f}, {:.0f} and {:.0f} %".format(*(100 * share for share in twice)) in TEXT
    gains = sorted(100 / share - 100 for share in (*shares, *twice))
    assert f"gave {gains[0]:.0f} to {gains[-1]:.0f} % more tokens a second from C = 4 on" in TEXT
    above = [steady(by_paper[ADAPTIVE, load]) / steady(by_paper[ALLOCATION, load]) for load in LOADS[1:]]
    assert 0.5 < min(above) < max(above) < 0.75


def of_rounds(run: dict) -> float:
    """Tokens a second of rounds that no prefill was beside, had all been such."""
    return run["accept_length"] * run["num_rounds"] / run["verify_forwards"] / run["mean_step_ms"]


def test_three_runs_of_adaptive_are_those_of_the_file() -> None:
    each = [runs(PAPER, commit) for commit in (FIRST, SECOND, LATER)]
    values = {load: [steady(found[ADAPTIVE, load]) for found in each] for load in LOADS}
    for load, (one, two, three) in values.items():
        assert f"{one:.0f}, {two:.0f} and {three:.0f} at C = {load}" in TEXT


def test_two_gpus_are_told_of_as_they_were() -> None:
    match, rounds = (
        json.loads((FOLDER / f"sglang-tp2-{name}.json").read_text(encoding="utf-8")) for name in ("match", "rounds")
    )
    told = [line.split() for each in match["divergences"].values() for line in each]
    gaps = [float(words[2]) for words in told]
    ours = [run for run in match["runs"] if run["policy"].startswith("sglang:overlap")]
    assert f"{sum(run['equal'] for run in ours)} of the {sum(run['requests'] for run in ours)} outputs" in TEXT
    assert f"Where the other {len(told)} part" in TEXT
    assert f"better by up to {-min(gaps):.2f}, and worse by {max(gaps):.2f} at most" in TEXT
    one, other = rounds["runs"]
    assert f"all {one['rounds'] + other['rounds']:,} rounds anew" in TEXT
    assert one["left_out"] == other["left_out"] == 0
    equal = sum(run["equal"] * run["rounds"] for run in (one, other)) / (one["rounds"] + other["rounds"])
    best = sum(run["best_tokens"] * run["tokens"] for run in (one, other)) / (one["tokens"] + other["tokens"])
    assert f"{100 * equal:.1f} % are equal, of the served tokens {100 * best:.1f} % are the best ones" in TEXT
    assert f"none is more than {max(one['largest_gap'], other['largest_gap']):.2f} below" in TEXT
    lengths = one["accept_length_served"], one["accept_length_ours"], other["accept_length_ours"]
    assert "accepted {:.3f} tokens a round, we {:.3f} and {:.3f}".format(*lengths) in TEXT


def test_rounds_are_counted_again_from_the_runs() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import overlap_rounds

    told = json.loads((FOLDER / "sglang-overlap-rounds.json").read_text(encoding="utf-8"))
    by = {each["folder"]: each for each in told}
    folders = list((FOLDER / "sglang-runs").iterdir())
    assert {folder.name: overlap_rounds.folder_of(folder, 16) for folder in folders} == by
    small = by["smollm2"]
    assert f"For SmolLM2 that is **missed**: forwards take {100 * (small['ratio']['forward'] - 1):.1f} % more" in TEXT
    bare = by["nld-8b-without-branches"]
    assert f"they take **{100 * (bare['ratio']['step'] - 1):.1f} %** more" in TEXT
    assert f"{bare['linear']['rounds']} rounds each" in TEXT
    assert bare["drafted_without_branches"]["rounds"] == bare["linear"]["rounds"]
    assert f"{100 * (bare['ratio']['forward'] - 1):.1f} % by their forwards" in TEXT
