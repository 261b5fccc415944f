"""Choosing block sizes from the verifier's certainty (paper, section 5.2, Equations 2 and 3), and policy files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.sim.history import Floats, Signal
from recguide.sim.policies import Outcomes
from recguide.sim.policyfiles import FORMAT, read_document
from recguide.sim.rounds import Ints
from recguide.traces.checks import is_number, require
from recguide.traces.documents import write_json
from recguide.traces.errors import InputError

KIND = "adaptive"
CANDIDATES = (8, 16, 32)
"""The paper's block sizes."""
ALL = "all"
"""The stratum of every round."""


@dataclass(frozen=True, slots=True)
class Load:
    """What holds at one concurrency C."""

    concurrency: int
    rho: float
    """Tokens that a second of a round is worth."""
    cost_s: Mapping[int, float]
    """T_C(B): seconds of a round of C requests, by block size."""
    cold_start: int
    """The block size of a request without history."""


@dataclass(frozen=True, slots=True)
class LowLoad:
    """What was found best for overlap while few requests run."""

    block_size: int
    delta: float
    """Positions with a smaller margin are risky; a multiple of 1/256."""
    switch: int
    """The most running requests at which overlap is faster."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A fitted policy: V_B(s, z), rho_C and T_C(B) as tables."""

    model: str
    weights_sha256: str
    candidates: tuple[int, ...]
    signal: Signal
    edges: tuple[float, ...]
    """Between the bins of s, ascending."""
    values: Mapping[str, Mapping[int, Sequence[float]]]
    """V_B by stratum, block size and bin of s; the stratum ``ALL`` is always there."""
    loads: tuple[Load, ...]
    """By ascending concurrency."""
    low_load: LowLoad | None
    """Overlap below the switch point; None in files that were fitted without it."""
    provenance: Mapping[str, Any]
    """What it was fitted to: trace, profile, and how."""


def stratum(block_size: int, full: bool) -> str:
    """The name of z = (block size, fully accepted)."""
    return f"b{block_size}_{'full' if full else 'partial'}"


def certainty(entropy: Floats, entropy_before: Floats) -> Floats:
    """s_t: minus the mean entropy of the last two rounds, of the last one where there is one; NaN where none is."""
    two = -(entropy + entropy_before) / 2
    return np.where(np.isnan(entropy_before), -entropy, two)


@dataclass(frozen=True, slots=True, eq=False)
class Equation3:
    """The block size with the most expected tokens, less what its time is worth, for every request: a block policy."""

    signal: Signal
    log_loads: Floats
    """[loads] Logarithms of the concurrencies."""
    cold_start: Ints
    """[loads]"""
    edges: Floats
    tables: Ints
    """[loads, strata, bins] Block sizes, the stratum of all rounds first."""
    place: Ints
    """[block size, fully accepted] The stratum; what is no candidate has that of all rounds."""

    def load_of(self, running: int) -> int:
        """Which of the loads is nearest in ratio."""
        return int(np.abs(self.log_loads - math.log(running)).argmin())

    def __call__(self, seen: Outcomes) -> Ints:
        """The block sizes of the running requests."""
        if seen.entropy is None or seen.entropy_before is None:
            raise ValueError("the adaptive policy looks at entropies, and nobody keeps them")
        s = certainty(seen.entropy, seen.entropy_before)
        return self.choose_at(self.load_of(seen.running), s, seen.block_size, seen.accept_len == seen.block_size)

    def choose_at(self, load: int, s: Floats, last: Ints, full: NDArray[np.bool_]) -> Ints:
        """The same at one of the loads, from certainty, and the last block size with whether it was fully accepted."""
        where = self.place[last, full.astype(np.int64)]
        chosen = self.tables[load][where, np.searchsorted(self.edges, s, side="right")]
        sizes: Ints = np.where(np.isnan(s), self.cold_start[load], chosen)
        return sizes


def adaptive(fitted: Adaptive, strata: bool = True) -> Equation3:
    """The policy of fitted tables; ties go to the smaller block, and without ``strata`` z is ignored."""
    place = np.zeros((64, 2), np.int64)
    for i, size in enumerate(fitted.candidates):
        place[size] = (2 * i + 1, 2 * i + 2) if strata else 0
    return Equation3(
        fitted.signal,
        np.log([load.concurrency for load in fitted.loads]),
        np.array([load.cold_start for load in fitted.loads]),
        np.array(fitted.edges),
        np.array([_decisions(fitted, load, strata) for load in fitted.loads]),
        place,
    )


def _decisions(fitted: Adaptive, load: Load, strata: bool) -> Ints:
    """[strata, bins] The block size of Equation 3, the stratum of all rounds first."""
    names = [ALL]
    if strata:
        names += [stratum(size, full) for size in fitted.candidates for full in (False, True)]
    cost = np.array([load.rho * load.cost_s[size] for size in fitted.candidates])
    values = [fitted.values.get(name, fitted.values[ALL]) for name in names]
    gain = np.array([[value[size] for size in fitted.candidates] for value in values]) - cost[:, None]
    best: Ints = np.array(fitted.candidates)[gain.argmax(axis=1)]
    return best


