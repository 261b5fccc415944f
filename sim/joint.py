"""Rows and block size chosen together from one objective, which goes beyond the paper's two regimes.

A step of C requests takes a + b x (its query tokens), so a request's share of it is a/C + b x (its own tokens). A round
at B costs it a verify and, unless a branch of the round before was used, a draft. With the price of time rho, the plan
of a request (the branches of this round's forward, and the block size B' that they and the next round have) is worth

    V_B'(s, z) - rho x [b B' n + (1 - P) (a/C + b B') + b B'],

its expected tokens less what they cost: n branches of B' tokens, a draft forward where none of them is used (P is their
chance of use), and the verify. For a given B' a branch pays where its chance times (a/C + b B') is more than b B'.
With few requests a/C is large and likely branches all pay; with many it is small and none does. Nothing switches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recguide.sim.adaptive import Adaptive
from recguide.sim.chances import MOST_CORRECTIONS, Chances, Levels, branches_of, branches_of_one, keys_for
from recguide.sim.costs import CostModel
from recguide.sim.drafts import Key
from recguide.sim.expected import Expected
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


class _Price(NamedTuple):
    """What tokens are worth while so many requests run, and what they cost."""

    rho: float
    slope: float
    """Seconds for each query token of a request."""
    own: Floats
    """[sizes] The same for those of a block."""
    alone: Floats
    """[sizes] And with the request's share of a step without tokens."""
    owns: list[float]
    alones: list[float]


class Decisions(Expected):
    """What the policy decides for running requests on a machine with these costs; the engine uses it too."""

    def __init__(self, policy: Joint, costs: CostModel) -> None:
        super().__init__(policy.fitted)
        self.policy, self.costs = policy, costs
        self.allowed = np.array([i < policy.corrections for i in range(MOST_CORRECTIONS)] + [policy.continuation])
        self._allowed = self.allowed.tolist()
        self._prices: dict[int, _Price] = {}

    def value(self, seen: Outcomes) -> Floats:
        """[requests, sizes] Expected tokens of the next round at each block size."""
        found: Floats = self.values[self.places_of(seen)]
        return found

    def _price(self, count: int) -> "_Price":
        if count not in self._prices:
            context = 512 * count
            few, many = (self.costs.forward_s("rows", count, count * tokens, context) for tokens in (FEW, MANY))
            slope = max((many - few) / ((MANY - FEW) * count), 1e-12)
            fixed = max(few + self.costs.host_s(count, count * 8) - slope * FEW * count, 0.0) / count
            own = slope * self.sizes
            self._prices[count] = _Price(
                self.policy.rho_at(count), slope, own, fixed + own, own.tolist(), (fixed + own).tolist()
            )
        return self._prices[count]

    def first_size(self, value: Floats, count: int, room: Ints) -> Ints:
        """The index of the block size of a fresh draft among ``count`` requests: draft and verify are to be paid."""
        rho, slope = self._price(count)[:2]
        net = np.where(self.sizes <= room[:, None], value - rho * slope * 2 * self.sizes, -np.inf)
        best: Ints = net.argmax(axis=1)
        return best

    def first_size_of_one(self, value: Sequence[float], count: int, room: int) -> int:
        """The same of one request, for the engine: the block size itself."""
        rho, slope = self._price(count)[:2]
        net = [
            worth - rho * slope * 2 * size
            for worth, size in zip(value, self.policy.fitted.candidates, strict=True)
            if size <= room
        ]
        return self.policy.fitted.candidates[net.index(max(net))]

    def plan(self, value: Floats, chance: Floats, count: int) -> tuple[Ints, Bools]:
        """The index of the next block size of each that emits, and [requests, 4] which branches it gets.

        ``chance`` is [requests, 4], of :func:`runnable`.
        """
        rho, _, own, alone = self._price(count)[:4]
        # branches first: what is summed over them is summed in their order
        chance = (chance * self.allowed).T[:, :, None]
        pays = chance * alone > own
        used = (chance * pays).sum(axis=0)
        cost = own * (pays.sum(axis=0) + 1) + (1 - used) * alone
        chosen: Ints = (value - rho * cost).argmax(axis=1)
        return chosen, pays[:, np.arange(len(chosen)), chosen].T

    def plan_of_one(self, value: Sequence[float], chance: Sequence[float], count: int) -> tuple[int, list[bool]]:
        """The same of one request, for the engine; ``chance`` is of :func:`runnable_of_one`."""
        price = self._price(count)
        chance = [told * allowed for told, allowed in zip(chance, self._allowed, strict=True)]
        plans, nets = [], []
        for worth, own, alone in zip(value, price.owns, price.alones, strict=True):
            pays = [told * alone > own for told in chance]
            used = sum([told for told, does in zip(chance, pays, strict=True) if does], 0.0)
            nets.append(worth - price.rho * (own * (sum(pays) + 1) + (1 - used) * alone))
            plans.append(pays)
        best = nets.index(max(nets))
        return best, plans[best]


def runnable(chances: Chances, margin: Levels, size: Ints, limit: Ints, room: Ints) -> tuple[Ints, Floats]:
    """Branches of drafts: block positions of corrections [drafts, 3], chances of use [drafts, 4].

    ``margin`` is as for :func:`recguide.sim.chances.branches_of`, ``size`` the block size of each draft and of its
    branches, ``limit`` and ``room`` as for :func:`recguide.sim.overlap.prepared`. Branches that start behind the
    output limit or outside the context have no chance.
    """
    found = branches_of(chances, margin)
    starts = np.concatenate([found.position, size[:, None]], axis=1)
    runs = starts < np.minimum(limit, room - size + 1)[:, None]
    return found.position, found.chance * runs


def runnable_of_one(chances: Chances, margin: Sequence[int], limit: int, room: int) -> tuple[list[int], list[float]]:
    """:func:`runnable` of one draft, for the engine."""
    position, chance = branches_of_one(chances, margin)
    size = len(margin) + 1
    starts = zip((*position, size), chance, strict=True)
    return position, [told if start < limit and start + size <= room else 0.0 for start, told in starts]
