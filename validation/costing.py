"""What simulated steps cost: by the profile, or by what is known better after the measurement."""

from collections.abc import Callable, Sequence

from recguide.sim.costs import CostModel, Profile
from recguide.sim.measurement import Measurement
from recguide.traces.checks import require
from recguide.validation.corrections import corrected, ratios_of, samples_of
from recguide.validation.processor import at_speed, needed_loop_us
from recguide.validation.replaying import Costs
from recguide.validation.stepcosts import costs_of_steps

CostsOf = Callable[[Measurement], Costs]

BY_CPU = "--costs cpu-speed"
OF_RUNS_CPU = "cpu-speed", "even-steps"
"""By which of --costs the host's time is that of the runs' own CPU, not of the profile's."""
WARNINGS = {
    "cpu-speed": "the host's time is the profile's times how much slower the CPU was in each run",
    "corrected": "costs are the profile's, corrected by what steps took at all other concurrencies",
    "even-steps": "costs are those of every second served step, not the profile's",
}
"""What readers should know, by what --costs says."""


def costs_for(name: str, profile: Profile, runs: Sequence[Measurement]) -> CostsOf:
    """The costs of each of these runs, by what --costs says; InputError where there is nothing to take them of."""
    profiled = profile.costs()
    if name == "cpu-speed":
        return _by_cpu(profile, profiled, runs)
    if name == "corrected":
        return _by_others(profiled, runs)
    told = Costs(costs_of_steps(runs), profiled) if name == "even-steps" else Costs(profiled, profiled)
    return lambda _: told


def _by_cpu(profile: Profile, profiled: CostModel, runs: Sequence[Measurement]) -> CostsOf:
    base = needed_loop_us(profile.header, f"{profile.path}: header", BY_CPU)
    slower = {run: needed_loop_us(run.about.origin, f"{run.about.name}: about.origin", BY_CPU) / base for run in runs}
    known = {times: Costs(at_speed(profiled, times), profiled) for times in slower.values()}
    return lambda run: known[slower[run]]


def _by_others(profiled: CostModel, runs: Sequence[Measurement]) -> CostsOf:
    counts = sorted({run.about.concurrency for run in runs})
    require(len(counts) > 1, "--costs corrected: concurrencies", counts, "two at least")
    samples = [(run.about.concurrency, samples_of(run, profiled)) for run in runs]
    elsewhere = {count: ratios_of(found for other, found in samples if other != count) for count in counts}
    known = {count: Costs(corrected(profiled, ratios), profiled) for count, ratios in elsewhere.items()}
    return lambda run: known[run.about.concurrency]