def write_policy(fitted: Adaptive, path: Path) -> None:
    """Write a policy file (JSON) that :func:`read_policy` reads; it appears whole or not at all."""
    document = {"recguide_policy": FORMAT, "kind": KIND, **asdict(fitted)}
    write_json(path, document)


def read_policy(path: Path) -> Adaptive:
    """Read a policy file; InputError names the file, the field, what was found and what is allowed."""
    return policy_from(path, read_document(path, KIND, "fit"))


def policy_from(path: Path, document: Mapping[str, Any]) -> Adaptive:
    """The policy in a document of this file; InputError as :func:`read_policy`."""
    try:
        return _checked(_parsed(document))
    except KeyError as error:
        raise InputError(f"{path}: {error.args[0]}: missing") from None
    except (TypeError, AttributeError) as error:
        raise InputError(f"{path}: of another shape than a policy: {error}") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _parsed(document: Mapping[str, Any]) -> Adaptive:
    def by_size(values: Mapping[str, Any]) -> dict[int, Any]:
        return {int(size): value for size, value in values.items()}

    loads = [
        Load(int(load["concurrency"]), float(load["rho"]), by_size(load["cost_s"]), int(load["cold_start"]))
        for load in document["loads"]
    ]
    return Adaptive(
        model=str(document["model"]),
        weights_sha256=str(document["weights_sha256"]),
        candidates=tuple(int(size) for size in document["candidates"]),
        signal=Signal(**document["signal"]),
        edges=tuple(float(edge) for edge in document["edges"]),
        values={name: by_size(values) for name, values in document["values"].items()},
        loads=tuple(loads),
        low_load=LowLoad(**document["low_load"]) if document.get("low_load") else None,
        provenance=_provenance(document["provenance"]),
    )


def _provenance(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared later on must be there to look into, if it is there."""
    for part in ("trace", "profile"):
        require(isinstance(found.get(part, {}), dict), f"provenance: {part}", found.get(part), "an object")
    return dict(found)


def _checked(fitted: Adaptive) -> Adaptive:
    """The policy itself, unless a table does not have the shape that the others say."""
    sizes, bins = fitted.candidates, len(fitted.edges) + 1
    problems = {
        "candidates: none, or not ascending": not sizes or list(sizes) != sorted(set(sizes)),
        f"candidates: found {list(sizes)}, allowed: from 2 to 32": not all(2 <= size <= 32 for size in sizes),
        "edges: not ascending": list(fitted.edges) != sorted(set(fitted.edges)),
        f"values: the stratum {ALL!r} is missing": ALL not in fitted.values,
        "loads: none, or not ascending": not fitted.loads
        or sorted({load.concurrency for load in fitted.loads}) != [load.concurrency for load in fitted.loads],
    }
    for problem, there in problems.items():
        if there:
            raise InputError(problem)
    tables: dict[str, Mapping[int, Any]]
    tables = {f"values: {name}, block size": values for name, values in fitted.values.items()}
    tables |= {f"loads: cost_s at {load.concurrency}, block size": load.cost_s for load in fitted.loads}
    for what, table in tables.items():
        if tuple(table) != sizes:
            raise InputError(f"{what}: found {list(table)}, allowed: {list(sizes)}")
    for name, values in fitted.values.items():
        for size, row in values.items():
            if len(row) != bins or not all(is_number(value) and 1 <= value <= size for value in row):
                raise InputError(f"values: {name}, {size}: allowed: {bins} numbers from 1 to {size}")
    for load in fitted.loads:
        _check_load(load, sizes)
    if fitted.low_load is not None:
        _check_low_load(fitted.low_load)
    return fitted


def _check_low_load(found: LowLoad) -> None:
    size, steps = found.block_size, found.delta * 256 if is_number(found.delta) else math.nan
    if not (isinstance(size, int) and 2 <= size <= 32):
        raise InputError(f"low_load: block_size: found {size!r}, allowed: a whole number from 2 to 32")
    if not (0 < steps < 256 and steps == int(steps)):
        raise InputError(f"low_load: delta: found {found.delta!r}, allowed: multiples of 1/256 between 0 and 1")
    if not (isinstance(found.switch, int) and found.switch >= 0):
        raise InputError(f"low_load: switch: found {found.switch!r}, allowed: a whole number of at least 0")


def _check_load(load: Load, sizes: Sequence[int]) -> None:
    figures = {"concurrency": load.concurrency, "rho": load.rho, **{f"cost_s {b}": t for b, t in load.cost_s.items()}}
    for field, value in figures.items():
        if not (is_number(value) and 0 <= value < math.inf):
            raise InputError(f"loads: {field}: found {value!r}, allowed: a number of at least 0")
    if load.concurrency < 1 or load.cold_start not in sizes:
        raise InputError(f"loads: found concurrency {load.concurrency} with cold_start {load.cold_start}")
