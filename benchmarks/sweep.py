"""Wall time of a sweep: 500 requests, 7 concurrencies, 6 policies, as one command, then runs alone.

    python benchmarks/sweep.py [--trace NAME ... --profile NAME] [--jobs 2]

Without a trace and a profile it makes up both: outputs of 180 to 512 tokens, about 350 on average.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import profiles
from strategies import random_trace

from recguide.sim.adaptive import write_policy
from recguide.sim.catalogue import make_policy, rounds_for
from recguide.sim.costs import CostModel, read_profile, resolve_profile
from recguide.sim.fitting import fit_in_sample
from recguide.sim.log import Replay
from recguide.sim.replay import replay
from recguide.sim.rounds import Rounds
from recguide.sim.sweep import serving_order
from recguide.traces.files import read_traces, write_trace

POLICIES = ("ar", "fixed:8", "fixed:16", "fixed:32", "recipe", "oracle")
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
NUM_PROMPTS = 500
# tokens simulated per second by SpecDecode-Bench/simulator, the one public simulator that replays dense traces
PEER_TOKENS_PER_S = 0.26e6
ALONE = (*POLICIES, "window", "overlap", "tidar", "goodput", "bandit", "ragged", "adaptive:FILE", "regime:file=FILE")
ALONE_AT = (1, 8, 64)
TIMES = 3
"""Runs of which the fastest counts: a machine that others use as well is slow at times, and never too fast."""


def main() -> None:
    """Print the wall time of the whole command, and rounds and tokens per second of the loop on one core."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", nargs="*")
    parser.add_argument("--profile")
    parser.add_argument("--jobs", default="2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        traces, profile = options.trace or [made_up(Path(folder))], options.profile
        if profile is None:
            profile = str(profiles.write(Path(folder) / "profile.csv"))
        whole_command(traces, profile, options.jobs, folder)
        trace, costs = read_traces(traces), read_profile(resolve_profile(profile)).costs()
        write_policy(fit_in_sample(trace, costs, concurrencies=CONCURRENCIES), Path(folder) / "policy.json")
        names = [name.replace("FILE", f"{folder}/policy.json") for name in ALONE]
        runs_alone(rounds_for(trace, names), costs, names)


def made_up(folder: Path) -> str:
    """A random trace in a file."""
    write_trace(random_trace(0, NUM_PROMPTS, min_output_tokens=180, max_output_tokens=512), folder / "trace.parquet")
    return str(folder / "trace.parquet")


def whole_command(traces: list[str], profile: str, jobs: str, folder: str) -> None:
    """Time `recguide sweep` from start to exit, files and plot included."""
    command = [sys.executable, "-c", "from recguide.sim.cli import main; main()", "sweep", "--profile", profile]
    command += [word for name in traces for word in ("--trace", name)]
    command += [word for name in POLICIES for word in ("--policy", name)]
    command += ["--max-concurrency", ",".join(map(str, CONCURRENCIES)), "--num-prompts", str(NUM_PROMPTS)]
    start = time.perf_counter()
    subprocess.run(
        [*command, "--jobs", jobs, "--output-dir", folder, "--cross-model"], check=True, stdout=subprocess.DEVNULL
    )
    print(f"whole command, {jobs} jobs: {time.perf_counter() - start:.1f} s wall (must stay under 20 s)")


def runs_alone(rounds: Rounds, costs: CostModel, names: list[str]) -> None:
    """Time the replay of every policy at the ends and the middle of the range, on one core."""
    print(f"{'policy':10}{'C':>4}{'rounds/s':>12}{'tokens/s':>12}{'x peer':>8}{'events: rounds/s':>18}")
    for name in names:
        for concurrency in ALONE_AT:
            run, seconds = fastest(rounds, costs, name, concurrency)
            _, events_s = fastest(rounds, costs, name, concurrency, fast=False, times=1)
            num_rounds, tokens = len(run.emission_request), run.output_tokens.sum() / seconds
            print(
                f"{name.partition(':/')[0].partition(':file')[0]:10}{concurrency:4}{num_rounds / seconds:12,.0f}"
                f"{tokens:12,.0f}{tokens / PEER_TOKENS_PER_S:8.1f}{num_rounds / events_s:18,.0f}",
                flush=True,
            )


def fastest(
    rounds: Rounds, costs: CostModel, name: str, concurrency: int, *, fast: bool = True, times: int = TIMES
) -> tuple[Replay, float]:
    """A run and its processor seconds; ``fast`` leaves the events out where that is possible."""
    order, seconds = serving_order(len(rounds.first), NUM_PROMPTS, 0), []
    for _ in range(times):
        policy, start = make_policy(name, rounds, costs), time.process_time()
        run = replay(rounds, costs, policy, concurrency=concurrency, order=order, fast=fast)
        seconds.append(time.process_time() - start)
    return run, min(seconds)


if __name__ == "__main__":
    main()
