"""Who is prefilled, who runs, and who has to give way for KV pages: the rules of `sim/server.py` over real pages."""

from collections import deque
from collections.abc import Callable, Sequence

from recguide.engine.pages import PagePool
from recguide.engine.requests import CACHED, PAGES_ROW, Live, Roster
from recguide.engine.ways import Planned
from recguide.sim.memory import Limits
from recguide.sim.rounds import Ints

Part = tuple[Live, int]
"""A waiting request, and how many of its tokens a prefill step takes."""


class Scheduler:
    """Requests from their arrival to their end, and the pages that they hold."""

    def __init__(self, limits: Limits, pool: PagePool) -> None:
        self.limits, self.pool = limits, pool
        self.waiting: deque[Live] = deque()
        """In order of service: the admitted ones first."""
        self.running = Roster()
        self.prefilled = False
        """Whether the last step was a prefill."""
        self.preemptions = self.recomputed_tokens = 0

    @property
    def in_flight(self) -> int:
        """Requests that are not finished."""
        return len(self.waiting) + len(self.running)

    def take(self) -> list[Part]:
        """Prompts, or parts of them, for a prefill step, first come, first served; admits whoever is new among them.

        Nothing where a round has to come first: with chunked prefill they alternate.
        """
        limits = self.limits
        if not self.waiting or (limits.prefill_chunk is not None and self.prefilled and self.running):
            return []
        self._trim()
        budget = limits.prefill_chunk or limits.max_batched_tokens
        parts: list[Part] = []
        for live in self.waiting:
            tokens = live.known - live.done
            if parts and (budget <= 0 if limits.prefill_chunk else tokens > budget):
                break
            if not live.admitted and not self._admit(live):
                break
            tokens = min(tokens, budget) if limits.prefill_chunk else tokens
            parts.append((live, tokens))
            budget -= tokens
        return parts

    def _admit(self, live: Live) -> bool:
        """Set pages aside for all that is known of a request, if it may come in."""
        limits, admitted = self.limits, sum(other.admitted for other in self.waiting)
        if limits.max_running is not None and admitted + len(self.running) >= limits.max_running:
            return False
        # the prefill's own token needs its slot at once
        alone = not self.running and not admitted
        if not alone and limits.pages(live.known + 1) > self.pool.num_free:
            return False
        self.pool.resize(live.pages, limits.pages(live.known))
        live.admitted = True
        return True

    def prefill_ended(self, parts: Sequence[Part], steps: int) -> None:
        """Parts are cached, and whoever is cached as a whole runs; what it emits comes after that."""
        self.prefilled = True
        for live, tokens in parts:
            live.done += tokens
            if live.done == live.known:
                self.waiting.remove(live)
                live.admitted, live.ran = False, steps
                self.running.append(live)

    def find_pages(self, plan: Callable[[], Planned]) -> Planned:
        """The plan of the next round, with pages for the block of everyone in it; preempts until there are enough."""
        while True:
            planned = plan()
            state, rows = self.running.state, planned.rows
            if rows is not None:
                self._trim()
            tokens, row = (state[CACHED], state[PAGES_ROW]) if rows is None else state[[CACHED, PAGES_ROW]][:, rows]
            if self.pool.resize_rows(row, self._pages(tokens + planned.work.block_size)):
                return planned
            self._preempt()

    def _pages(self, tokens: Ints) -> Ints:
        return -(-tokens // self.limits.page_size)

    def _preempt(self) -> None:
        """The youngest request that holds pages loses them, and is prefilled anew with all that it has emitted."""
        self.preemptions += 1
        admitted = [live for live in self.waiting if live.admitted]
        if admitted:
            victim = admitted[-1]
            self.recomputed_tokens += victim.done
        else:
            victim = max(self.running, key=lambda live: live.number)
            self.running.leave([victim])
            self.recomputed_tokens += victim.known
            self.waiting.appendleft(victim)
        self.release(victim)

    def release(self, live: Live) -> None:
        """A request holds nothing any more."""
        self.pool.resize(live.pages, 0)
        live.admitted, live.done, live.held = False, 0, None

    def settle(self) -> list[Live]:
        """Let the finished requests go."""
        gone = [live for live in self.running if live.finish_reason is not None]
        if gone:
            self.running.leave(gone)
        for live in gone:
            self.release(live)
        return gone

    def _trim(self) -> None:
        """Give back what rejected tokens took, where others may want it before a round of everyone takes it again."""
        if self.running:
            state = self.running.state
            self.pool.resize_rows(state[PAGES_ROW], self._pages(state[CACHED]))

    def drop(self, live: Live) -> None:
        """Let a request go wherever it is."""
        if live in self.running:
            self.running.leave([live])
        else:
            self.waiting.remove(live)
        self.release(live)

    def check(self) -> None:
        """RuntimeError unless every page is free or held by one request, and each holds what it must between steps."""
        self._trim()
        self.pool.check(live.pages for live in (*self.waiting, *self.running))
        self.running.check()
        for live in self.running:
            if len(live.pages) != self.limits.pages(live.cached):
                raise RuntimeError(f"request {live.number}: {len(live.pages)} pages for {live.cached} cached tokens")
        for live in self.waiting:
            if len(live.pages) != (self.limits.pages(live.known) if live.admitted else 0):
                raise RuntimeError(f"request {live.number}: {len(live.pages)} pages while it waits")
