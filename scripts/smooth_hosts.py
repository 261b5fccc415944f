"""Lays the host's rows of a profile on planes, as `recguide profile` does: python scripts/smooth_hosts.py FILE OUTPUT

For profiles that were measured before it did; those whose header says that it was done stay as they are.
"""

import sys
from pathlib import Path

from recguide.engine.hosts import TOLD, smoothed, told_of_planes
from recguide.sim.cli import NOT_THERE
from recguide.sim.costs import read_profile, write_profile
from recguide.traces.checks import require_place
from recguide.traces.errors import InputError


def main(source: Path, output: Path) -> None:
    """Write the profile whole; its header says how uneven the host's rows were."""
    profile = read_profile(source)
    require_place(output, "OUTPUT")
    rows = profile.rows if TOLD in profile.header else smoothed(profile.rows)
    write_profile(output, {**told_of_planes(profile.rows, rows), **profile.header}, rows)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*map(Path, sys.argv[1:]))
    except (InputError, *NOT_THERE) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
