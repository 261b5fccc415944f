"""Policies that look back, fitted to a small trace, and profiles in which what they take of the host is apart."""

from collections.abc import Mapping
from pathlib import Path

import profiles
from strategies import random_trace

from recguide.sim.adaptive import write_policy
from recguide.sim.costs import CostModel, Profile
from recguide.sim.fitting import fit_in_sample
from recguide.sim.joint_file import write_joint
from recguide.sim.joint_fit import fit_joint
from recguide.sim.profile_rows import Row

TRACE = random_trace(3, 16, ease=0.8, min_output_tokens=40, max_output_tokens=90)


def costs_with(host_us: Mapping[str, float]) -> CostModel:
    """Of a profile in which these kinds of the host's time are so long."""
    more = [Row(kind, n, 8 * n, 0, time_us, 1.0, 5) for kind, time_us in host_us.items() for n in (2, 64)]
    return Profile("made-up", profiles.header(), [*profiles.rows(), *more]).costs()


def fitted_names(folder: Path, costs: CostModel) -> dict[str, str]:
    """Names with files, which are written to the folder, of policies that are fitted to :data:`TRACE`."""
    fitted = fit_in_sample(TRACE, costs, concurrencies=(1, 4))
    write_policy(fitted, folder / "p.json")
    write_joint(fit_joint(TRACE, costs, fitted), folder / "joint.json")
    names = {name: f"{name}:{folder / 'p.json'}" for name in ("adaptive", "adaptive-s", "allocation")}
    low = f"regime:file={folder / 'p.json'},B=8,switch=2"
    return names | {
        "regime": low,
        "regime, allocation": f"{low},above=allocation",
        "joint": f"joint:{folder / 'joint.json'}",
    }
