"""Wall time of the paper's whole grid: 6 policies, 7 concurrencies, 8 datasets of 200 requests each.

    python benchmarks/grid.py [--jobs 2]

One `recguide sweep` a dataset, from start to exit, with tables, plots and reports; ``--jobs`` of them run at a time on
a core each. Traces, profile and policy file are made up: outputs of 180 to 512 tokens, about 350 on average.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import profiles
from strategies import random_trace

from recguide.sim.adaptive import write_policy
from recguide.sim.costs import read_profile
from recguide.sim.fitting import fit_in_sample
from recguide.traces.files import write_trace

POLICIES = ("ar", "fixed:8", "fixed:16", "fixed:32", "overlap")
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
DATASETS, NUM_PROMPTS = 8, 200


def main() -> None:
    """Print the wall and processor time of all sweeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = make_up(folder)
        start = time.perf_counter()
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(partial(one_dataset, folder), range(DATASETS)))
        wall_s = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    points = (len(POLICIES) + 1) * len(CONCURRENCIES) * DATASETS
    print(f"{points} points, {tokens * points // DATASETS / 1e6:.0f} M tokens, {jobs} at a time: {wall_s:.1f} s wall")
    print(f"(must stay under 60 s), {used.ru_utime + used.ru_stime:.1f} s of processor time")


def make_up(folder: Path) -> int:
    """A random trace a dataset, a profile, and a policy fitted to both; gives the output tokens of all traces."""
    profile = profiles.write(folder / "profile.csv")
    tokens = 0
    for seed in range(DATASETS):
        trace = random_trace(seed, NUM_PROMPTS, min_output_tokens=180, max_output_tokens=512)
        write_trace(trace, folder / f"{seed}.parquet")
        tokens += sum(request.output_tokens for request in trace.requests)
    fitted = fit_in_sample(trace, read_profile(profile).costs(), concurrencies=CONCURRENCIES)
    write_policy(fitted, folder / "policy.json")
    return tokens


def one_dataset(folder: Path, number: int) -> None:
    """Run one sweep."""
    command = [sys.executable, "-c", "from recguide.sim.cli import main; main()", "sweep", "--jobs", "1"]
    command += ["--trace", str(folder / f"{number}.parquet"), "--profile", str(folder / "profile.csv")]
    command += [word for each in (*POLICIES, f"adaptive:{folder}/policy.json") for word in ("--policy", each)]
    command += ["--max-concurrency", ",".join(map(str, CONCURRENCIES)), "--num-prompts", str(NUM_PROMPTS)]
    command += ["--output-dir", str(folder / f"results-{number}")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
