"""The paper's figures by the names that ``measures`` gives ours, and what each of them is to us."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from recguide.sim.paper.published import (
    AFTER_REJECTION,
    BENCHMARKS,
    BLOCK_MEANS,
    BLOCK_SIZES,
    CATEGORIES,
    CONFIDENCE,
    END_TO_END,
    FIGURE2A,
    FULL_RATES,
    HIGH_LOADS,
    HISTORY_AUROC,
    INTERVALS,
    OVERALL_SPEEDUP,
    OVERALL_TAU,
    PERSISTENCE,
    SECOND_RATE,
    SERVED_ACCEPTANCE,
    SHORTER_HOLDS,
    TABLE1,
    TABLE2_SPEEDUP,
    TABLE2_TAU,
    TABLE3,
    TABLE4,
    TABLE4_OVERALL,
    TABLE5,
    TABLE6,
    WORTH_RATES,
)

REPEATING, LEAN, ADAPTED = "branches repeat the draft", "lean host", "TiDAR with the adapter"
NO_DRAFTS, FULL = "padding drafts nothing", "full buckets, 3 C in flight"
"""Other readings of the paper, beside those that are counted (docs/reproduce.md)."""
Kind = Literal["input", "fitted", "predicted", "reading"]


class Target(NamedTuple):
    """A published figure."""

    value: float | None
    """None where the paper draws it and prints no number."""
    kind: Kind
    """Taken from the paper as it is, fitted to, predicted from others without having been looked at, or such a figure
    again under another reading of the paper, which stands beside and is not counted."""
    within: float | None
    """By how much ours may differ, in its own unit; None where nothing was promised."""


Targets = Mapping[str, Target]


def printed(targets: Targets) -> dict[str, float]:
    """The numbers of those that the paper prints."""
    return {name: target.value for name, target in targets.items() if target.value is not None}


def table1(model: str) -> Targets:
    """Of 8B alone."""
    if model != "8b":
        return {}
    return {
        f"{INTERVALS[a]} to {INTERVALS[b]}": Target(share, "fitted", 3.0)
        for a, row in enumerate(TABLE1)
        for b, share in enumerate(row)
    }


def figure2(model: str, forward_ms: Mapping[str, float]) -> Targets:
    """Shares of 8B, by benchmark only drawn; the forward times are what the profile is made of."""
    times = {name: Target(ms, "input", 1e-3) for name, ms in forward_ms.items()}
    if model != "8b":
        return times
    shares = {f"A in {INTERVALS[i]}, overall": Target(share, "fitted", 3.0) for i, share in enumerate(FIGURE2A)}
    drawn = {f"A in {INTERVALS[i]}, {name}": Target(None, "predicted", None) for name in BENCHMARKS for i in range(3)}
    return shares | drawn | times


def figure3(model: str) -> Targets:
    """The repository's figures of 8B: the paper shows curves."""
    if model != "8b":
        return {}
    return {
        "mean confidence, passed": Target(CONFIDENCE["accepted"], "fitted", 0.03),
        "mean confidence, first rejected": Target(CONFIDENCE["first rejected"], "fitted", 0.03),
        "% second candidate right, first rejected": Target(SECOND_RATE, "fitted", 3.0),
    }


def table2(model: str) -> Targets:
    """tau of LinearSS within 3%, of the others within 5%, speedups within 10%."""
    found: dict[str, Target] = {}
    for method in ("LinearSS", "TiDAR", "RecGuide", "DFlash"):
        kind: Kind = {"LinearSS": "fitted", "DFlash": "input"}.get(method, "predicted")  # type: ignore[assignment]
        share = {"fitted": 0.03, "predicted": 0.05}.get(kind)
        taus = [*zip(BENCHMARKS, TABLE2_TAU[model][method], strict=True), ("overall", OVERALL_TAU[model][method])]
        found |= {f"{method}, tau, {name}": Target(tau, kind, share and share * tau) for name, tau in taus}
        speeds = [*zip(BENCHMARKS, TABLE2_SPEEDUP[model][method], strict=True)]
        found |= {f"{method}, speedup, {name}": Target(speed, "predicted", 0.1 * speed) for name, speed in speeds}
        overall = OVERALL_SPEEDUP[model][method]
        # the times of both hosts were inferred from them
        known = method in ("LinearSS", "DFlash")
        found[f"{method}, speedup, overall"] = Target(overall, "input" if known else "predicted", 0.1 * overall)
    return found | _readings2(model)


def _readings2(model: str) -> dict[str, Target]:
    tau, speed = OVERALL_TAU[model], OVERALL_SPEEDUP[model]
    rows = f"RecGuide, {REPEATING}"
    figures = {
        f"{ADAPTED}, tau, overall": tau["TiDAR"],
        f"{ADAPTED}, speedup, overall": speed["TiDAR"],
        f"{rows}, speedup, overall": speed["RecGuide"],
        f"{rows}, {LEAN}, speedup, overall": speed["RecGuide"],
    }
    return {name: Target(value, "reading", None) for name, value in figures.items()}


