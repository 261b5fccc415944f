"""From the simulator's policies to the ways of the engine: no policy is written a second time."""

from collections.abc import Callable, Iterator, Sequence

from recguide.engine.jointly import JointWay
from recguide.engine.linear import LinearWay
from recguide.engine.outcomes import Change
from recguide.engine.overlapping import OverlapWay
from recguide.engine.quadratic import QuadraticWay
from recguide.engine.requests import Live
from recguide.engine.ways import Planned, Setup, Way
from recguide.sim.batching import Batching
from recguide.sim.chances import MOST_CORRECTIONS
from recguide.sim.joint import Decisions, Joint
from recguide.sim.methods import Policy, batching_of
from recguide.sim.overlap import Overlap
from recguide.sim.regime import Regime
from recguide.sim.tidar import Tidar
from recguide.traces.errors import InputError


class SwitchingWay:
    """Overlap while few requests run, blocks by certainty above; a draft that still fits outlives a switch."""

    masks = 0

    def __init__(self, setup: Setup, rules: Regime, batching: Batching) -> None:
        self.switch = rules.switch
        self.below = OverlapWay(setup, rules.overlap)
        self.above = LinearWay(setup, rules.above, batching_of(rules.above, batching))

    def plan(self, running: Sequence[Live], step: int) -> Planned:
        """Plan by the load."""
        way: OverlapWay | LinearWay = self.below if len(running) <= self.switch else self.above
        planned = way.plan(running, step)
        return planned._replace(what=(way, planned))

    def run(self, planned: Planned) -> list[Change]:
        """Run it in the way that planned it."""
        way, own = planned.what
        changes: list[Change] = way.run(own)
        return changes

    def begin(self, planned: Planned) -> Callable[[], list[Change]]:
        """Launch it in that way."""
        way, own = planned.what
        end: Callable[[], list[Change]] = way.begin(own)
        return end

    def rehearse(self, lives: Sequence[Live]) -> Iterator[Planned]:
        """What the way of this load rehearses."""
        way: OverlapWay | LinearWay = self.below if len(lives) <= self.switch else self.above
        for planned in way.rehearse(lives):
            yield planned._replace(what=(way, planned))

    def told(self, planned: Planned, changes: Sequence[Change], seconds: float) -> None:
        """Tell that way."""
        way, own = planned.what
        way.told(own, changes, seconds)

    def draft_seconds(self, planned: Planned, seconds: float) -> float:
        """As that way says."""
        way, own = planned.what
        share: float = way.draft_seconds(own, seconds)
        return share


def way_of(policy: Policy, setup: Setup, batching: Batching) -> Way:
    """The way that a policy asks for; ValueError for a block size that the engine does not run."""
    if isinstance(policy, Regime):
        _check(policy.overlap.block_size, setup)
        return SwitchingWay(setup, policy, batching)
    if isinstance(policy, Overlap):
        _check(policy.block_size, setup)
        return OverlapWay(setup, policy)
    if isinstance(policy, Tidar):
        _check(policy.block_size, setup)
        return QuadraticWay(setup, policy)
    if isinstance(policy, Joint):
        return _jointly(setup, policy)
    if not callable(policy):
        raise InputError(f"policy {type(policy).__name__.lower()}: only simulated, not served")
    return LinearWay(setup, policy, batching_of(policy, batching))


def _jointly(setup: Setup, policy: Joint) -> JointWay:
    if policy.clairvoyant:
        raise InputError("policy joint: found one that knows the future, which is only simulated")
    if policy.costs is None:
        raise InputError("policy joint: found none of the costs that it decides by, allowed: those of a profile")
    for size in policy.fitted.candidates:
        _check(size, setup)
    return JointWay(setup, policy, Decisions(policy, policy.costs))


def _check(block_size: int, setup: Setup) -> None:
    if block_size not in setup.block_sizes:
        allowed = ", ".join(map(str, setup.block_sizes))
        raise InputError(f"policy: found block size {block_size}, allowed: {allowed}")


def scratch_tokens(policy: Policy, block_sizes: Sequence[int]) -> int:
    """The most tokens that a forward writes behind the pages that a request holds."""
    if isinstance(policy, Regime):
        return max(block_sizes[-1], _branched(policy.overlap))
    if isinstance(policy, Overlap):
        return _branched(policy)
    if isinstance(policy, Tidar):
        return policy.block_size * (policy.block_size + 1)
    if isinstance(policy, Joint):
        return max(policy.fitted.candidates) * (2 + MOST_CORRECTIONS)
    return block_sizes[-1]


def _branched(rules: Overlap) -> int:
    return rules.block_size * (2 + rules.corrections)
