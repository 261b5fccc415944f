"""What each further request adds to the host's time of a round: as much as makes the fixed blocks of Table 6, served
here, as fast as published. Table 5 says what one request takes, and Table 6's first row is an input, not a prediction.
"""

from collections.abc import Mapping

from scipy.optimize import brentq

from recguide.sim.costs import CostModel
from recguide.sim.paper.b200 import Host, host_ms, profile_of
from recguide.sim.paper.published import HIGH_LOADS, TABLE6
from recguide.sim.paper.subjects import mean, served
from recguide.sim.policies import recipe
from recguide.sim.rounds import Rounds, rounds_of
from recguide.traces.dense import DenseTrace

MOST_MS = 2.0


def inferred_more_ms(model: str, traces: Mapping[str, DenseTrace]) -> float:
    """In ms, from the served requests by benchmark; 0 where fixed blocks are too slow without it."""
    rounds = {name: rounds_of(trace) for name, trace in traces.items()}
    one = host_ms(model).one

    def surplus(more: float) -> float:
        costs = profile_of(model, Host(one, more)).costs()
        return fixed_blocks(costs, traces, rounds) - TABLE6["Fixed Block"][model]

    return float(brentq(surplus, 0.0, MOST_MS, xtol=1e-4)) if surplus(0.0) > 0 else 0.0


def fixed_blocks(costs: CostModel, traces: Mapping[str, DenseTrace], rounds: Mapping[str, Rounds]) -> float:
    """Tokens per second of the official recipe's block sizes: the mean of benchmarks and C = 2 to 128."""
    return mean(
        [
            served(trace, costs, recipe, load, rounds=rounds[name]).tokens_per_s
            for name, trace in traces.items()
            for load in HIGH_LOADS
        ]
    )
