"""Rounds of overlap one request at a time, beside those of plain linear self-speculation at the same block size.

    python benchmarks/overlap_rounds.py benchmarks/h200/sglang-runs/*/ [--block-size 16] [--output rounds.json]

Each folder holds measurements, as `recguide bench sglang --result-dir` and `recguide measure` leave them: of `fixed:B`
and of `overlap:B=B` at C = 1. A round of LinearSS is one step, draft and verify. Under overlap it is two where no
branch had drafted it, with what verifies and what drafts ahead in the second one's forward, and one where a branch had.
What is asked is what those rounds cost that had to draft and for which no branch was prepared: they can gain nothing.
``forward`` is by the device's clock, ``host`` the rest of the steps. ``composed`` is what such a round takes by the
parts that are known of it, however few there were: the steps that drafted alone, LinearSS's verify, and the host of
other rounds. Under `overlap:B=B,corrections=0,continuation=never` every round is of that kind, and nothing is composed.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.engine.sglang_times import beside_prefills
from recguide.sim.measurement import Measurement, read_measurement
from recguide.sim.overlap import Outcome
from recguide.traces.documents import write_json

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
FIGURES = "rounds", "forward_ms", "host_ms", "step_ms", "median_step_ms", "largest_step_ms"


class Steps:
    """Those of runs at C = 1, one run behind the other; times in ms."""

    def __init__(self, runs: Sequence[Measurement], size: int) -> None:
        told = [each.run.steps for each in runs]
        self.seconds = np.concatenate([steps["seconds"] for steps in told]) * 1e3
        self.forward = np.concatenate([each.forward_s for each in runs]) * 1e3
        self.draft = np.concatenate([each.draft_s for each in runs]) * 1e3
        query, drafted = (np.concatenate([steps[name] for steps in told]) for name in ("query_tokens", "draft_tokens"))
        whole = np.concatenate([(steps["block_size"] == size) & ~beside_prefills(steps) for steps in told])
        self.verifies, self.drafts_alone = whole & (query > 0), whole & (query == 0) & (drafted == size)
        self.prepared = np.concatenate([_outcomes(each) & Outcome.PREPARED != 0 for each in runs])
        self.drafted_before = np.zeros(len(whole), np.bool_)
        self.drafted_before[1:] = self.drafts_alone[:-1]

    def told(self, which: Flags, before: bool = False) -> dict[str, float]:
        """Of these steps, each with the one before it if asked for."""
        at = np.flatnonzero(which)
        seconds, forward = (_sums(values, at, before) for values in (self.seconds, self.forward))
        if not len(at):
            return {"rounds": 0}
        values = forward.mean(), (seconds - forward).mean(), seconds.mean(), np.median(seconds), seconds.max()
        return dict(zip(FIGURES, (len(at), *(round(float(value), 4) for value in values)), strict=True))


def _outcomes(measured: Measurement) -> NDArray[np.int64]:
    """[steps] Flags of the round that a step was; 0 where it was none."""
    run = measured.run
    found = np.zeros(len(run.steps["seconds"]), np.int64)
    if run.emission_outcome is not None:
        found[run.emission_step] = run.emission_outcome
    return found


def _sums(values: Floats, at: NDArray[np.int64], before: bool) -> Floats:
    return values[at] + values[at - 1] if before else values[at]


def compared(linear: Steps, overlap: Steps) -> dict[str, Any]:
    """Rounds of both by their kinds, and the ratios of those without branches."""
    plain, own = linear.told(linear.verifies), overlap.verifies & overlap.drafted_before
    bare = overlap.told(own & ~overlap.prepared, before=True)
    alone = overlap.told(overlap.drafts_alone)
    draft = float(linear.draft[linear.verifies].mean())
    verify = plain["forward_ms"] - draft
    return {
        "linear": plain,
        "linear_draft_forward_ms": round(draft, 4),
        "linear_verify_forward_ms": round(verify, 4),
        "draft_alone": alone,
        "verify_without_branches": overlap.told(own & ~overlap.prepared),
        "drafted_without_branches": bare,
        "drafted_with_branches": overlap.told(own & overlap.prepared, before=True),
        "reused": overlap.told(overlap.verifies & ~overlap.drafted_before),
        "ratio": _ratios(plain, bare),
        **_composed(plain, alone, overlap.told(overlap.verifies & overlap.prepared), verify),
    }


def _composed(
    plain: Mapping[str, float], alone: Mapping[str, float], prepared: Mapping[str, float], verify: float
) -> dict[str, dict[str, float]]:
    """By the parts that are known; nothing of runs that prepared no branch, whose own rounds tell."""
    if not prepared["rounds"]:
        return {}
    forward, host = alone["forward_ms"] + verify, alone["host_ms"] + prepared["host_ms"]
    ratio = {"forward": forward / plain["forward_ms"], "step": (forward + host) / plain["step_ms"]}
    return {
        "composed": {
            "forward_ms": round(forward, 4), "host_ms": round(host, 4), "step_ms": round(forward + host, 4)
        },
        "ratio_composed": {name: round(value, 4) for name, value in ratio.items()},
    }  # fmt: skip


def _ratios(plain: Mapping[str, float], found: Mapping[str, float]) -> dict[str, float]:
    if not found["rounds"]:
        return {}
    names = {"forward": "forward_ms", "step": "step_ms", "median_step": "median_step_ms"}
    return {name: round(found[figure] / plain[figure], 4) for name, figure in names.items()}


def folder_of(folder: Path, size: int) -> dict[str, Any]:
    """What is told of a folder's runs."""
    names = f"fixed_{size}-all-c1-*.json.gz", "overlap*-all-c1-*.json.gz"
    linear, overlap = ([read_measurement(path) for path in sorted(folder.glob(name))] for name in names)
    if not linear or not overlap:
        raise SystemExit(f"{folder}: found no measurements of fixed:{size} and of overlap at C = 1")
    origin = overlap[0].about.origin
    about = {name: origin[name] for name in ("model", "gpu", "torch", "engine_commit", "created")}
    about |= {"folder": folder.name, "acceptance": overlap[0].about.acceptance, "policy": overlap[0].about.policy}
    return {**about, "block_size": size, **compared(Steps(linear, size), Steps(overlap, size))}


def main() -> None:
    """Compare the runs of folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    found = [folder_of(folder, given.block_size) for folder in given.folders]
    for each in found:
        print(json.dumps(each, indent=1))
    if given.output is not None:
        write_json(given.output, found)


if __name__ == "__main__":
    main()
