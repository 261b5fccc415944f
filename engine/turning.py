"""A serving engine that turns from policy to policy, with one cache and the same CUDA graphs for all of them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from recguide.engine.model import Decoder
from recguide.engine.pages import PagePool
from recguide.engine.prefilling import Prefills
from recguide.engine.scheduler import Scheduler
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.wayof import scratch_tokens, way_of
from recguide.engine.ways import AsFound, Judge, Setup
from recguide.sim.methods import Policy


class TurningEngine(Engine):
    """``policies`` are those that it may turn to."""

    def __init__(
        self,
        decoder: Decoder,
        policies: Sequence[Policy],
        config: EngineConfig,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        widest = max(policies, key=lambda policy: scratch_tokens(policy, config.block_sizes))
        super().__init__(decoder, widest, config, None, clock)

    def turn_to(self, policy: Policy, max_running: int, judge: Judge | None = None) -> None:
        """Serve under this policy from now on, at time 0; nothing may be in flight."""
        self.restart()
        self.limits = replace(self.limits, max_running=max_running)
        setup = Setup(self.forwards, judge or AsFound(), self.config.block_sizes, self.max_context)
        self.way = way_of(policy, setup, self.config.batching)
        self.prefills = Prefills(setup, self.way.masks)
        self.signal = getattr(policy, "signal", None)
        self.scheduler = Scheduler(self.limits, PagePool(self.limits.kv_pages or 0))
