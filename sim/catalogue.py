"""Policies by name, as the command line and result files know them; docs/policies.md describes each."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from recguide.sim.adaptive import CANDIDATES, Adaptive, adaptive, read_policy
from recguide.sim.allocation import optimum
from recguide.sim.costs import CostModel
from recguide.sim.drafts import Key
from recguide.sim.joint_file import read_joint
from recguide.sim.methods import Policy
from recguide.sim.online import EXPLORATION, bandit, goodput, window
from recguide.sim.options import (
    Options,
    at_least_0,
    multiple_of_a_256th,
    number,
    one_of,
    parse_options,
    text_of,
    yes_or_no,
)
from recguide.sim.overlap import CONTINUATIONS, MAX_CORRECTIONS, Overlap
from recguide.sim.ownpolicies import is_own, own_policy
from recguide.sim.policies import RECIPE, ar, fixed, oracle, recipe
from recguide.sim.regime import Regime, switch_of
from recguide.sim.rounds import Rounds, rounds_of
from recguide.sim.sharing import Allocation
from recguide.sim.tidar import Tidar
from recguide.sim.tiers import read_tiers, tiered
from recguide.sim.trimmed import Ragged
from recguide.traces.dense import DenseTrace, differ
from recguide.traces.errors import InputError

Maker = Callable[[str, Rounds, CostModel], Policy]


def make_policy(name: str, rounds: Rounds, costs: CostModel) -> Policy:
    """The policy that a name on the command line means; ValueError when there is none or a block size is unrecorded."""
    if is_own(name):
        return own_policy(name)
    head, colon, argument = name.partition(":")
    try:
        _check_form(head, bool(colon), argument)
        return POLICIES[head](argument, rounds, costs)
    except InputError as error:
        raise InputError(f"policy {name!r}: {error}") from None


def _check_form(head: str, colon: bool, argument: str) -> None:
    if head not in POLICIES:
        known = ", ".join(TAKES_OPTIONS.get(known, known) for known in POLICIES)
        raise InputError(f"unknown; known: {known}, path/to/file.py:function")
    if colon and head not in TAKES_OPTIONS:
        raise InputError(f"found options {argument!r}, allowed: none, {head} alone")
    if colon and not argument:
        raise InputError(f"found nothing behind the colon, allowed: {TAKES_OPTIONS[head]}")


def rounds_for(trace: DenseTrace, names: Iterable[str]) -> Rounds:
    """The rounds of a trace with the drafts that the named policies look at."""
    return rounds_of(trace, [key for name in names for key in keys_of(name) if key[1] in trace.provenance.block_sizes])


def keys_of(name: str) -> tuple[Key, ...]:
    """Views and block sizes whose drafts a policy looks at."""
    if is_own(name):
        return ()
    head, _, argument = name.partition(":")
    try:
        return KEYS[head](argument) if head in KEYS else ()
    except InputError as error:
        raise InputError(f"policy {name!r}: {error}") from None


def _fixed(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    if not argument.isdecimal():
        raise InputError(f"found block size {argument!r}, allowed: fixed:B with a recorded B")
    rounds.check(int(argument))
    return fixed(int(argument))


def _recipe(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    for _, size in RECIPE:
        rounds.check(size)
    return recipe


OVERLAP_OPTIONS: Options = {
    "B": number(2, 32),
    "delta": multiple_of_a_256th,
    "corrections": number(0, MAX_CORRECTIONS),
    "continuation": one_of(*CONTINUATIONS),
    "eos": one_of("allowed", "barred"),
    "recursive": yes_or_no,
}
ABOVE = "adaptive", "allocation"
REGIME_OPTIONS: Options = {"file": text_of, "above": one_of(*ABOVE), "switch": number(0, 1_000_000), **OVERLAP_OPTIONS}


def overlap_named(argument: str) -> Overlap:
    """The overlap rules of the options behind ``overlap:``."""
    return _overlap_of(parse_options(argument, OVERLAP_OPTIONS))


def _overlap_of(found: Mapping[str, Any]) -> Overlap:
    names = {"B": "block_size", **{name: name for name in OVERLAP_OPTIONS if name != "B"}}
    return Overlap(**{names[key]: value for key, value in found.items() if key in names})


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


def _tiers(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    tiers = read_tiers(Path(argument))
    for tier in tiers:
        rounds.check(tier.block_size)
    return tiered(tiers)


def _adaptive(argument: str, rounds: Rounds, costs: CostModel, strata: bool = True) -> Policy:
    return adaptive(fitting(argument, rounds, costs), strata)


def fitting(path: str, rounds: Rounds, costs: CostModel, usage: str = "adaptive:FILE.json") -> Adaptive:
    """The policy file at ``path``; ValueError unless it fits the trace and the costs."""
    if not path:
        raise InputError(f"needs a policy file, {usage}; `recguide fit` makes one from a trace and a profile")
    return checked_fit(path, read_policy(Path(path)), rounds, costs)


def _allocation(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    return Allocation(fitting(argument, rounds, costs, "allocation:FILE.json"), costs)


def checked_fit(path: str, fitted: Adaptive, rounds: Rounds, costs: CostModel) -> Adaptive:
    """The same policy; InputError unless it was fitted to this model, profile and GPU, and its blocks were recorded.

    Weights and draft adapters are compared where both say theirs.
    """
    for size in fitted.candidates:
        rounds.check(size)
    profile = fitted.provenance.get("profile", {})
    for what, made, here in (
        ("trace's model", fitted.model, rounds.model),
        ("profile's model", profile.get("model"), costs.model),
        ("profile's GPU", profile.get("gpu"), costs.gpu),
    ):
        if made != here:
            raise InputError(f"{path}: {what}: fitted to {made!r}, but found {here!r}; `recguide fit` makes another")
    _check_state(path, fitted, rounds)
    return fitted


def _check_state(path: str, fitted: Adaptive, rounds: Rounds) -> None:
    adapter = str(fitted.provenance.get("trace", {}).get("adapter_sha256", ""))
    for field, theirs, ours in (
        ("weights_sha256", fitted.weights_sha256, rounds.weights_sha256),
        ("adapter_sha256", adapter, rounds.adapter_sha256),
    ):
        if differ(theirs, ours):
            told = f"fitted to {theirs[:16]}, but found {ours[:16]}"
            raise InputError(f"{path}: {field}: {told}; `recguide fit` makes another")


def _regime(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    found = parse_options(argument, REGIME_OPTIONS)
    fitted = fitting(found.get("file", ""), rounds, costs, "regime:file=FILE.json")
    low = fitted.low_load
    rules = _overlap_of(({"B": low.block_size, "delta": low.delta} if low else {}) | found)
    rounds.check(rules.block_size)
    above = Allocation(fitted, costs) if found.get("above") == "allocation" else adaptive(fitted)
    switch = found.get("switch")
    return Regime(rules, above, switch_of(fitted, costs, rules.block_size) if switch is None else switch)


def _regime_keys(argument: str) -> tuple[Key, ...]:
    """Those of the block size that is asked for, or that the file has; a file at fault is told when it is read."""
    found = parse_options(argument, REGIME_OPTIONS)
    path = Path(found.get("file", ""))
    if "B" not in found and path.is_file() and (low := read_policy(path).low_load):
        found = {"B": low.block_size} | found
    return _overlap_of(found).keys


def _joint(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    if not argument:
        raise InputError("needs a policy file, joint:FILE.json; `recguide fit --joint` makes one")
    policy = read_joint(Path(argument))
    checked_fit(argument, policy.fitted, rounds, costs)
    return replace(policy, costs=costs)


def _joint_keys(argument: str) -> tuple[Key, ...]:
    """Those of the file's candidates; a file at fault is told when it is read."""
    return read_joint(Path(argument)).keys if argument and Path(argument).is_file() else ()


