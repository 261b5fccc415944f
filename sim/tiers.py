"""One block size for each range of running requests: a policy, and its file."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from recguide.sim.policies import ByLoad
from recguide.sim.policyfiles import read_document
from recguide.sim.rounds import AR
from recguide.traces.errors import InputError

KIND = "tiers"


@dataclass(frozen=True, slots=True)
class Tier:
    """Running requests, both ends included, and their block size; 1: AR steps."""

    low: int
    high: int
    block_size: int


def read_tiers(path: Path) -> list[Tier]:
    """The tiers of a policy file; ValueError names the file, the field, what was found and what is allowed."""
    document = read_document(path, KIND, "recommend")
    try:
        tiers = [Tier(**tier) for tier in document["tiers"]]
        chained = tiers[0].low == 1 and all(one.high + 1 == other.low for one, other in pairwise(tiers))
        good = chained and all(tier.block_size >= AR and tier.low <= tier.high for tier in tiers)
    except (KeyError, TypeError, IndexError):
        good = False
    if not good:
        raise InputError(f"{path}: tiers: allowed: low, high and block_size of ranges that follow each other from 1 on")
    return tiers


def tiered(tiers: Sequence[Tier]) -> ByLoad:
    """The block size of the tier that the running requests fall in; the last one goes on."""
    return ByLoad(tuple((tier.high, tier.block_size) for tier in tiers))
