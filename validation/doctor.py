"""Whether this machine, a profile and a trace go together, and what to do where they do not."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recguide.sim.costs import DRAFTS, MERGED, Profile, read_profile, resolve_profile
from recguide.sim.guards import check_sources
from recguide.traces.dense import DenseTrace
from recguide.traces.errors import InputError
from recguide.traces.files import read_traces
from recguide.validation.machine import ENGINE, SERVE, SIMULATION, Machine

OK, WARNING, FAILURE = "ok", "warning", "failure"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at. ``remedy`` is a command, empty where nothing is wrong or nothing helps."""

    subject: str
    state: str
    found: str
    remedy: str = ""


def examine(machine: Machine, traces: Sequence[str], profile: str | None) -> list[Diagnosis]:
    """Everything: packages, GPU, the profile against this machine, and the traces against the profile."""
    costs, unreadable = _profile(profile)
    trace, also = _trace(traces)
    return [
        *packages(machine),
        gpu(machine),
        *unreadable,
        *([] if costs is None else profiled(machine, costs)),
        *also,
        *([] if costs is None or trace is None else matching(trace, costs)),
    ]


def packages(machine: Machine) -> Iterator[Diagnosis]:
    """What simulating needs, and what the engine and its server need beside it."""
    yield Diagnosis("python", OK, machine.python)
    for subject, names, extra, state in (
        ("simulation", ("recguide", *SIMULATION), "recguide", FAILURE),
        ("engine", ENGINE, "recguide[engine]", WARNING),
        ("server", SERVE, "recguide[engine,serve]", WARNING),
    ):
        missing = [name for name in names if machine.packages[name] is None]
        if missing:
            yield Diagnosis(subject, state, f"not installed: {', '.join(missing)}", f"pip install '{extra}'")
        else:
            yield Diagnosis(subject, OK, ", ".join(f"{name} {machine.packages[name]}" for name in names))


def gpu(machine: Machine) -> Diagnosis:
    """The GPUs; simulating needs none."""
    if not machine.gpus:
        return Diagnosis("gpu", WARNING, "none: simulation alone is possible, or the engine on the CPU in fp32")
    return Diagnosis("gpu", OK, f"{', '.join(machine.gpus)}; driver {machine.driver}")


def profiled(machine: Machine, profile: Profile) -> Iterator[Diagnosis]:
    """Whether the profile was measured on a GPU like this machine's, with the torch that is installed."""
    header, subject = profile.header, f"profile {Path(profile.path).stem}"
    remedy = shlex.join(["recguide", "profile", header["model"], *_adapter(header), "--output", "my_gpu.csv"])
    if not machine.gpus:
        yield Diagnosis(subject, OK, f"of {header['gpu']}, which this machine need not have to simulate")
    elif header["gpu"] not in machine.gpus:
        yield Diagnosis(subject, WARNING, f"of {header['gpu']}, this machine has {machine.gpus[0]}", remedy)
    else:
        yield from _versions(machine, profile, subject, remedy)


def _versions(machine: Machine, profile: Profile, subject: str, remedy: str) -> Iterator[Diagnosis]:
    here = {"torch": machine.packages["torch"], "driver": machine.driver}
    others = [
        f"{name} {profile.header[name]}, here {found}"
        for name, found in here.items()
        if found is not None and profile.header[name] != found
    ]
    if others:
        yield Diagnosis(subject, WARNING, f"measured with other versions: {'; '.join(others)}", remedy)
    else:
        yield Diagnosis(subject, OK, f"of {profile.header['gpu']}, with what is installed here")


def matching(trace: DenseTrace, profile: Profile) -> Iterator[Diagnosis]:
    """Whether trace and profile are of one model with one adapter, as a sweep would ask."""
    origin, header = trace.provenance, profile.header
    subject = "trace and profile"
    profiling = shlex.join(["recguide", "profile", origin.model, *_adapter(header), "--output", "my_gpu.csv"])
    if origin.model != header["model"]:
        text = f"the trace is of {origin.model}, the profile of {header['model']}: a sweep needs --cross-model"
        yield Diagnosis(subject, WARNING, text, profiling)
        return
    findings = check_sources(trace, profile)
    for finding in findings:
        state, remedy = (FAILURE, profiling) if finding.refuses else (WARNING, "")
        yield Diagnosis(subject, state, finding.text, remedy)
    if not findings:
        yield Diagnosis(subject, OK, f"both of {origin.model}, with the same weights and adapter")


def _adapter(header: Mapping[str, str]) -> list[str]:
    """The options that profile as the given profile was made."""
    command = shlex.split(header.get("command", ""))
    adapter = command[command.index("--adapter") :][:2] if "--adapter" in command else []
    return [*adapter, "--merge-drafts"] if header.get(DRAFTS) == MERGED else adapter


def _profile(name: str | None) -> tuple[Profile | None, list[Diagnosis]]:
    if name is None:
        return None, []
    try:
        return read_profile(resolve_profile(name)), []
    except (InputError, OSError) as error:
        return None, [Diagnosis(f"profile {Path(name).stem}", FAILURE, str(error), "recguide profile --help")]


def _trace(names: Sequence[str]) -> tuple[DenseTrace | None, list[Diagnosis]]:
    if not names:
        return None, []
    subject = f"trace {', '.join(names)}"
    try:
        trace = read_traces(names)
    except (InputError, OSError) as error:
        return None, [Diagnosis(subject, FAILURE, str(error), "recguide record --help")]
    origin = trace.provenance
    sizes = ", ".join(map(str, origin.block_sizes))
    text = f"{len(trace.requests)} requests of {origin.model}, recorded on {origin.gpu}, B = {sizes}"
    return trace, [Diagnosis(subject, OK, text)]
