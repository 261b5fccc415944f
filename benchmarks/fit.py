"""Wall time of `recguide fit`: policy, cross-fits, plot and all, as one command, on 100,000 rounds and more.

    python benchmarks/fit.py [--requests 1500]

The trace is made up: outputs of 180 to 512 tokens. Rounds are those at the largest block size, which are the fewest.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import profiles
from strategies import random_trace

from recguide.traces.files import write_trace
from recguide.traces.replays import replay


def main() -> None:
    """Print the rounds of the trace, and the seconds of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1500)
    requests = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder:
        trace = random_trace(0, requests, min_output_tokens=180, max_output_tokens=512)
        write_trace(trace, Path(folder) / "trace.parquet", compression_level=1)
        profiles.write(Path(folder) / "profile.csv", model="tiny")
        command = [sys.executable, "-c", "from recguide.sim.cli import main; main()", "fit"]
        command += ["--trace", "trace.parquet", "--profile", "profile.csv"]
        start = time.perf_counter()
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
        seconds, cpu = time.perf_counter() - start, os.times().children_user
    rounds = len(replay(trace, 32).request)
    wall = f"{seconds:.1f} s wall (must stay under 30 s)"
    print(f"{requests} requests, {rounds:,} rounds at B = 32: {wall}, {cpu:.1f} s CPU")


if __name__ == "__main__":
    main()
