"""The sections of the page: each of the paper's tables and figures for both models, with the recorded traces beside."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from recguide.sim.paper import crowds, measures, targets
from recguide.sim.paper.crowds import HighLoad
from recguide.sim.paper.entries import Claim, Entry, Reason, Section, joined
from recguide.sim.paper.pictures import bars, confidence_curves, frontier_lines
from recguide.sim.paper.published import BLOCK_SIZES, HIGH_LOADS, TABLE4
from recguide.sim.paper.reasons import REASONS
from recguide.sim.paper.repository import statistics
from recguide.sim.paper.subjects import Subject

NAMES = ("table1", "fig2", "fig3", "repository", "table2", "table3", "fig5", "table4", "table5", "table6")
TITLES = {
    "table1": ("Table 1", "Transitions of acceptance intervals, B = 32"),
    "fig2": ("Figure 2", "Acceptance intervals by benchmark, and forward times"),
    "fig3": ("Figure 3", "Confidence of passed and first rejected draft tokens, B = 16"),
    "repository": ("Repository", "What the authors' repository says of drafts besides"),
    "table2": ("Table 2", "Tokens per window of two forwards, and speedup over AR, C = 1, B = 16"),
    "table3": ("Table 3", "Branch outcomes, % of rounds"),
    "fig5": ("Figure 5", "Throughput of all requests and per request"),
    "table4": ("Table 4", "Block sizes chosen, % of rounds"),
    "table5": ("Table 5", "Branches one after the other, C = 1"),
    "table6": ("Table 6", "Adaptive blocks one part after the other, mean over C = 2..128"),
}
AHEAD = 0.995
"""Share of another one's throughput from which on a policy is not behind it."""
FASTER = 1.001
"""And from which on it is faster: what differs by less is a tie."""
NEAR = 0.1
"""Share by which throughput of one that is near another one differs at most: what predicted throughput may."""


@dataclass(frozen=True, slots=True)
class Study:
    """Everything that is compared: one model on B200 beside the recorded traces."""

    paper: Subject
    edges: Sequence[Subject]
    """At both edges of the band of what its profile infers."""
    recorded: Subject | None


def figures_of(name: str, subject: Subject) -> dict[str, float]:
    """Of one table, for any subject."""
    found: dict[str, float] = subject.once(name, lambda one: _measured(name, one))
    return found


def _measured(name: str, subject: Subject) -> dict[str, float]:
    alone: Mapping[str, Callable[[Subject], dict[str, float]]] = {
        "table1": measures.table1,
        "fig2": measures.figure2,
        "fig3": measures.figure3,
        "repository": statistics,
        "table2": measures.table2,
        "table3": measures.table3,
        "table5": measures.table5,
    }
    if name in alone:
        return alone[name](subject)
    runs: HighLoad = subject.once("high load", crowds.high_load)
    if name == "table4":
        return crowds.table4(runs)
    return crowds.figure5(runs) if name == "fig5" else crowds.table6(runs)


def section(name: str, study: Study) -> Section:
    """One table or figure of one model."""
    model = study.paper.model or ""
    ours = figures_of(name, study.paper)
    recorded = figures_of(name, study.recorded) if study.recorded else None
    edges = [figures_of(name, edge) for edge in study.edges] if name in ("table2", "table5") else []
    entries = joined(ours, targets_of(name, model), edges, recorded)
    claims = CLAIMS[name](ours) if name in CLAIMS else []
    title, about = TITLES[name]
    reasons = _reasons(name, entries, claims)
    return Section(name, model, title, about, entries, claims, reasons, _pictures(name, study, entries))


def _reasons(name: str, entries: Sequence[Entry], claims: Sequence[Claim]) -> list[Reason]:
    """Those of something that is missed or does not hold."""
    missed = [entry.name for entry in entries if entry.missed] + [claim.text for claim in claims if not claim.holds]
    return [reason for reason in REASONS[name] if any(re.search(reason.of, what) for what in missed)]


