"""The paper's figures by the names that ``measures`` gives ours, and what each of them is to us."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from recguide.sim.paper.published import (
    BENCHMARKS,
    BLOCK_SIZES,
    CATEGORIES,
    CONFIDENCE,
    FIGURE2A,
    INTERVALS,
    OVERALL_SPEEDUP,
    OVERALL_TAU,
    SECOND_RATE,
    TABLE1,
    TABLE2_SPEEDUP,
    TABLE2_TAU,
    TABLE3,
    TABLE4,
    TABLE4_OVERALL,
    TABLE5,
    TABLE6,
)

Kind = Literal["input", "fitted", "predicted"]


class Target(NamedTuple):
    """A published figure."""

    value: float
    kind: Kind
    """Taken from the paper as it is, fitted to, or predicted from others without having been looked at."""
    within: float | None
    """By how much ours may differ, in its own unit; None where nothing was promised."""


Targets = Mapping[str, Target]


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
    """Shares of 8B; the forward times are what the profile is made of."""
    times = {name: Target(ms, "input", 1e-3) for name, ms in forward_ms.items()}
    if model != "8b":
        return times
    shares = {f"A in {INTERVALS[i]}, overall": Target(share, "fitted", 3.0) for i, share in enumerate(FIGURE2A)}
    return shares | times


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
        # the host's time was inferred from it
        found[f"{method}, speedup, overall"] = Target(
            overall, "input" if method == "LinearSS" else "predicted", 0.1 * overall
        )
    return found


def table3(model: str) -> Targets:
    """Fitted by category."""
    found: dict[str, Target] = {}
    for category in (*CATEGORIES, "overall"):
        for key, value in TABLE3[model][category]._asdict().items():
            found[f"{key.replace('_', ' ')}, {category}"] = Target(value, "fitted", 3.0)
    return found


def table4(model: str) -> Targets:
    """Predicted, within 10 points."""
    found: dict[str, Target] = {}
    for load, shares in TABLE4[model].items():
        for category, sizes in {**shares, "overall": TABLE4_OVERALL[model][load]}.items():
            for size, share in zip(BLOCK_SIZES, sizes, strict=True):
                found[f"B = {size}, C = {load}, {category}"] = Target(share, "predicted", 10.0)
    return found


def table5(model: str) -> Targets:
    """Throughput of LinearSS is what the host's time was inferred from; gains are predicted within 10 points."""
    return _ablation({name: row[model] for name, row in TABLE5.items()}, "LinearSS")


def table6(model: str) -> Targets:
    """The same of fixed blocks."""
    return _ablation({name: row[model] for name, row in TABLE6.items()}, "Fixed Block")


def _ablation(speed: Mapping[str, float], base: str) -> Targets:
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
