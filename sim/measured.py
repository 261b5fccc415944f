"""A run that was measured, replayed: its policy decides anew, and every step takes the time that it took."""

from collections.abc import Sequence

from recguide.sim.arrivals import Clients
from recguide.sim.batching import BUCKETED, Batching
from recguide.sim.costs import DECODE, ROUND, CostModel
from recguide.sim.curves import Curve, through
from recguide.sim.log import Replay
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy
from recguide.sim.replay import run, server_of
from recguide.sim.rounds import Rounds
from recguide.sim.server import Server


class MeasuredCosts(CostModel):
    """Whatever is asked for takes the time of the server's current step, or of the draft forward in it."""

    def __init__(self, seconds: Sequence[float], draft_s: Sequence[float]) -> None:
        super().__init__(lambda kind, requests, query_tokens: through({0.0: 0.0}), name="measured")
        self.seconds, self.draft_s = seconds, draft_s
        self.server: Server | None = None

    def curve(self, kinds: tuple[str, ...], requests: int, query_tokens: int) -> Curve:
        """The same at any context; ValueError where the run has no such step."""
        step = self.server.log.num_steps if self.server is not None else 0
        if step >= len(self.seconds):
            raise ValueError(f"step {step}: the measured run has {len(self.seconds)}; the replay is not that run")
        if kinds == ("host",):
            return through({0.0: 0.0})
        if kinds == ROUND[:1]:
            return through({0.0: self.draft_s[step]})
        apart = self.draft_s[step] if kinds == ROUND[1:] else 0.0
        return through({0.0: self.seconds[step] - apart})

    def round_curve(self, block_size: int, requests: int, host: str = "host") -> Curve:
        """A whole round."""
        return self.curve(DECODE if block_size == 1 else ROUND, requests, requests * block_size)


def replay_measured(
    rounds: Rounds,
    policy: Policy,
    clients: Clients,
    seconds: Sequence[float],
    draft_s: Sequence[float],
    *,
    batching: Batching = BUCKETED,
    limits: Limits | None = None,
    closed: bool = False,
) -> Replay:
    """Serve what the clients send, with the measured ``seconds`` of each step, ``draft_s`` of them its draft's.

    ValueError where the replay has more steps than were measured.
    """
    costs = MeasuredCosts(seconds, draft_s)
    server = server_of(rounds, costs, policy, clients, batching, limits or Limits(), False, None)
    costs.server = server
    run(server)
    return server.replay(closed)
