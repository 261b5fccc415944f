"""The serving engine: continuous batching of real forwards under the policies of the simulator (paper, section 5.3).

`step` takes everyone one step further; between steps requests come and go. One step is a prefill, or one round of the
running requests in the way that the policy asks for.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from recguide.engine.forwards import CAPTURE_AFTER, Forwards
from recguide.engine.linear import LinearWay
from recguide.engine.model import Decoder
from recguide.engine.outcomes import Change, apply, tell_roster
from recguide.engine.pages import PagedCache, PagePool, pages_that_fit
from recguide.engine.prefilling import Prefills
from recguide.engine.requests import Live, Wish
from recguide.engine.runlog import RunLog, Spent, prefill_work
from recguide.engine.scheduler import Part, Scheduler
from recguide.engine.selfcheck import check_adapter
from recguide.engine.sizes import PLAIN, FillSizes, fill_sizes, layer_weights
from recguide.engine.wayof import scratch_tokens, way_of
from recguide.engine.ways import AsFound, Judge, Setup
from recguide.sim.batching import BUCKETED, Batching
from recguide.sim.history import Signal
from recguide.sim.log import Replay, Step
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy
from recguide.sim.rounds import AR
from recguide.sim.steps import Work
from recguide.traces.errors import InputError

MAX_RUNNING = 128
MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine takes on."""

    block_sizes: tuple[int, ...] = (4, 8, 16, 32)
    """That rounds may have, ascending: also those below a policy's, for the end of the context."""
    limits: Limits = field(default_factory=lambda: Limits(max_running=MAX_RUNNING))
    """The simulator's. Without ``kv_pages`` there are as many as no load can use up, or as there is memory for."""
    max_context: int | None = None
    """Tokens of prompt and output together; None: the model's."""
    batching: Batching = BUCKETED
    keep_log: bool = True
    """Whether every step is kept, for replays and figures; otherwise there are totals alone."""
    enforce_eager: bool = False
    """Whether to do without CUDA graphs."""
    rounded: bool | None = None
    """Whether forwards are filled up to one of few shapes; None: on a GPU."""
    sizes: FillSizes | None = None
    """What sizes these have; None: timed on a GPU, eighths of powers of 2 elsewhere."""

    def check(self) -> None:
        """ValueError for what no engine has."""
        self.limits.check()
        if self.limits.max_running is None:
            raise InputError("max_running: found none, allowed: a number, which memory is set aside for")
        if not self.block_sizes or list(self.block_sizes) != sorted({b for b in self.block_sizes if 2 <= b <= 32}):
            raise InputError(f"block_sizes: found {self.block_sizes}, allowed: ascending, 2 to 32")


