"""The simulator's policies by name, for an engine, which has no recorded rounds to show them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recguide.sim.catalogue import make_policy
from recguide.sim.costs import CostModel, constant_costs, read_profile, resolve_profile
from recguide.sim.measurement import DECIDED_BY
from recguide.sim.methods import Policy
from recguide.sim.rounds import AR, Rounds
from recguide.sim.slo import CLAIRVOYANT
from recguide.traces.errors import InputError
from recguide.traces.files import file_sha256

LOOK_AT_COSTS = ("adaptive", "adaptive-s", "allocation", "regime", "joint", "goodput")
SIMULATED_ONLY = ("ragged",)
UNKNOWN = ("", "")
"""The state of a model that is not compared, as where a trace of another one says what is accepted."""


def policy_of(
    name: str, block_sizes: Sequence[int], model: str, costs: CostModel | None, state: tuple[str, str] = UNKNOWN
) -> Policy:
    """The policy of that name over these block sizes; ValueError for one that cannot be served.

    ``costs`` are a profile's of this GPU and model, for the policies that look at it or are checked against it.
    ``state`` are the hashes of weights and adapter, which fitted policies are checked against too.
    """
    head = name.partition(":")[0]
    if head in CLAIRVOYANT:
        raise InputError(f"policy {name!r}: knows the future, and cannot be served")
    if head in SIMULATED_ONLY:
        raise InputError(f"policy {name!r}: only simulated, not served")
    if head in LOOK_AT_COSTS and costs is None:
        raise InputError(f"policy {name!r}: needs --profile, a profile of this GPU and model")
    rounds = replace(rounds_named(block_sizes, model), weights_sha256=state[0], adapter_sha256=state[1])
    return make_policy(name, rounds, costs or constant_costs())


def costs_of(profile: str | None) -> CostModel | None:
    """The costs of a profile by name or path, if one is given."""
    return None if profile is None else read_profile(resolve_profile(profile)).costs()


def identity_of(profile: str | None) -> dict[str, str]:
    """How runs name the profile by which policies decided, if one was given."""
    if profile is None:
        return {}
    path = resolve_profile(profile)
    return {"profile": path.stem, DECIDED_BY: file_sha256(path)}


def rounds_named(block_sizes: Sequence[int], model: str) -> Rounds:
    """Rounds of nobody, at these block sizes: what policies and figures of a run need to know of them."""
    none = np.zeros(0, np.int64)
    sizes = (AR, *block_sizes)
    return Rounds(
        block_sizes=tuple(block_sizes),
        first=none,
        prompt_tokens=none,
        output_tokens=none,
        accept_len={size: none.astype(np.int16) for size in sizes},
        emitted=dict.fromkeys(sizes, none),
        finished=none.astype(np.bool_),
        largest=None,
        max_context=1,
        max_output_tokens=1,
        entropy=none.astype(np.float64),
        model=model,
        drafts={},
    )