def table3(model: str) -> Targets:
    """Fitted by category."""
    found: dict[str, Target] = {}
    for category in (*CATEGORIES, "overall"):
        for key, value in TABLE3[model][category]._asdict().items():
            found[f"{key.replace('_', ' ')}, {category}"] = Target(value, "fitted", 3.0)
    return found


def repository(model: str) -> Targets:
    """What the authors' repository has besides: of 8B what was fitted to, of both models what was not."""
    served = {
        f"served acceptance, B = {size}, {name}": Target(2 * tpf, "predicted", 0.2 * tpf)
        for name, row in (END_TO_END.items() if model == "14b" else ())
        for size, tpf in row.items()
    }
    if model != "8b":
        return served
    # nine benchmarks, and the prefill's forward among those that tokens were divided by
    served = {
        f"served acceptance, B = {size}, overall": Target(lens, "predicted", 0.1 * lens)
        for size, lens in SERVED_ACCEPTANCE[model].items()
    }
    lengths = {f"mean acceptance length, B = {b}": Target(v, "fitted", 0.03 * v) for b, v in BLOCK_MEANS.items()}
    full = {f"% fully accepted, B = {b}": Target(share, "fitted", 3.0) for b, share in FULL_RATES.items()}
    holds = {
        f"% of {tokens} tokens at B = {long} that B = {short} has": Target(share, "fitted", 3.0)
        for (short, long, tokens), share in SHORTER_HOLDS.items()
    }
    told = {f"AUROC of history, B = {what}": Target(area, "fitted", 3.0) for what, area in HISTORY_AUROC.items()}
    worth = {
        f"% of rounds in which B = {what} is worth it": Target(share, "predicted", 10.0)
        for what, share in WORTH_RATES.items()
    }
    memory = {
        f"correlation of the last {past}, B = {size}": Target(value, "predicted", 10.0)
        for past, row in PERSISTENCE.items()
        for size, value in row.items()
    }
    behind = {f"% right {b} behind a rejection": Target(share, "input", 3.0) for b, share in AFTER_REJECTION.items()}
    return {**lengths, **full, **holds, **served, **memory, **worth, **told, **behind}


def figure5() -> Targets:
    """Lines of fixed blocks and of RecGuide, which the paper only draws: what it says of them are claims."""
    lines: dict[str, Kind] = {f"B = {size}": "predicted" for size in BLOCK_SIZES}
    lines |= {"RecGuide": "predicted", f"RecGuide, {FULL}": "reading"}
    return {
        f"{what}, {line}, C = {load}": Target(None, kind, None)
        for line, kind in lines.items()
        for load in HIGH_LOADS
        for what in ("tokens/s", "tokens/s per request")
    }


def table4(model: str) -> Targets:
    """Predicted, within 10 points."""
    found: dict[str, Target] = {}
    for load, shares in TABLE4[model].items():
        for category, sizes in {**shares, "overall": TABLE4_OVERALL[model][load]}.items():
            for size, share in zip(BLOCK_SIZES, sizes, strict=True):
                found[f"B = {size}, C = {load}, {category}"] = Target(share, "predicted", 10.0)
        for size, share in zip(BLOCK_SIZES, TABLE4_OVERALL[model][load], strict=True):
            found[f"B = {size}, C = {load}, overall, {FULL}"] = Target(share, "reading", None)
    return found


def table5(model: str) -> Targets:
    """Throughput of LinearSS is what the host's time was inferred from; gains are predicted within 10 points."""
    speed = {name: row[model] for name, row in TABLE5.items()}
    return _ablation(speed, "LinearSS") | {
        f"gain %, {name}, {way}": Target(100 * (value / speed["LinearSS"] - 1), "reading", None)
        for way in (REPEATING, f"{REPEATING}, {LEAN}")
        for name, value in speed.items()
        if name != "LinearSS"
    }


def table6(model: str) -> Targets:
    """The same of fixed blocks."""
    speed = {name: row[model] for name, row in TABLE6.items()}
    ways = {"+ s_t": NO_DRAFTS, "+ z_t": NO_DRAFTS, "+ Bucketing": FULL}
    counted = _ablation(speed, "Fixed Block")
    return counted | {
        f"{what}, {name}, {way}": Target(counted[f"{what}, {name}"].value, "reading", None)
        for what in ("tokens/s", "gain %")
        for name, way in ways.items()
    }


def _ablation(speed: Mapping[str, float], base: str) -> dict[str, Target]:
    rates: dict[str, Target] = {
        f"tokens/s, {name}": Target(value, "input" if name == base else "predicted", 0.1 * value)
        for name, value in speed.items()
    }
    gains: dict[str, Target] = {
        f"gain %, {name}": Target(100 * (value / speed[base] - 1), "predicted", 10.0)
        for name, value in speed.items()
        if name != base
    }
    return rates | gains