class Engine:
    """Serves requests with one model and one policy; for one thread at a time.

    ``judge`` says what is drafted and verified where acceptance is forced, and ``clock`` gives seconds.
    """

    def __init__(
        self,
        decoder: Decoder,
        policy: Policy,
        config: EngineConfig | None = None,
        judge: Judge | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        config = config or EngineConfig()
        config.check()
        self.decoder, self.config, self.clock = decoder, config, clock
        self.adapter = check_adapter(decoder, config.limits.page_size)
        sizes = _sizes(decoder, config)
        self.limits, self.max_context = _memory(decoder, config)
        scratch = scratch_tokens(policy, config.block_sizes)
        pages, places = self.limits.kv_pages or 0, self.limits.max_running or 0
        where = decoder.device, decoder.dtype
        cache = PagedCache(decoder.config, pages, self.limits.page_size, places, scratch, *where)
        most_pages = self.limits.pages(self.max_context) + cache.scratch.shape[1]
        self.forwards = Forwards(decoder, cache, not config.enforce_eager, config.rounded, most_pages, sizes)
        setup = Setup(self.forwards, judge or AsFound(), config.block_sizes, self.max_context)
        self.way = way_of(policy, setup, config.batching)
        self.prefills = Prefills(setup, self.way.masks)
        self.signal: Signal | None = getattr(policy, "signal", None)
        self.scheduler = Scheduler(self.limits, PagePool(pages))
        self._log = RunLog(config.keep_log)
        self._keeping = threading.Lock()
        self._unkept: tuple[Step, Spent, int | None, list[Change]] | None = None
        """The last step, until there is time to keep it."""
        self.steps = 0
        """So far."""
        self._started = clock()

    @property
    def log(self) -> RunLog:
        """What was done so far."""
        self._keep()
        return self._log

    @property
    def now(self) -> float:
        """Seconds since the engine started."""
        return self.clock() - self._started

    @property
    def in_flight(self) -> int:
        """Requests that are not finished."""
        return self.scheduler.in_flight

    @property
    def block_choices(self) -> tuple[int, ...]:
        """Block sizes that a request may ask for: none where the policy is more than a choice of them."""
        return (AR, *self.config.block_sizes) if isinstance(self.way, LinearWay) else ()

    def check_request(self, prompt: Sequence[int], wish: Wish) -> None:
        """ValueError for a request that cannot be served."""
        wish.check(prompt, self.decoder.config.vocab_size, self.max_context, self.block_choices)

    def add(self, prompt: Sequence[int], wish: Wish, row: int = 0, arrival_s: float | None = None) -> Live:
        """Take in a request; ValueError where it cannot be served. ``row`` is its row in a trace that is played."""
        self.check_request(prompt, wish)
        config = self.decoder.config
        left = min(wish.max_new_tokens, self.max_context - len(prompt))
        eos_ids = frozenset(config.eos_ids if wish.eos_ids is None else wish.eos_ids)
        now = self.now
        number = self.log.send(row, len(prompt), now if arrival_s is None else arrival_s, now)
        live = Live(number, list(prompt), wish, eos_ids, left, row)
        self.scheduler.waiting.append(live)
        return live

    def cancel(self, live: Live) -> bool:
        """End a request where it stands; False where it was finished already."""
        if live.finish_reason is not None:
            return False
        self.scheduler.drop(live)
        live.finish_reason = "cancelled"
        self.log.finish(live, self.now)
        return True

    def step(self) -> list[Change]:
        """Take everyone a step further, and say what changed; RuntimeError where nobody is there."""
        started, in_flight = self.now, self.in_flight
        if not in_flight:
            raise RuntimeError("no request is in flight")
        parts = self.scheduler.take()
        if parts:
            self.log.start([live for live, _ in parts], started)
            pages = self._pages_in_use()
            changes, work, draft_s = self._prefill(parts, started)
        else:
            changes, work, draft_s, pages = self._round(started)
        device = (draft_s, *self.forwards.spent())
        self._keep()
        self._unkept = Step(started, in_flight, *work), device, pages, changes
        self.steps += 1
        for live in self.scheduler.settle():
            self.log.finish(live, started + work.seconds)
        return changes

    def _prefill(self, parts: Sequence[Part], started: float) -> tuple[list[Change], Work, float]:
        work = prefill_work(sum(count for _, count in parts), len(parts), sum(live.done for live, _ in parts))
        changes = self.prefills.run(parts)
        self.scheduler.prefill_ended(parts, self.steps + 1)
        apply(changes, None)
        return changes, work._replace(seconds=self.now - started), 0.0

    def _round(self, started: float) -> tuple[list[Change], Work, float, int | None]:
        step, running = self.steps, self.scheduler.running
        planned = self.scheduler.find_pages(lambda: self.way.plan(running, step))
        pages = self._pages_in_use()
        end = self.way.begin(planned)
        # while the device is at it
        self._keep()
        changes = end()
        apply(changes, None, step + 1)
        places = None if len(changes) == len(running) else planned.rows
        if self.signal is not None:
            tell_roster(running, places, changes, self.signal)
        emitted = np.array([len(change.tokens) for change in changes])
        sizes = np.array([change.block_size for change in changes])
        running.moved(places, emitted, sizes, step + 1)
        self.scheduler.prefilled = False
        seconds = self.now - started
        self.way.told(planned, changes, seconds)
        draft_s = self.way.draft_seconds(planned, seconds)
        return changes, planned.work._replace(seconds=seconds), draft_s, pages

    def _keep(self) -> None:
        """Keep the last step, in whichever thread somebody asks first."""
        with self._keeping:
            if self._unkept is not None:
                self._log.step(*self._unkept)
                self._unkept = None

    def _pages_in_use(self) -> int | None:
        pool = self.scheduler.pool
        return None if self.config.limits.kv_pages is None else pool.num_pages - pool.num_free

    def drain(self) -> None:
        """Step until every request is finished."""
        while self.in_flight:
            self.step()

    def prepare(self, counts: Iterable[int]) -> int:
        """Run a round of every kind for so many requests each, so that the graphs are there; gives how many ran.

        Nothing is served by it, and nothing is in the log. Without it a graph is made when its shape comes back.
        """
        count, self.forwards.capture_after = 0, 1
        nobody = Live(0, [0, 0], Wish(MANY), frozenset(), MANY, tokens=[0])
        for requests in counts:
            for planned in self.way.rehearse([nobody] * requests):
                self.way.run(planned)
                self.forwards.spent()
                count += 1
        self.forwards.capture_after = CAPTURE_AFTER
        return count

    def restart(self) -> None:
        """Forget what was served, and start the clock anew; nothing may be in flight."""
        if self.in_flight:
            raise RuntimeError(f"{self.in_flight} requests are in flight")
        self._unkept = None
        self._log, self.steps = RunLog(self.config.keep_log), 0
        self._started = self.clock()

    def check(self) -> None:
        """RuntimeError where a page is lost, or held twice; between steps."""
        self.scheduler.check()

    def replay(self, concurrency: int | None = None, *, closed: bool = False) -> Replay:
        """The run so far as the simulator would tell it, with the times that were measured."""
        scheduler = self.scheduler
        return self.log.replay(scheduler.preemptions, scheduler.recomputed_tokens, concurrency, closed=closed)


def _sizes(decoder: Decoder, config: EngineConfig) -> FillSizes:
    """The sizes that forwards are filled up to."""
    if config.sizes is not None:
        return config.sizes
    timed = decoder.device.type == "cuda" and config.rounded is not False
    return fill_sizes(layer_weights(decoder), decoder.head) if timed else PLAIN


def _memory(decoder: Decoder, config: EngineConfig) -> tuple[Limits, int]:
    """The limits with a number of pages, and the tokens that a request may have."""
    context = min(config.max_context or decoder.config.max_context, decoder.config.max_context)
    limits = config.limits
    if limits.kv_pages is None:
        each = limits.pages(context + config.block_sizes[-1])
        fitting = pages_that_fit(decoder.config, limits.page_size, decoder.device, decoder.dtype)
        limits = replace(limits, kv_pages=max(1, min(each * (limits.max_running or 0), fitting)))
    assert limits.kv_tokens is not None
    return limits, min(context, limits.kv_tokens)
