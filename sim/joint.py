"""Rows and block size chosen together from one objective, which goes beyond the paper's two regimes.

A step of C requests takes a + b x (its query tokens), so a request's share of it is a/C + b x (its own tokens). A round
at B costs it a verify and, unless a branch of the round before was used, a draft. With the price of time rho, the plan
of a request (the branches of this round's forward, and the block size B' that they and the next round have) is worth

    V_B'(s, z) - rho x [b B' n + (1 - P) (a/C + b B') + b B'],

its expected tokens less what they cost: n branches of B' tokens, a draft forward where none of them is used (P is their
chance of use), and the verify. For a given B' a branch pays where its chance times (a/C + b B') is more than b B'.
With few requests a/C is large and likely branches all pay; with many it is small and none does. Nothing switches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recguide.sim.adaptive import ALL, Adaptive, certainty, stratum
from recguide.sim.chances import MOST_CORRECTIONS, Chances, branches_of, keys_for
from recguide.sim.costs import CostModel
from recguide.sim.drafts import Key
from recguide.sim.history import Floats, Signal
from recguide.sim.overlap import Bools
from recguide.sim.policies import Outcomes
from recguide.sim.rounds import Ints, Rounds

if TYPE_CHECKING:
    from recguide.sim.joint_steps import Plays

FEW, MANY = 12, 48
"""Query tokens a request between which a step's time is taken as linear."""


@dataclass(frozen=True, slots=True)
class Joint:
    """The policy."""

    fitted: Adaptive
    """Has V_B(s, z)."""
    chances: Chances
    rho: Mapping[int, float]
    """Tokens per second of all requests, by concurrency."""
    clairvoyant: bool = False
    """Whether it knows what becomes of branches and the next round: a bound for what can be learned of them."""
    corrections: int = MOST_CORRECTIONS
    """Correction branches at most, the likeliest ones."""
    continuation: bool = True
    """Whether there are continuation branches."""
    costs: CostModel | None = field(default=None, compare=False, repr=False)
    """What it decides by; None: what forwards cost in the replay at hand."""
    prepared: "tuple[Rounds, Plays] | None" = field(default=None, compare=False, repr=False)
    """Made once for many runs over the same rounds, by :meth:`over`."""

    def over(self, rounds: Rounds) -> "Joint":
        """The same, ready to run over these rounds again and again."""
        from recguide.sim.joint_steps import plays_of

        return replace(self, prepared=(rounds, plays_of(rounds, self)))

    @property
    def signal(self) -> Signal:
        """What it looks at."""
        return self.fitted.signal

    @property
    def keys(self) -> tuple[Key, ...]:
        """The recorded drafts that it plays."""
        return keys_for(self.fitted.candidates)

    def rho_at(self, running: int) -> float:
        """The price at the load that is nearest in ratio."""
        return self.rho[min(self.rho, key=lambda load: abs(np.log(load / running)))]


class Decisions:
    """What the policy decides for running requests on a machine with these costs; the engine uses it too."""

    def __init__(self, policy: Joint, costs: CostModel) -> None:
        self.policy, self.costs = policy, costs
        self.sizes = np.array(policy.fitted.candidates)
        self.allowed = np.array([i < policy.corrections for i in range(MOST_CORRECTIONS)] + [policy.continuation])
        names = [ALL, *(stratum(size, full) for size in policy.fitted.candidates for full in (False, True))]
        tables = [policy.fitted.values.get(name, policy.fitted.values[ALL]) for name in names]
        self.values = np.array([[table[size] for size in policy.fitted.candidates] for table in tables])
        self.pooled = self.values[0].mean(axis=1)
        self.edges = np.array(policy.fitted.edges)
        self.place = np.zeros((64, 2), np.int64)
        for i, size in enumerate(policy.fitted.candidates):
            self.place[size] = 2 * i + 1, 2 * i + 2
        self._prices: dict[int, tuple[float, float, float]] = {}

    def value(self, seen: Outcomes) -> Floats:
        """[requests, sizes] Expected tokens of the next round at each block size."""
        if seen.entropy is None or seen.entropy_before is None:
            raise ValueError("the joint policy looks at entropies, and nobody keeps them")
        s = certainty(seen.entropy, seen.entropy_before)
        where = self.place[seen.block_size, (seen.accept_len == seen.block_size).astype(np.int64)]
        # what is no number sorts behind all edges, and is replaced
        known = self.values[where, :, np.searchsorted(self.edges, s, side="right")]
        found: Floats = np.where(np.isnan(s)[:, None], self.pooled, known)
        return found

    def _price(self, count: int) -> tuple[float, float, float]:
        """rho, a request's share of a step without tokens, and seconds for each of its tokens."""
        if count not in self._prices:
            context = 512 * count
            few, many = (self.costs.forward_s("rows", count, count * tokens, context) for tokens in (FEW, MANY))
            slope = max((many - few) / ((MANY - FEW) * count), 1e-12)
            fixed = max(few + self.costs.host_s(count, count * 8) - slope * FEW * count, 0.0) / count
            self._prices[count] = (self.policy.rho_at(count), fixed, slope)
        return self._prices[count]

    def first_size(self, value: Floats, count: int, room: Ints) -> Ints:
        """The index of the block size of a fresh draft among ``count`` requests: draft and verify are to be paid."""
        rho, _, slope = self._price(count)
        net = np.where(self.sizes <= room[:, None], value - rho * slope * 2 * self.sizes, -np.inf)
        best: Ints = net.argmax(axis=1)
        return best

    def plan(self, value: Floats, chance: Floats, count: int) -> tuple[Ints, Bools]:
        """The index of the next block size of each that emits, and [requests, 4] which branches it gets.

        ``chance`` is [requests, 4], of :func:`runnable`.
        """
        rho, fixed, slope = self._price(count)
        chance = chance * self.allowed
        pays = chance[:, None, :] * (fixed + slope * self.sizes[:, None]) > slope * self.sizes[:, None]
        used = (chance[:, None, :] * pays).sum(axis=2)
        cost = slope * self.sizes * (pays.sum(axis=2) + 1) + (1 - used) * (fixed + slope * self.sizes)
        chosen: Ints = (value - rho * cost).argmax(axis=1)
        return chosen, pays[np.arange(len(chosen)), chosen]


def runnable(chances: Chances, margin: NDArray[np.uint8], size: int, limit: Ints, room: Ints) -> tuple[Ints, Floats]:
    """Branches of drafts at one block size: block positions of corrections [drafts, 3], chances of use [drafts, 4].

    ``limit`` and ``room`` are as for :func:`recguide.sim.overlap.prepared`. Branches that start behind the output limit
    or outside the context have no chance.
    """
    found = branches_of(chances, margin)
    starts = np.concatenate([found.position, np.full((len(margin), 1), size)], axis=1)
    runs = (starts < limit[:, None]) & (starts + size <= room[:, None])
    return found.position, found.chance * runs
