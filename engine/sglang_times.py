"""Where the time of rounds under SGLang went: forwards, the rest of their steps, and between steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.sim.log import PREFILL_STEP

SEAMLESS_S = 1e-6
"""Seconds up to which one step begins where the one before ended. Whatever is launched afterwards takes longer."""
Flags = NDArray[np.bool_]


def beside_prefills(steps: Mapping[str, NDArray[Any]]) -> Flags:
    """[steps] Rounds that were launched ahead and still ran when a prefill came.

    In the log steps follow each other, so the time until the prefill was over is the prefill's, and such a round begins
    right where that ended: what is left of it is less than its forwards, which ran before.
    """
    rounds = steps["block_size"] != PREFILL_STEP
    found = np.zeros(len(rounds), np.bool_)
    found[1:] = rounds[1:] & ~rounds[:-1] & (_gaps(steps) < SEAMLESS_S)
    return found


def host_times(steps: Mapping[str, NDArray[Any]], forward_s: NDArray[np.float64]) -> dict[str, float | int | None]:
    """Means and sums over rounds, without those beside prefills: forwards by the device's clock and the host add up."""
    whole, beside = steps["block_size"] != PREFILL_STEP, beside_prefills(steps)
    rounds = whole & ~beside
    count = int(rounds.sum())
    round_s, own_s = float(steps["seconds"][rounds].sum()), float(forward_s[rounds].sum())
    between = _gaps(steps)[whole[:-1] & whole[1:]]
    return {
        "rounds_beside_prefills": int(beside.sum()),
        "round_s": round_s,
        "forward_s": own_s,
        "mean_step_ms": round_s / count * 1e3 if count else None,
        "mean_forward_ms": own_s / count * 1e3 if count else None,
        "mean_host_ms": (round_s - own_s) / count * 1e3 if count else None,
        "mean_between_steps_ms": float(between.mean()) * 1e3 if len(between) else None,
        "median_between_steps_ms": float(np.median(between)) * 1e3 if len(between) else None,
    }


def _gaps(steps: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """[steps - 1] Seconds from the end of each step to the start of the next one."""
    gaps: NDArray[np.float64] = np.diff(steps["start_s"]) - steps["seconds"][:-1]
    return gaps
