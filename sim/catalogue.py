"""Policies by name, as the command line and result files know them; docs/policies.md describes each."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recguide.sim.adaptive import Adaptive, adaptive, read_policy
from recguide.sim.costs import CostModel
from recguide.sim.drafts import Key
from recguide.sim.overlap import CONTINUATIONS, MAX_CORRECTIONS, Overlap
from recguide.sim.policies import RECIPE, Policy, ar, fixed, oracle, recipe
from recguide.sim.rounds import Rounds, rounds_of
from recguide.sim.tidar import Tidar
from recguide.traces.dense import DenseTrace, is_risky

Maker = Callable[[str, Rounds, CostModel], Policy]
Options = Mapping[str, Callable[[str], Any]]


def make_policy(name: str, rounds: Rounds, costs: CostModel) -> Policy:
    """The policy that a name on the command line means; ValueError when there is none or a block size is unrecorded."""
    head, colon, argument = name.partition(":")
    try:
        if head not in POLICIES or (colon and not argument) or (bool(colon) and head not in TAKES_OPTIONS):
            raise ValueError(f"unknown; known: {', '.join(TAKES_OPTIONS.get(known, known) for known in POLICIES)}")
        return POLICIES[head](argument, rounds, costs)
    except ValueError as error:
        raise ValueError(f"policy {name!r}: {error}") from None


def rounds_for(trace: DenseTrace, names: Iterable[str]) -> Rounds:
    """The rounds of a trace with the drafts that the named policies look at."""
    return rounds_of(trace, [key for name in names for key in keys_of(name) if key[1] in trace.provenance.block_sizes])


def keys_of(name: str) -> tuple[Key, ...]:
    """Views and block sizes whose drafts a policy looks at."""
    head, _, argument = name.partition(":")
    try:
        return KEYS[head](argument) if head in KEYS else ()
    except ValueError as error:
        raise ValueError(f"policy {name!r}: {error}") from None


def parse_options(argument: str, known: Options) -> dict[str, Any]:
    """``key=value`` pairs with commas between; ValueError for an unknown key, one given twice, or a bad value."""
    found: dict[str, Any] = {}
    for part in argument.split(",") if argument else []:
        key, _, text = part.partition("=")
        if key not in known or key in found:
            raise ValueError(f"option {part!r}: allowed, once each: {', '.join(f'{name}=...' for name in known)}")
        try:
            found[key] = known[key](text)
        except ValueError as error:
            raise ValueError(f"option {key}: {error}") from None
    return found


def number(least: int, most: int) -> Callable[[str], int]:
    """Reads a whole number."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise ValueError(f"found {text!r}, allowed: a whole number from {least} to {most}")
        return int(text)

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """Reads one of a few words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"found {text!r}, allowed: {', '.join(words)}")
        return text

    return read


def yes_or_no(text: str) -> bool:
    """Reads a switch."""
    return one_of("yes", "no")(text) == "yes"


def _delta(text: str) -> float:
    try:
        delta = float(text)
    except ValueError:
        raise ValueError(f"found {text!r}, allowed: multiples of 1/256 between 0 and 1") from None
    is_risky(np.zeros(0, np.uint8), delta)
    return delta


def _fixed(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    if not argument.isdecimal():
        raise ValueError(f"found block size {argument!r}, allowed: fixed:B with a recorded B")
    rounds.check(int(argument))
    return fixed(int(argument))


def _recipe(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    for _, size in RECIPE:
        rounds.check(size)
    return recipe


OVERLAP_OPTIONS: Options = {
    "B": number(2, 32),
    "delta": _delta,
    "corrections": number(0, MAX_CORRECTIONS),
    "continuation": one_of(*CONTINUATIONS),
    "eos": one_of("allowed", "barred"),
    "recursive": yes_or_no,
}


def overlap_named(argument: str) -> Overlap:
    """The overlap rules of the options behind ``overlap:``."""
    found = parse_options(argument, OVERLAP_OPTIONS)
    return Overlap(**{"block_size" if key == "B" else key: value for key, value in found.items()})


def tidar_named(argument: str) -> Tidar:
    """The quadratic layout of the options behind ``tidar:``."""
    found = parse_options(argument, {"B": number(2, 32)})
    return Tidar(found["B"]) if found else Tidar()


def _overlap(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    rules = overlap_named(argument)
    rounds.check(rules.block_size)
    return rules


def _tidar(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    rules = tidar_named(argument)
    rounds.check(rules.block_size)
    return rules


def _adaptive(argument: str, rounds: Rounds, costs: CostModel, strata: bool = True) -> Policy:
    return adaptive(fitting(argument, rounds, costs), strata)


def fitting(path: str, rounds: Rounds, costs: CostModel) -> Adaptive:
    """The policy file at ``path``; ValueError unless it fits the trace and the costs."""
    if not path:
        raise ValueError("needs a policy file, adaptive:FILE.json; `recguide fit` makes one from a trace and a profile")
    fitted = read_policy(Path(path))
    for size in fitted.candidates:
        rounds.check(size)
    profile = fitted.provenance.get("profile", {})
    for what, made, here in (
        ("trace's model", fitted.model, rounds.model),
        ("profile's model", profile.get("model"), costs.model),
        ("profile's GPU", profile.get("gpu"), costs.gpu),
    ):
        if made != here:
            raise ValueError(f"{path}: {what}: fitted to {made!r}, but found {here!r}; `recguide fit` makes another")
    return fitted


POLICIES: Mapping[str, Maker] = {
    "ar": lambda argument, rounds, costs: ar,
    "fixed": _fixed,
    "recipe": _recipe,
    "overlap": _overlap,
    "tidar": _tidar,
    "adaptive": _adaptive,
    "adaptive-s": partial(_adaptive, strata=False),
    "oracle": lambda argument, rounds, costs: oracle(rounds, costs),
}
TAKES_OPTIONS: Mapping[str, str] = {
    "fixed": "fixed:B",
    "overlap": "overlap[:OPTIONS]",
    "tidar": "tidar[:B=...]",
    "adaptive": "adaptive:FILE",
    "adaptive-s": "adaptive-s:FILE",
}
KEYS: Mapping[str, Callable[[str], tuple[Key, ...]]] = {
    "overlap": lambda argument: overlap_named(argument).keys,
    "tidar": lambda argument: tidar_named(argument).keys,
}
