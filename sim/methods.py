"""From policies to the ways of taking requests further that they ask for."""

from recguide.sim.batching import BATCHINGS, Batching
from recguide.sim.costs import CostModel
from recguide.sim.joint import Joint
from recguide.sim.joint_steps import JointSteps
from recguide.sim.oneforward import OneForward
from recguide.sim.overlap import SEEDED, Overlap, overlap_tables
from recguide.sim.policies import BlockPolicy
from recguide.sim.regime import Regime, Switching
from recguide.sim.rounds import Rounds
from recguide.sim.sharing import Allocation
from recguide.sim.steps import Linear, Method, planner_of
from recguide.sim.tidar import Tidar, tidar_tables
from recguide.sim.trimmed import Ragged, Trimmed

Policy = BlockPolicy | Overlap | Tidar | Ragged | Regime | Joint
"""A function that chooses block sizes, or the rules of a method of its own."""


def method_of(policy: Policy, rounds: Rounds, costs: CostModel, batching: Batching) -> Method:
    """The way to take requests further that a policy asks for; ``batching`` is for those that choose block sizes."""
    if isinstance(policy, Overlap):
        return OneForward(overlap_tables(rounds, policy), costs, "rows")
    if isinstance(policy, Tidar):
        return OneForward(tidar_tables(rounds, policy), costs, "quadratic", SEEDED)
    if isinstance(policy, Joint):
        return JointSteps(rounds, costs, policy)
    if isinstance(policy, Ragged):
        return Trimmed(rounds, costs, policy)
    if isinstance(policy, Regime):
        above = Linear(rounds, costs, policy.above, batching_of(policy.above, batching))
        return Switching(rounds, costs, policy, above)
    return Linear(rounds, costs, policy, batching_of(policy, batching))


def planned_by(policy: Policy) -> str:
    """As whose its rounds of two forwards count (:func:`recguide.sim.steps.planner_of`), "" too where it has none."""
    rules = policy.above if isinstance(policy, Regime) else policy
    return planner_of(rules) if callable(rules) else ""


def batching_of(policy: BlockPolicy, batching: Batching) -> Batching:
    """The one that a policy's steps have: what is shared out among all is run by all."""
    return BATCHINGS["ragged"] if isinstance(policy, Allocation) else batching
