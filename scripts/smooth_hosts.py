"""Lays the host's rows of a profile on planes, as `recguide profile` does: python scripts/smooth_hosts.py FILE OUTPUT

For profiles that were measured before it did; those that it has written stay as they are.
"""

import sys
from pathlib import Path

from recguide.engine.hosts import smoothed, told_of_planes
from recguide.sim.costs import read_profile, write_profile


def main(source: Path, output: Path) -> None:
    """Write the profile whole; its header says how uneven the host's rows were."""
    profile = read_profile(source)
    rows = smoothed(profile.rows)
    write_profile(output, {**told_of_planes(profile.rows, rows), **profile.header}, rows)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
