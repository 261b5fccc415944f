"""Policies, loads and runs for tests of the serving engine, on a model small enough for all of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tiny import TINY, provenance_of, recorded

from recguide.engine.loading import LoadedModel
from recguide.engine.requests import Live, Wish
from recguide.engine.served import NOTE, ServedRun
from recguide.engine.serving import Engine, EngineConfig
from recguide.sim.adaptive import ALL, Adaptive
from recguide.sim.arrivals import Clients, as_recorded
from recguide.sim.batching import BATCHINGS
from recguide.sim.chances import GRID as KNOT_COUNT
from recguide.sim.chances import KNOTS, LEVELS, Chances
from recguide.sim.costs import linear_costs
from recguide.sim.history import Signal
from recguide.sim.joint import Joint
from recguide.sim.log import Replay
from recguide.sim.measured import replay_measured
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy
from recguide.sim.online import bandit, goodput, window
from recguide.sim.overlap import Overlap
from recguide.sim.policies import ByLoad, Informed, Outcomes, ar, fixed
from recguide.sim.regime import Regime
from recguide.sim.rounds import rounds_of
from recguide.sim.sharing import Allocation
from recguide.sim.tidar import Tidar
from recguide.traces.dense import DenseTrace

GRID = (2, 4, 8)
COSTS = linear_costs(1e-3, 2e-5, 1e-7)
tokens = st.integers(0, TINY.vocab_size - 1).filter(lambda token: token != TINY.mask_id)
prompts = st.lists(st.lists(tokens, min_size=1, max_size=20), min_size=1, max_size=6)


def by_certainty(seen: Outcomes) -> Any:
    """Larger blocks the surer the verifier was, as far as anything is known."""
    assert seen.entropy is not None
    assert seen.entropy_before is not None
    known = np.nan_to_num(seen.entropy, nan=0.9) + np.nan_to_num(seen.entropy_before, nan=0.0) / 2
    return np.where(known < 0.5, 8, np.where(seen.accept_len < seen.block_size, 2, 4))


CERTAIN = Informed(by_certainty, Signal(head=3, bonus=False))
ADAPTIVE = Adaptive(
    model=TINY.name,
    weights_sha256="",
    candidates=GRID,
    signal=Signal(head=3, bonus=False),
    edges=(-0.5,),
    values={
        ALL: {2: (1.3, 1.6), 4: (1.8, 2.8), 8: (1.9, 4.5)},
        "b4_full": {2: (1.5, 1.9), 4: (2.2, 3.4), 8: (2.9, 5.5)},
        "b8_partial": {2: (1.6, 1.7), 4: (1.7, 2.0), 8: (1.6, 2.1)},
    },
    loads=(),
    low_load=None,
    provenance={},
)
CHANCES = Chances(
    passes=tuple(np.linspace(0.4, 0.98, LEVELS).tolist()),
    second=tuple(np.linspace(0.9, 0.2, LEVELS).tolist()),
    correction=tuple(KNOTS.tolist()),
    continuation=tuple(np.linspace(0.02, 0.9, KNOT_COUNT).tolist()),
)


def jointly(rho: float, **changes: Any) -> Joint:
    """A joint policy at one price of time."""
    return Joint(ADAPTIVE, CHANCES, {1: rho, 4: rho / 2}, costs=COSTS, **changes)


POLICIES: dict[str, Policy] = {
    "ar": ar,
    "fixed:4": fixed(4),
    "fixed:8": fixed(8),
    "load": ByLoad(((1, 8), (3, 4), (None, 2))),
    "window": window(GRID),
    "certain": CERTAIN,
    "goodput": goodput(GRID, COSTS),
    "bandit": bandit(GRID),
    "allocation": Allocation(ADAPTIVE, linear_costs(1e-3, 2e-4, 1e-7)),
    "overlap": Overlap(4, 0.75),
    "overlap-3": Overlap(8, 0.5, 3, "always", "barred"),
    "overlap-once": Overlap(4, 0.75, 1, "two-risky", "allowed", False),
    "tidar": Tidar(4),
    "joint": jointly(1e4),
    "joint-free": jointly(0.0),
    "joint-corrections": jointly(3e3, corrections=1, continuation=False),
    "regime-allocation": Regime(Overlap(4, 0.75), Allocation(ADAPTIVE, linear_costs(1e-3, 2e-4, 1e-7)), 2),
    "regime": Regime(Overlap(4, 0.75), CERTAIN, 2),  # type: ignore[arg-type]
}
ONE_FORWARD = ("overlap", "overlap-3", "overlap-once", "tidar", "joint", "joint-free", "joint-corrections")
DRAFT_KEYS = [(view, size) for view in ("seeded", "continuation") for size in GRID]


@dataclass(frozen=True)
class Load:
    """A closed loop of requests on one engine."""

    policy: str
    batching: str
    limits: Limits
    max_new: int
    max_context: int
    concurrency: int
    rounded: bool
    """Whether forwards are filled up to few shapes, as on a GPU."""

    def config(self) -> EngineConfig:
        batching = BATCHINGS[self.batching]
        return EngineConfig(GRID, self.limits, self.max_context, batching, rounded=self.rounded)


@st.composite
def loads(draw: st.DrawFn, policies: tuple[str, ...] = tuple(POLICIES)) -> Load:
    limits = Limits(
        max_batched_tokens=draw(st.sampled_from([8, 64])),
        prefill_chunk=draw(st.sampled_from([None, None, 5, 16])),
        max_running=draw(st.integers(1, 5)),
        page_size=draw(st.sampled_from([4, 16])),
        kv_pages=draw(st.sampled_from([None, None, 16, 24])),
    )
    max_context = draw(st.sampled_from([96, 96, 44]))
    concurrency = draw(st.integers(1, 6))
    # a request must fit into the pages all by itself
    longest = min(max_context, limits.kv_tokens or max_context)
    policy, batching = draw(st.sampled_from(policies)), draw(st.sampled_from(["bucket", "pad", "ragged"]))
    return Load(policy, batching, limits, draw(st.integers(1, 30)), longest, concurrency, draw(st.booleans()))


def engine_of(model: LoadedModel, load: Load) -> Engine:
    return Engine(model.decoder, POLICIES[load.policy], load.config())


def serve(engine: Engine, prompts: list[list[int]], load: Load) -> tuple[list[Live], ServedRun]:
    """Send the next prompt whenever fewer than so many are in flight, and check all pages after every step."""
    left, lives, run = list(enumerate(prompts)), [], ServedRun()
    while left or engine.in_flight:
        while left and engine.in_flight < load.concurrency:
            row, prompt = left.pop(0)
            lives.append(engine.add(prompt, Wish(load.max_new), row, 0.0))
        run.see(engine.step())
        engine.check()
    return lives, run


def trace_of(model: LoadedModel, prompts: list[list[int]], load: Load) -> DenseTrace:
    """The same prompts recorded, by what records traces and knows of no engine."""
    return recorded(model, prompts, GRID, load.max_new, load.max_context)


def served_trace(model: LoadedModel, run: ServedRun, load: Load) -> DenseTrace:
    provenance = provenance_of(model, GRID, load.max_new, load.max_context)
    return run.trace(type(provenance)(**{**fields_of(provenance), "note": NOTE}))


def steps_of(engine: Engine) -> list[Any]:
    assert engine.log.log is not None
    return engine.log.log.steps


def fields_of(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def replayed(trace: DenseTrace, engine: Engine, load: Load) -> Replay:
    """The simulator's account of the engine's run, with the times that the engine's steps took."""
    rounds = rounds_of(trace, DRAFT_KEYS)
    seconds = [step.seconds for step in steps_of(engine)]
    clients = Clients(as_recorded(rounds, range(len(trace.requests))), load.concurrency)
    batching = BATCHINGS[load.batching]
    return replay_measured(
        rounds, POLICIES[load.policy], clients, seconds, engine.log.draft_s, batching=batching, limits=load.limits
    )


def assert_same_run(found: Replay, wanted: Replay) -> None:
    """The same steps at the same shapes, the same emissions with the same outcomes, the same memory."""
    shapes = ("in_flight", "block_size", "requests", "query_tokens", "context_tokens", "draft_tokens", "padding")
    for name in shapes:
        assert found.steps[name].tolist() == wanted.steps[name].tolist(), name
    for name in ("emission_request", "emission_tokens", "emission_step", "emission_block_size", "kv_pages"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
    assert (found.preemptions, found.recomputed_tokens) == (wanted.preemptions, wanted.recomputed_tokens)
    assert found.output_tokens.tolist() == wanted.output_tokens.tolist()
    if wanted.emission_outcome is not None:
        assert found.emission_outcome.tolist() == wanted.emission_outcome.tolist()
    np.testing.assert_allclose(wanted.steps["seconds"], found.steps["seconds"], rtol=1e-9)