def targets_of(name: str, model: str) -> targets.Targets:
    """The paper's figures of a table, by name."""
    if name == "fig2":
        return targets.figure2(model, measures.reported_ms(model))
    if name == "fig5":
        return targets.figure5()
    made: Mapping[str, Callable[[str], targets.Targets]] = {
        "table1": targets.table1,
        "fig3": targets.figure3,
        "repository": targets.repository,
        "table2": targets.table2,
        "table3": targets.table3,
        "table4": targets.table4,
        "table5": targets.table5,
        "table6": targets.table6,
    }
    return made[name](model)


def _ordering(ours: Mapping[str, float]) -> list[Claim]:
    """Figure 5, whose numbers the paper does not print."""
    found = []
    for load in HIGH_LOADS:
        best = max(BLOCK_SIZES, key=lambda size, load=load: ours[f"tokens/s, B = {size}, C = {load}"])  # type: ignore[misc]
        most, mine = ours[f"tokens/s, B = {best}, C = {load}"], ours[f"tokens/s, RecGuide, C = {load}"]
        full = ours[f"tokens/s, RecGuide, {targets.FULL}, C = {load}"]
        detail = f"RecGuide {mine:,.0f}, B = {best} {most:,.0f} tokens/s; {targets.FULL}: {full:,.0f}"
        text = f"RecGuide is not behind any fixed block at C = {load}"
        found.append(Claim(text, mine >= AHEAD * most, "predicted", detail))
    found += [_near(ours, size, load) for size, load in ((32, HIGH_LOADS[0]), (8, HIGH_LOADS[-1]))]
    last = HIGH_LOADS[-1]
    small, medium = (ours[f"tokens/s, B = {size}, C = {last}"] for size in (8, 16))
    found.append(
        Claim(f"B = 8 is behind B = 16 at C = {last}", small < medium, "predicted", f"{small:,.0f}, {medium:,.0f}")
    )
    return found


def _near(ours: Mapping[str, float], size: int, load: int) -> Claim:
    """Figure 5's text: each request's throughput approaches that of the block size that nearly all choose."""
    lines = (f"B = {size}", "RecGuide", f"RecGuide, {targets.FULL}")
    fixed, mine, full = (ours[f"tokens/s per request, {line}, C = {load}"] for line in lines)
    text = f"RecGuide's throughput per request is near that of B = {size} at C = {load}"
    detail = f"{mine:,.1f}, {fixed:,.1f} tokens/s; {targets.FULL}: {full:,.1f}"
    return Claim(text, abs(mine / fixed - 1) <= NEAR, "predicted", detail)


def _monotone(ours: Mapping[str, float]) -> list[Claim]:
    loads = sorted(TABLE4["8b"])
    found = []
    for size, falls in ((32, True), (8, False)):
        shares = [ours[f"B = {size}, C = {load}, overall"] for load in loads]
        steps = [after <= before if falls else after >= before for before, after in pairwise(shares)]
        text = f"B = {size} is chosen {'less' if falls else 'more'} often the more requests run"
        found.append(Claim(text, all(steps), "predicted", ", ".join(f"{share:.1f}%" for share in shares)))
    return found


def _in_order(*names: str) -> Callable[[Mapping[str, float]], list[Claim]]:
    def claims(ours: Mapping[str, float]) -> list[Claim]:
        speeds = [ours[f"tokens/s, {name}"] for name in names]
        return [
            Claim(
                f"{after} is faster than {before}", two > FASTER * one, "predicted", f"{two:,.0f}, {one:,.0f} tokens/s"
            )
            for (before, after), (one, two) in zip(pairwise(names), pairwise(speeds), strict=True)
        ]

    return claims


CLAIMS: Mapping[str, Callable[[Mapping[str, float]], list[Claim]]] = {
    "fig5": _ordering,
    "table4": _monotone,
    "table5": _in_order("LinearSS", "+ 1st Correction", "+ 2nd Correction", "+ Continuation"),
    "table6": _in_order("Fixed Block", "+ s_t", "+ z_t", "+ Bucketing"),
}


def _pictures(name: str, study: Study, entries: Sequence[Entry]) -> dict[str, Any]:
    if name == "fig5":
        return {"frontier": frontier_lines(figures_of(name, study.paper))}
    if name == "fig3":
        return {"curves": confidence_curves(study.paper)}
    return {"bars": bars([entry for entry in entries if entry.ours is not None], study.recorded is not None)}
