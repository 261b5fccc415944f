"""One simulated GPU: what waits for its prefill, what runs, and which step comes next (paper, section 5.3)."""

from collections import deque
from typing import Any

import numpy as np

from recguide.sim.arrivals import Clients
from recguide.sim.costs import PREFILL, CostModel
from recguide.sim.log import PREFILL_STEP, Log, Replay, Step
from recguide.sim.memory import Limits, Prompt, with_lookahead
from recguide.sim.prefixes import Kept
from recguide.sim.rounds import Ints
from recguide.sim.running import Running
from recguide.sim.steps import Method, Work
from recguide.sim.stream import Stream


class Server:
    """Serves what the clients send; ``start`` and ``finish`` take turns, a step between them."""

    def __init__(
        self,
        costs: CostModel,
        method: Method,
        running: Running,
        clients: Clients,
        limits: Limits,
        log: Stream | None = None,
    ) -> None:
        self.costs, self.method, self.running, self.clients, self.limits = costs, method, running, clients, limits
        self.waiting: deque[Prompt] = deque()
        """In order of service: the admitted ones first."""
        self.parts: list[tuple[Prompt, int]] = []
        """Prompts of the current prefill step, and the tokens of each that it takes."""
        self.prefilled = False
        """Whether the last step was a prefill."""
        self.preemptions = self.recomputed_tokens = 0
        self.kept = Kept() if limits.prefix_reuse else None
        self.log: Log | Stream = log or Log()
        if isinstance(self.log, Stream):
            self.log.watch(clients)

    @property
    def has_work(self) -> bool:
        """Whether there is a step to start."""
        return bool(self.running.ids or self.waiting)

    @property
    def in_flight(self) -> int:
        """Requests sent and not finished."""
        return len(self.running.ids) + len(self.waiting)

    def receive(self, now: float, free_since: float) -> None:
        """Take in what came by ``now`` and has a place; places are free since ``free_since``."""
        if self.clients.next is None:
            return
        for arrival in self.clients.due(now, self.in_flight):
            sent = self.log.send(arrival, max(arrival.arrival_s, free_since))
            self.limits.check_fits(arrival, f"request {sent}")
            column = self.running.column(arrival)
            self.waiting.append(Prompt(sent, arrival.prompt_tokens, column=column, prefix=arrival.prefix))
            if arrival.then:
                self.running.going_on[sent] = list(arrival.then[::-1])

    def start(self, now: float) -> Step:
        """The next step, and what it will take."""
        in_flight = self.in_flight
        yields = self.limits.prefill_chunk is not None and self.prefilled and bool(self.running.ids)
        self.parts = [] if yields or not self.waiting else self._take()
        work = self._prefill(now) if self.parts else self._round()
        step = Step(now, in_flight, *work)
        self.log.add_step(step)
        return step

    def finish(self, step: Step, now: float) -> None:
        """Book what the step emitted; whoever finishes makes room for a request that is sent now."""
        self.receive(now, 0.0)
        log, running = self.log, self.running
        self.prefilled = step.block_size == PREFILL_STEP
        if self.prefilled:
            self._end_prefill(now)
        else:
            tokens, sizes = self.method.finish(running, log.num_steps)
            rows, ids = self.method.rows, running.ids
            log.emit(ids if rows is None else [ids[row] for row in rows.tolist()], tokens, sizes, now)
            if self.method.outcomes and isinstance(log, Stream):
                self.method.outcomes.clear()
        finished = running.leave()
        if finished:
            for sent in finished:
                log.finish(sent, now)
                running.going_on.pop(sent, None)
            self.receive(now, now)

    def _take(self) -> list[tuple[Prompt, int]]:
        """Prompts, or parts of them, for the next prefill step: first come, first served."""
        chunk, budget = self.limits.prefill_chunk, self.limits.prefill_chunk or self.limits.max_batched_tokens
        parts: list[tuple[Prompt, int]] = []
        for prompt in self.waiting:
            if self.kept is not None and not prompt.admitted:
                prompt.done = self.kept.cached(prompt.prefix, prompt.tokens)
            tokens = prompt.tokens - prompt.done
            if parts and (budget <= 0 if chunk else tokens > budget):
                break
            if not prompt.admitted and not self._admits(prompt):
                break
            if self.kept is not None and not prompt.admitted:
                self.kept.reused_tokens += prompt.done
            prompt.admitted = True
            tokens = min(tokens, budget) if chunk else tokens
            parts.append((prompt, tokens))
            budget -= tokens
        return parts

    def _admits(self, prompt: Prompt) -> bool:
        admitted = sum(other.admitted for other in self.waiting)
        if self.limits.max_running is not None and admitted + len(self.running.ids) >= self.limits.max_running:
            return False
        if self.limits.kv_pages is None:
            return True
        # the prefill's own token needs its slot at once
        needed = self.limits.pages(prompt.tokens + 1)
        alone = not self.running.ids and not admitted
        return alone or self._set_aside() + self._held() + needed <= self.limits.kv_pages

    def _set_aside(self) -> int:
        """Pages of admitted prompts."""
        return sum(self.limits.pages(prompt.tokens) for prompt in self.waiting if prompt.admitted)

    def _held(self) -> int:
        """Pages of running requests between steps."""
        return self.limits.pages_of(self.running.cached_each)

    def _prefill(self, now: float) -> Work:
        tokens = sum(part for _, part in self.parts)
        context = sum(prompt.done for prompt, _ in self.parts)
        for prompt, _ in self.parts:
            self.log.start(prompt.sent, now)
        if self.limits.kv_pages is not None:
            self.log.add_pages(self._set_aside() + self._held())
        curve = self.costs.curve(PREFILL, len(self.parts), tokens)
        outside = not curve.covers(context)
        return Work(curve(context), PREFILL_STEP, len(self.parts), tokens, context, 0, 0, outside)

    def _end_prefill(self, now: float) -> None:
        ended: list[Prompt] = []
        for prompt, tokens in self.parts:
            prompt.done += tokens
            if prompt.done == prompt.tokens:
                ended.append(prompt)
                self.waiting.popleft()
                if self.kept is not None:
                    self.kept.keep(prompt.prefix, prompt.tokens)
        ids = [prompt.sent for prompt in ended]
        self.log.emit(ids, [1] * len(ids), [PREFILL_STEP] * len(ids), now)
        if ids:
            self.running.join(ids, [column for prompt in ended if (column := prompt.column) is not None], self._now)

    @property
    def _now(self) -> int:
        return self.log.num_steps

    def _round(self) -> Work:
        work = self.method.start(self.running, self._now)
        if self.limits.kv_pages is None:
            return work
        while True:
            tokens = with_lookahead(self.running.cached_each, self.method.rows, work.block_size)
            pages = self._set_aside() + self.limits.pages_of(tokens)
            if pages <= self.limits.kv_pages:
                self.log.add_pages(pages)
                return work
            self._preempt()
            work = self.method.start(self.running, self._now)

    def _preempt(self) -> None:
        """The youngest request that holds pages loses them, and is prefilled anew with all that it has emitted."""
        self.preemptions += 1
        admitted = [prompt for prompt in self.waiting if prompt.admitted]
        if admitted:
            prompt = admitted[-1]
            self.recomputed_tokens += prompt.done
            prompt.admitted, prompt.done = False, 0
            return
        place = int(np.argmax(self.running.ids))
        sent, column = self.running.evict(place)
        tokens = column.state[1] + column.state[5]
        self.recomputed_tokens += tokens
        self.waiting.appendleft(Prompt(sent, tokens, column=column))

    def replay(self, closed: bool) -> Replay:
        """What happened."""
        if isinstance(self.log, Stream):
            raise TypeError("a stream keeps no replay")
        known: dict[str, Any] = self.log.arrays()
        limit = self.clients.limit
        return Replay(
            **known,
            concurrency=None if limit == np.inf else int(limit),
            closed=closed,
            emission_outcome=self._outcomes(known["emission_block_size"]),
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed_tokens,
            reused_tokens=self.reused_tokens,
            seams=self.running.seams,
            cut_rounds=self.running.cut_rounds if self.running.resized else None,
        )

    @property
    def reused_tokens(self) -> int | None:
        """Prompt tokens that were there already; None where nothing is reused."""
        return None if self.kept is None else self.kept.reused_tokens

    def _outcomes(self, block_sizes: Ints) -> Ints | None:
        """The method's, with zeros where prefills emitted."""
        if self.method.outcomes is None:
            return None
        all_of = np.zeros(len(block_sizes), np.int64)
        all_of[block_sizes != PREFILL_STEP] = self.method.outcomes
        return all_of
