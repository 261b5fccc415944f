"""What simulated steps cost: by the profile, or by what is known better after the measurement."""

from collections.abc import Callable, Sequence

from recguide.sim.costs import Profile
from recguide.sim.measurement import Measurement
from recguide.traces.checks import require
from recguide.traces.errors import InputError
from recguide.validation.corrections import corrected, ratios_of, samples_of
from recguide.validation.processor import LOOP, at_speed, loop_us, slowness
from recguide.validation.replaying import Costs
from recguide.validation.stepcosts import costs_of_steps

CostsOf = Callable[[Measurement], Costs]

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
        return _by_cpu(profile, runs)
    if name == "corrected":
        return _by_others(profile, runs)
    told = Costs(costs_of_steps(runs), profiled) if name == "even-steps" else Costs(profiled, profiled)
    return lambda _: told


def _by_cpu(profile: Profile, runs: Sequence[Measurement]) -> CostsOf:
    if loop_us(profile.header) is None:
        raise InputError(f"{profile.path}: header: no {LOOP}; --costs cpu-speed needs a profile that has one")
    profiled, times = profile.costs(), dict(zip(map(_name, runs), slowness(runs, profile.header), strict=True))
    for name, slower in times.items():
        if slower is None:
            raise InputError(f"{name}: about.origin: no {LOOP}; --costs cpu-speed needs runs that have one")
    known = {slower: Costs(at_speed(profiled, slower), profiled) for slower in times.values() if slower is not None}
    return lambda run: known[times[_name(run)] or 1.0]


def _name(run: Measurement) -> str:
    return run.about.name


def _by_others(profile: Profile, runs: Sequence[Measurement]) -> CostsOf:
    profiled, counts = profile.costs(), sorted({run.about.concurrency for run in runs})
    require(len(counts) > 1, "--costs corrected: concurrencies", counts, "two at least")
    samples = [(run.about.concurrency, samples_of(run, profiled)) for run in runs]
    elsewhere = {count: ratios_of(found for other, found in samples if other != count) for count in counts}
    known = {count: Costs(corrected(profiled, ratios), profiled) for count, ratios in elsewhere.items()}
    return lambda run: known[run.about.concurrency]
