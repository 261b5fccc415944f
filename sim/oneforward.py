"""Rounds of one forward each, which verifies a draft and makes the next one."""

import numpy as np

from recguide.sim.costs import CostModel
from recguide.sim.overlap import NO_DRAFT, SEEDED, AnyInts, Tables
from recguide.sim.rounds import AR, Ints
from recguide.sim.running import Running
from recguide.sim.steps import Work


class OneForward:
    """Every forward carries each running request's next need.

    That is the verifier row and the branches of those that hold a draft, and a draft row of those that do not.
    """

    def __init__(self, tables: Tables, costs: CostModel, kind: str, first_source: int = NO_DRAFT) -> None:
        self.costs, self.kind = costs, kind
        self.num_rows = len(tables.block_size)
        self.block_size = tables.block_size.astype(np.int64)
        # one source more, for requests that have room for an AR step alone
        one = np.ones(self.num_rows, np.int16)
        self.plain = tables.query_tokens.size
        self.query_tokens = np.concatenate([tables.query_tokens.ravel(), one])
        self.accept_len = np.concatenate([tables.accept_len.ravel(), one])
        self.emitted = np.concatenate([tables.emitted.ravel(), one])
        self.outcome = np.concatenate([tables.outcome.ravel(), 0 * one])
        self.next_source = np.concatenate([tables.next_source.ravel(), NO_DRAFT * one])
        place = np.arange(self.num_rows)
        drafted = place * 0 - 1 if first_source == NO_DRAFT else first_source * self.num_rows + place
        self.fresh = np.where(self.block_size == AR, place, drafted)
        """[rows] The round of a request that holds no draft; -1 where one is drafted by a forward of its own."""
        self.rows: Ints | None = None
        self.outcomes: list[int] | None = []
        self._rounds = self._sizes = place[:0]
        self._drafting = place[:0]

    def start(self, running: Running, step: int) -> Work:
        """Draft rows for those without a draft, and the round of everyone else."""
        at, held = running.at, running.held
        entry = np.where((held >= 0) & (held % self.num_rows == at), held, self.fresh.take(at))
        # lengths as recorded are in the tables already
        largest = running.largest if running.resized else None
        if largest is not None:
            entry = np.where(largest < self.block_size.take(at), self.plain + at, entry)
        drafts = entry < 0
        self._drafting = np.flatnonzero(drafts)
        self.rows = np.flatnonzero(~drafts) if len(self._drafting) else None
        self._rounds = entry if self.rows is None else entry[self.rows]
        own = self.block_size.take(self._rounds % self.num_rows)
        self._sizes = np.where(self._rounds >= self.plain, AR, own)
        return self._work(self.block_size.take(at[self._drafting]), len(at), running.context_tokens)

    def _work(self, drafts: Ints, count: int, context: int) -> Work:
        drafted, verified = int(drafts.sum()), int(self._sizes.sum())
        tokens, largest = int(look(self.query_tokens, self._rounds).sum()), int(self._sizes.max(initial=0))
        kinds = (kind_of(self.kind, bool(len(drafts)), tokens, verified, largest),)
        curve = self.costs.curve(kinds, count, drafted + tokens)
        seconds, outside = curve(context), not curve.covers(context)
        seconds += self.costs.step_host_s(self.kind, (count, drafted + tokens), (len(self._rounds), verified))
        if not tokens:
            return Work(seconds, int(drafts.max()), count, 0, context, drafted, 0, outside)
        return Work(seconds, largest, count, drafted + tokens, context, 0, 0, outside)

    def finish(self, running: Running, step: int) -> tuple[list[int], list[int]]:
        """Whoever drafted holds that draft now; everyone else emits, and may hold the draft of a branch."""
        running.held[self._drafting] = SEEDED * self.num_rows + running.at[self._drafting]
        if not len(self._rounds):
            return [], []
        entry = self._rounds
        accepted = look(self.accept_len, entry) if running.resized else None
        tokens = running.emit(look(self.emitted, entry), accepted, self._sizes, self.rows, step)
        source = look(self.next_source, entry)
        following = source * self.num_rows + entry % self.num_rows + np.array(tokens)
        running.held[slice(None) if self.rows is None else self.rows] = np.where(source == NO_DRAFT, -1, following)
        if self.outcomes is not None:
            self.outcomes += self.outcome.take(entry).tolist()
        return tokens, self._sizes.tolist()


def look(column: AnyInts, entries: Ints) -> Ints:
    """What the tables say there."""
    return column.take(entries).astype(np.int64)


def kind_of(layout: str, drafting: bool, tokens: int, verified: int, largest: int) -> str:
    """The kind of a forward: of drafts alone, of rounds with branches or beside drafts, or of plain rounds."""
    if not tokens:
        return "draft"
    if drafting or tokens > verified:
        return layout
    return "decode" if largest == AR else "verify"
