"""docs/measured.md says of the serving engine on an H200 what the files of its runs hold."""

import csv
import json
import re
from statistics import mean

import pytest
from h200 import FOLDER, ROOT, validation

from recguide.sim.policies import RECIPE

PAGE = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")
STEPS = {
    "nld-8b": ("engine-steps-h200.csv", "engine-overlap-h200.csv"),
    "nld-14b": ("engine-steps-nld-14b-h200.csv",),
}
SERVED = {
    "nld-8b": "engine-serve-h200.csv",
    "nld-14b": "engine-serve-nld-14b-h200.csv",
    "nld-8b ours": "engine-serve-nld-8b-ours-h200.csv",
    "nld-14b ours, merged": "engine-serve-nld-14b-ours-h200.csv",
}


def rows(name: str) -> list[dict[str, str]]:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def table(heading: str) -> list[list[str]]:
    """The cells of a section's first table, below its head."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = section[section.index("\n|") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def by_model(heading: str) -> dict[str, list[list[str]]]:
    """The same by the model in the first cell, which is empty where it is that of the row before."""
    found: dict[str, list[list[str]]] = {}
    for model, *cells in table(heading):
        found.setdefault(model or list(found)[-1], []).append(cells)
    return found


def span(values: list[float]) -> str:
    """Both ends, or one number where they are the same."""
    ends = f"{min(values):.2f}", f"{max(values):.2f}"
    return ends[0] if ends[0] == ends[1] else " - ".join(ends)


def soak() -> dict:
    return json.loads((FOLDER / "soak-smollm2-h200.json").read_text(encoding="utf-8"))


def test_the_page_names_files_that_are_there() -> None:
    names = re.findall(r"`([\w./*-]+\.(?:csv|json|safetensors))`", PAGE)
    assert len(names) > 15
    for name in names:
        assert any(FOLDER.glob(name)) or any(ROOT.glob(name)), name


@pytest.mark.parametrize("model", STEPS)
def test_steps_are_those_of_the_files(model) -> None:
    found = [row for name in STEPS[model] for row in rows(name) if row.get("overlap") != "False"]
    told = [cells for cells in by_model("AR steps")[model] if "†" not in " ".join(cells)]
    wanted = []
    for count in sorted({int(row["requests"]) for row in found}):
        here = [row for row in found if int(row["requests"]) == count]
        numbers = {name: [float(row[name]) for row in here] for name in here[0] if name.endswith("_ms")}
        forward, products = mean(numbers["forward_ms"]), mean(numbers["products_ms"] + numbers["products_after_ms"])
        middle = [f"{forward:.2f}", f"{products:.2f}", f"{forward / products:.2f}"]
        wanted.append([str(count), span(numbers["step_ms"]), *middle, span(numbers["idle_ms"])])
    assert told == wanted


@pytest.mark.parametrize("model", SERVED)
def test_so_are_rounds(model) -> None:
    wanted = [
        [row["requests"], row["policy"].removesuffix(":policy14.json")]
        + [f"{float(row[name]):.0f}" for name in ("tokens_per_s", "tokens_per_s_with_prefills")]
        + [f"{float(row['mean_in_round']):.1f}"]
        + [f"{float(row[name]):.2f}" for name in ("step_ms", "forward_ms", "idle_ms")]
        for row in rows(SERVED[model])
    ]
    assert by_model("Rounds")[model] == wanted


def test_so_are_their_lengths_and_the_host_of_the_larger_shape() -> None:
    lengths = [float(row["round_s"]) for name in SERVED.values() for row in rows(name)]
    assert f"rounds of {min(lengths):.1f} to {max(lengths):.1f} s" in PAGE
    hosts = [float(row["idle_ms"]) for row in rows(SERVED["nld-14b ours, merged"]) if row["requests"] == "1"]
    assert "it was {:.2f} and {:.2f} ms".format(*hosts) in " ".join(PAGE.split())


def test_so_are_gains_of_overlap_and_losses_of_adaptive() -> None:
    speed = {
        (model, row["requests"], row["policy"].partition(":")[0]): row
        for model, name in SERVED.items()
        for row in rows(name)
    }

    def gain(model: str, count: str, policy: str, over: str, figure: str = "tokens_per_s") -> str:
        one, other = (float(speed[model, count, name][figure]) for name in (policy, over))
        return f"{100 * (one / other - 1):+.0f}"

    overlap = [gain(model, "1", "overlap", "fixed") for model in SERVED]
    assert f"over `fixed:16` {overlap[0]} % (`nld-8b`; the paper has +51.8 %) and {overlap[1]} % (`nld-14b`" in PAGE
    assert f"{overlap[2]} % (`nld-8b`) and {overlap[3]} % (`nld-14b`, drafts merged) by our trace" in PAGE
    whole = [gain(model, "1", "overlap", "fixed", "tokens_per_s_with_prefills")[1:] for model in SERVED]
    merged = f"it is {overlap[3][1:]} % ahead of `fixed:16`, with prefills {whole.pop()} %"
    assert f"with `nld-14b` and merged drafts {merged}" in " ".join(PAGE.split())
    # what the campaign has is held against its runs elsewhere
    told = "ahead by {} and {} %, by our trace by {} %, and in the [campaign]"
    assert told.format(*whole) in " ".join(PAGE.split())
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"had overlap [{overlap[2][1:]}% ahead](docs/measured.md#rounds), and {whole[2]}% with prefills" in readme
    plain, whole = (
        [gain("nld-14b", count, "adaptive", "recipe", f"tokens_per_s{which}") for count in ("8", "64")]
        for which in ("", "_with_prefills")
    )
    assert f"of `nld-14b` {whole[0]} % at C=8 and {whole[1]} % at C=64" in PAGE
    assert f"{plain[0]} % at C=8 and {plain[1]} % at C=64, with prefills {whole[0]} and {whole[1]} %" in PAGE


def test_so_are_merged_drafts() -> None:
    found = sorted(rows("engine-serve-merged-h200.csv"), key=lambda row: row["policy"])
    assert {row["emitted"] for row in found} == {"2007"}
    assert table("Merged drafts") == [
        ["" if row["drafts"] == "merged" else row["policy"], row["drafts"]]
        + [f"{float(row[name]):.0f}" for name in ("tokens_per_s", "tokens_per_s_with_prefills")]
        + [f"{float(row[name]):.2f}" for name in ("step_ms", "draft_ms", "forward_ms", "idle_ms")]
        for row in found
    ]


def test_so_is_what_they_gain() -> None:
    apart, merged, overlap_apart, overlap_merged = sorted(
        rows("engine-serve-merged-h200.csv"), key=lambda row: row["policy"]
    )
    (draft, verify), (draft_apart, verify_apart) = (
        (float(row["draft_ms"]), float(row["forward_ms"]) - float(row["draft_ms"])) for row in (merged, apart)
    )
    text = " ".join(PAGE.split())
    told = f"{draft:.2f} to {verify:.2f} ms, where one apart takes {100 * (draft_apart / verify_apart - 1):.0f} % more"
    assert f"A merged draft takes what a verification does, {told}" in text
    gains = faster(merged, apart), faster(overlap_merged, overlap_apart)
    assert "{:.1f} % faster with `fixed:16`, and {:.1f} % with overlap".format(*gains) in text
    ahead = faster(overlap_apart, apart), faster(overlap_merged, merged)
    assert "Overlap is {:.0f} % ahead apart and {:.0f} % merged".format(*ahead) in text


def faster(one: dict[str, str], other: dict[str, str]) -> float:
    """By how many per cent, rounds alone."""
    return 100 * (float(one["tokens_per_s"]) / float(other["tokens_per_s"]) - 1)


def test_so_is_the_text_of_every_policy() -> None:
    found = json.loads((FOLDER / "match-smollm2-h200.json").read_text(encoding="utf-8"))
    assert found["complete"]
    runs: dict[str, list[dict]] = {}
    for run in found["runs"]:
        assert run["above_noise"] == run["above_usual_noise"] == run["errors"] == 0
        runs.setdefault(run["policy"].partition(":")[0] if ".json" in run["policy"] else run["policy"], []).append(run)
    assert table("The text of AR") == [
        [name, *(str(run["equal"]) for run in sorted(each, key=lambda run: run["concurrency"]))]
        + [f"{max(run[key] or 0 for run in each):.2f}" for key in ("largest_gap", "largest_exact_gap")]
        for name, each in runs.items()
    ]
    assert f"of {sum(run['requests'] for run in found['runs']):,} outputs" in PAGE
    noise, exact = found["noise"], found["noise_against_fp32"]
    assert f"Noise is up to {noise['max']:.2f}, in fp32 {exact['max']:.2f}" in PAGE
    assert f"99.9 % of it up to {noise['p999']:.2f} and {exact['p999']:.2f}" in PAGE


def test_so_is_the_soak() -> None:
    found, told = soak(), dict(table("Many requests that come and go"))
    ends, ratio = found["finished"], found["last_over_first"]
    sending = [sample["tokens_per_s"] for sample in found["samples"] if sample["sending"]]
    assert found["complete"]
    assert told["requests sent"] == f"{found['sent']:,} of 10,000, in {found['seconds']:.0f} s"
    assert found["sent"] == 10_000
    wanted = f"{ends['length']:,} at their limit, {ends['eos']} by EOS, {ends['cancelled']} cancelled"
    assert told["their ends"] == wanted
    lost = ", ".join(str(found[name]) for name in ("unanswered", "stuck", "leaked_pages"))
    assert told["unanswered, stuck, pages leaked"] == lost
    assert told["pages taken from a request, which was prefilled again"] == f"{found['preemptions']:,} times"
    assert told["steps, tokens"] == f"{found['steps']:,}, {found['output_tokens']:,}"
    assert told["memory of the GPU, last third over first"] == f"{ratio['device_bytes']:.3f}"
    assert told["memory of the process, last third over first"] == f"{ratio['resident_bytes']:.3f}"
    assert told["tokens a second, first 20 s"] == f"{min(sending[:4]):,.0f} to {max(sending[:4]):,.0f}"
    assert told["tokens a second after that, looks of 5 s"] == f"{min(sending[4:]):,.0f} to {max(sending[4:]):,.0f}"
    assert f"holds: {found['sent']:,} in {found['seconds']:.0f} s" in PAGE
    assert f"| yes, {found['sent']:,} at SmolLM2's shape |" in PAGE


def test_sglang_is_as_fast_as_its_files_say() -> None:
    runs = json.loads((FOLDER / "sglang-nld-8b-h200.json").read_text(encoding="utf-8"))
    plain = [run for run in runs if run["policy"] == "sglang:ar" and "steady_output_throughput" in run]
    points = validation("nld-8b")["points"]
    ours = {
        point["key"]["concurrency"]: f"{point['measured']['throughput']:.0f}"
        for point in points
        if point["key"]["policy"] == "ar" and point["key"]["dataset"] == "all"
    }
    row = next(line for line in PAGE.splitlines() if line.startswith("| faster than SGLang's AR"))
    for count in (1, 8, 64):
        told = re.search(rf"{ours[count]} to (\d+) and (\d+) at (?:C=)?{count}\b", row)
        found = {f"{run['steady_output_throughput']:.0f}" for run in plain if run["max_concurrency"] == count}
        assert told
        assert set(told.groups()) <= found


def visited(name: str) -> dict[tuple[str, ...], float]:
    """Means over the engines, by kind, requests and query tokens, of what visits took."""
    found: dict[tuple[str, ...], list[float]] = {}
    for row in rows(f"visits-{name}-h200.csv"):
        if row["engine"].endswith("visited"):
            found.setdefault((row["kind"], row["requests"], row["query_tokens"]), []).append(float(row["us"]))
    return {key: mean(each) for key, each in found.items()}


def test_so_is_what_timing_products_costs() -> None:
    here, given = visited("timed-here"), visited("given")
    longer = {key: 100 * (here[key] / given[key] - 1) for key in given}
    verify, draft = (f"{longer[kind, '1', '16']:.1f}" for kind in ("verify", "draft"))
    decode = f"{longer['decode', '16', '16']:.1f}"
    told = (
        f"took {verify} % (verification) and {draft} % (draft) longer, decoding of 16 requests {decode} %, of one not"
    )
    assert told in " ".join(PAGE.split())
    assert longer["decode", "1", "1"] < 0


def test_so_is_what_policies_are_ahead_of_the_recipe() -> None:
    points = validation("nld-8b")["points"]
    every = {
        (point["key"]["policy"], point["key"]["concurrency"]): point["measured"]["throughput"]
        for point in points
        if point["key"]["dataset"] == "all"
    }
    speed = {(name.partition(":")[0], load): found for (name, load), found in every.items()}
    loads = 1, 2, 4, 8, 16, 32, 64, 128
    tiers = [next(size for most, size in RECIPE if most is None or load <= most) for load in loads]
    names = [("recipe", f"fixed:{size}") for size in tiers]
    recipe = [every.get((own, load)) or every[tier, load] for load, (own, tier) in zip(loads, names, strict=True)]
    for policy in ("adaptive", "allocation", "joint", "overlap", "regime"):
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{policy}`") and line.count("|") == 10)
        pairs = [(speed.get((policy, load)), base) for load, base in zip(loads, recipe, strict=True)]
        wanted = ["" if own is None else f"{100 * (own / base - 1):+.0f}" for own, base in pairs]
        assert [cell.strip() for cell in row.strip("|").split("|")][1:] == wanted
    gain = sum(speed["adaptive", load] for load in loads[1:]) / sum(recipe[1:]) - 1
    assert f"of `nld-8b` {100 * gain:.0f} % by tokens a second averaged over C, as the paper counts" in PAGE
