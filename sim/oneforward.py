"""Rounds of one forward each, which verifies a draft and makes the next one."""

import numpy as np

from recguide.sim.costs import CostModel
from recguide.sim.overlap import NO_DRAFT, SEEDED, Tables
from recguide.sim.rounds import AR, Ints
from recguide.sim.running import Running
from recguide.sim.steps import Work


class OneForward:
    """Every forward carries each running request's next need.

    That is the verifier row and the branches of those that hold a draft, and a draft row of those that do not.
    """

    def __init__(self, tables: Tables, costs: CostModel, kind: str, first_source: int = NO_DRAFT) -> None:
        self.costs, self.kind = costs, kind
        self.first_source = first_source
        """Where the draft comes from of a request that holds none; ``NO_DRAFT``: of a forward of its own."""
        self.num_rows = len(tables.block_size)
        self.block_size: list[int] = tables.block_size.tolist()
        # one source more, for requests that have room for an AR step alone
        one = np.ones(self.num_rows, np.int64)
        self.plain = tables.query_tokens.size
        self.query_tokens: list[int] = [*tables.query_tokens.ravel().tolist(), *one.tolist()]
        self.accept_len = np.concatenate([tables.accept_len.ravel(), one])
        self.emitted = np.concatenate([tables.emitted.ravel(), one])
        self.outcome: list[int] = [*tables.outcome.ravel().tolist(), *(0 * one).tolist()]
        self.next_source: list[int] = [*tables.next_source.ravel().tolist(), *(NO_DRAFT * one).tolist()]
        self.rows: Ints | None = None
        self.outcomes: list[int] | None = []
        self._held: dict[int, int] = {}
        """By sent request: where in the flat tables its draft's round is."""
        self._drafting: list[tuple[int, int]] = []
        self._rounds: list[int] = []
        self._sizes: list[int] = []

    def start(self, running: Running, step: int) -> Work:
        """Draft rows for those without a draft, and the round of everyone else."""
        self._drafting, self._rounds, places = [], [], []
        at_all: list[int] = running.at.tolist()
        # lengths as recorded are in the tables already
        largest = running.largest if running.resized else None
        for place, (sent, at) in enumerate(zip(running.ids, at_all, strict=True)):
            short = largest is not None and largest[place] < self.block_size[at]
            entry = self.plain + at if short else self._entry(sent, at)
            if entry is None:
                self._drafting.append((sent, SEEDED * self.num_rows + at))
            else:
                self._rounds.append(entry)
                places.append(place)
        self.rows = None if not self._drafting else np.array(places, np.int64)
        self._sizes = [AR if entry >= self.plain else self.block_size[entry % self.num_rows] for entry in self._rounds]
        return self._work(len(at_all), running.context_tokens)

    def _entry(self, sent: int, at: int) -> int | None:
        entry = self._held.get(sent)
        if entry is not None and entry % self.num_rows == at:
            return entry
        if self.block_size[at] == AR:
            return at
        return None if self.first_source == NO_DRAFT else self.first_source * self.num_rows + at

    def _work(self, count: int, context: int) -> Work:
        drafted = sum(self.block_size[entry % self.num_rows] for _, entry in self._drafting)
        tokens = sum(map(self.query_tokens.__getitem__, self._rounds))
        verified = sum(self._sizes)
        largest = max(self._sizes, default=0)
        if not self._rounds:
            kinds: tuple[str, ...] = ("draft",)
        elif self._drafting or tokens > verified:
            kinds = (self.kind,)
        else:
            kinds = ("decode" if largest == AR else "verify",)
        curve = self.costs.curve(kinds, count, drafted + tokens)
        seconds, outside = curve(context), not curve.covers(context)
        if not self._rounds:
            return Work(seconds, max(map(self._block, self._drafting)), count, 0, context, drafted, 0, outside)
        seconds += self.costs.host_s(len(self._rounds), verified)
        return Work(seconds, largest, count, drafted + tokens, context, 0, 0, outside)

    def _block(self, drafting: tuple[int, int]) -> int:
        return self.block_size[drafting[1] % self.num_rows]

    def finish(self, running: Running, step: int) -> tuple[list[int], list[int]]:
        """Whoever drafted holds that draft now; everyone else emits, and may hold the draft of a branch."""
        self._held.update(self._drafting)
        if not self._rounds:
            return [], []
        ids = running.ids if self.rows is None else [running.ids[row] for row in self.rows.tolist()]
        entries = np.array(self._rounds)
        accepted = self.accept_len.take(entries) if running.resized else None
        emitted = running.emit(self.emitted.take(entries), accepted, np.array(self._sizes), self.rows, step)
        for sent, entry, tokens in zip(ids, self._rounds, emitted, strict=True):
            source = self.next_source[entry]
            self._held.pop(sent, None)
            if source != NO_DRAFT:
                self._held[sent] = source * self.num_rows + entry % self.num_rows + tokens
        if self.outcomes is not None:
            self.outcomes += map(self.outcome.__getitem__, self._rounds)
        return emitted, self._sizes
