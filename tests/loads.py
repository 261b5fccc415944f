"""Random loads on a simulated server: traces, policies, arrivals, lengths, batching modes and limits."""

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from hypothesis import strategies as st
from strategies import BLOCK_SIZES, random_trace

from recguide.sim.adaptive import Equation3, adaptive
from recguide.sim.arrivals import Arrival, Clients
from recguide.sim.batching import BATCHINGS
from recguide.sim.catalogue import make_policy, rounds_for
from recguide.sim.costs import CostModel, linear_costs
from recguide.sim.fitting import fit_in_sample
from recguide.sim.log import Replay
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy
from recguide.sim.overlap import Overlap
from recguide.sim.regime import Regime
from recguide.sim.replay import serve
from recguide.sim.rounds import Rounds

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
FIXED = ("ar", "fixed:4", "fixed:32", "overlap:B=8", "tidar:B=8")
"""Policies that look neither at the clock nor at how many others run."""
MADE_HERE = ("scattered", "adaptive", "regime")
POLICIES = (*FIXED, "recipe", "oracle", "optimum", "window", "goodput", "ragged", "bandit", *MADE_HERE)


@dataclass(frozen=True)
class Setup:
    """Everything that decides a run."""

    rounds: Rounds = field(repr=False)
    policy: str
    arrivals: tuple[Arrival, ...]
    cap: int | None
    batching: str
    limits: Limits
    resized: bool
    closed: bool
    seed: int

    def run(self, costs: CostModel = COSTS, **changes: object) -> Replay:
        """Run it, with some of it changed."""
        if changes:
            return replace(self, **changes).run(costs)  # type: ignore[arg-type]
        return serve(
            self.rounds,
            costs,
            self.make_policy(costs),
            Clients(self.arrivals, self.cap),
            batching=BATCHINGS[self.batching],
            limits=self.limits,
            resized=self.resized,
            closed=self.closed,
        )

    def make_policy(self, costs: CostModel) -> Policy:
        """The policy by name; "scattered" takes any block size at any time."""
        if self.policy not in MADE_HERE:
            return make_policy(self.policy, self.rounds, costs)
        if self.policy != "scattered":
            return Regime(Overlap(8), fitted(), 2) if self.policy == "regime" else fitted()
        rng, sizes = np.random.default_rng(self.seed), np.array(sorted(self.rounds.emitted))
        return lambda seen: rng.choice(sizes, seen.running)


@cache
def fitted() -> Equation3:
    """An adaptive policy."""
    trace = random_trace(1, 12, min_output_tokens=80, max_output_tokens=120)
    return adaptive(fit_in_sample(trace, COSTS, concurrencies=(1, 4)))


@st.composite
def setups(
    draw: st.DrawFn, policies: tuple[str, ...] = POLICIES, closed: bool | None = None, limited: bool | None = None
) -> Setup:
    """A small server under any load."""
    seed = draw(st.integers(0, 999))
    trace = random_trace(seed, draw(st.integers(2, 6)), BLOCK_SIZES, max_output_tokens=40, ease=0.8)
    rounds = rounds_for(trace, [name for name in POLICIES if name not in MADE_HERE])
    rng = np.random.default_rng(seed)
    resized, closed = draw(st.booleans()), draw(st.booleans()) if closed is None else closed
    gaps = np.zeros(12) if closed else rng.exponential(draw(st.sampled_from((1e-4, 1e-2, 1.0))), 12)
    arrivals = tuple(_arrival(rng, rounds, float(time), resized) for time in np.cumsum(gaps))
    return Setup(
        rounds,
        draw(st.sampled_from(policies)),
        arrivals,
        draw(st.integers(1, 8)) if closed else draw(st.sampled_from((None, 1, 5))),
        draw(st.sampled_from(sorted(BATCHINGS))),
        _limits(draw, arrivals) if limited is None or limited else Limits(),
        resized,
        closed,
        seed,
    )


def _arrival(rng: np.random.Generator, rounds: Rounds, time: float, resized: bool) -> Arrival:
    row, *then = rng.permutation(len(rounds.first)).tolist()
    if not resized:
        return Arrival(time, row, int(rounds.prompt_tokens[row]), int(rounds.output_tokens[row]))
    whole = int(rounds.output_tokens.sum())
    return Arrival(time, row, int(rng.integers(1, 300)), int(rng.integers(1, whole + 1)), tuple(then))


def _limits(draw: st.DrawFn, arrivals: tuple[Arrival, ...]) -> Limits:
    page_size = draw(st.sampled_from((1, 16)))
    longest = max(-(-(each.prompt_tokens + each.output_tokens - 1) // page_size) for each in arrivals)
    pages = draw(st.none() | st.integers(longest, 3 * longest))
    chunk, running = draw(st.sampled_from((None, 1, 50, 10_000))), draw(st.sampled_from((None, 1, 3)))
    return Limits(draw(st.sampled_from((1, 300, 10_000))), chunk, running, page_size, pages)
