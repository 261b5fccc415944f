"""Where the host took longer than a profile says: steps of rounds beside prefills, other ones, and prefills themselves.

    python benchmarks/turnover.py CAMPAIGN PROFILE

CAMPAIGN is a folder of `recguide measure`; the host's time is the profile's times how much slower the CPU was in each
run, as far as both say. Behind and before a prefill requests end and start. In microseconds, the mean over the runs at
each concurrency, above 0 where it took longer, and nothing where there are no such steps: a step of rounds by itself
and beside a prefill, and a whole prefill.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recguide.sim.campaigns import read_campaign
from recguide.sim.costs import read_profile, resolve_profile
from recguide.sim.log import PREFILL_STEP
from recguide.validation.budget import layout_of, planner_named
from recguide.validation.pricing import host_of, priced
from recguide.validation.processor import slowness


def main(folder: Path, name: str) -> None:
    """Print a line for each concurrency."""
    profile, found = read_profile(resolve_profile(name)), defaultdict(list)
    costs = profile.costs()
    for key, runs in read_campaign(folder).runs.items():
        for run, slower in zip(runs, slowness(runs, profile.header), strict=True):
            told_s, host_s = priced(run.run, costs, layout_of(key.policy), planner_named(key.policy))
            took_s = host_of(run.run, run.forward_s)
            prefills = run.run.steps["block_size"] == PREFILL_STEP
            more_host_s, more_forward_s = took_s - host_s * (slower or 1), run.forward_s - told_s
            found[key.concurrency].append(parts(prefills, more_host_s, more_forward_s))
    print("C,runs,rounds_us,rounds_beside_prefills_us,prefills_us")
    for count, rows in sorted(found.items()):
        print(count, len(rows), *map(_mean_us, np.array(rows).T), sep=",")


def _mean_us(seconds: NDArray[np.float64]) -> str:
    """Of the runs that have such steps; nothing where none has."""
    known = seconds[~np.isnan(seconds)]
    return f"{known.mean() * 1e6:.0f}" if len(known) else ""


def parts(
    prefills: NDArray[np.bool_], more_host_s: NDArray[np.float64], more_forward_s: NDArray[np.float64]
) -> tuple[float, ...]:
    """Seconds more than told: of rounds apart from prefills, of those beside them, and of prefills as a whole."""
    beside = ~prefills & (np.append(prefills[1:], False) | np.insert(prefills[:-1], 0, False))
    apart = ~prefills & ~beside
    # a profile's prefills hold their host
    of = (apart, more_host_s), (beside, more_host_s), (prefills, more_host_s + more_forward_s)
    return tuple(float(np.mean(more[those])) if those.any() else np.nan for those, more in of)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2])