def _ragged(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    rules = ragged_named(argument)
    rounds.check(rules.block_size)
    return rules


def ragged_named(argument: str) -> Ragged:
    """The rules of the options behind ``ragged:``."""
    found = parse_options(argument, {"B": number(2, 32)})
    return Ragged(found["B"]) if found else Ragged()


def blocks_of(rounds: Rounds) -> tuple[int, ...]:
    """The paper's block sizes as far as they were recorded, or all recorded ones where none of them was."""
    return tuple(size for size in rounds.block_sizes if size in CANDIDATES) or rounds.block_sizes


def _bandit(argument: str, rounds: Rounds, costs: CostModel) -> Policy:
    found = parse_options(argument, {"exploration": at_least_0})
    return bandit(blocks_of(rounds), found.get("exploration", EXPLORATION))


POLICIES: Mapping[str, Maker] = {
    "ar": lambda argument, rounds, costs: ar,
    "fixed": _fixed,
    "recipe": _recipe,
    "tiers": _tiers,
    "adaptive": _adaptive,
    "adaptive-s": partial(_adaptive, strata=False),
    "allocation": _allocation,
    "overlap": _overlap,
    "regime": _regime,
    "joint": _joint,
    "tidar": _tidar,
    "window": lambda argument, rounds, costs: window(blocks_of(rounds)),
    "goodput": lambda argument, rounds, costs: goodput(blocks_of(rounds), costs),
    "ragged": _ragged,
    "bandit": _bandit,
    "oracle": lambda argument, rounds, costs: oracle(rounds, costs),
    "optimum": lambda argument, rounds, costs: optimum(rounds, costs),
}
TAKES_OPTIONS: Mapping[str, str] = {
    "fixed": "fixed:B",
    "tiers": "tiers:FILE",
    "adaptive": "adaptive:FILE",
    "adaptive-s": "adaptive-s:FILE",
    "allocation": "allocation:FILE",
    "overlap": "overlap[:OPTIONS]",
    "regime": "regime:file=FILE[,OPTIONS]",
    "joint": "joint:FILE",
    "tidar": "tidar[:B=...]",
    "ragged": "ragged[:B=...]",
    "bandit": "bandit[:exploration=...]",
}
KEYS: Mapping[str, Callable[[str], tuple[Key, ...]]] = {
    "overlap": lambda argument: overlap_named(argument).keys,
    "regime": _regime_keys,
    "joint": _joint_keys,
    "tidar": lambda argument: tidar_named(argument).keys,
    "ragged": lambda argument: ragged_named(argument).keys,
}
