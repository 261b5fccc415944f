"""The load of a run: which requests come when, each playing a recorded one (docs/simulate.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import numpy as np

from recguide.sim.arrivals import Arrival, Clients, as_recorded, random_times
from recguide.sim.memory import Limits
from recguide.sim.prefixes import Prefix, prefixes_of
from recguide.sim.rounds import Rounds
from recguide.sim.workloads import HASHED_TOKENS, Counts, Row, Workload
from recguide.traces.dense import DenseTrace
from recguide.traces.errors import InputError


@dataclass(slots=True)
class Drawn(Counts):
    """What became of the rows of a file when recorded requests were drawn for them."""

    stitched: int = 0
    """Requests longer than the recorded one, which go on with others of its dataset."""
    stitched_tokens: int = 0
    """Output tokens of theirs behind the first recorded request."""
    shortened: int = 0
    """Requests whose output the context limit ends early."""


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals, the same for every policy: what is drawn depends on the seed and the rows alone."""

    order: Sequence[int]
    """Recorded requests to send, where no file says which lengths to draw."""
    rate: float | None = None
    """Requests per second; None: the times of the workload, or without one all at once."""
    burstiness: float | None = 1.0
    """Shape of Gamma distributed gaps; None: constant ones."""
    workload: Workload | None = None
    num_prompts: int | None = None
    """Rows of the workload to serve, skipped ones not counted; None: all."""
    seed: int = 0
    stitch: bool = True
    """Whether an output longer than any recorded one may be put together from several."""

    @property
    def closed(self) -> bool:
        """Whether finishing requests alone decide when others are sent."""
        return self.rate is None and (self.workload is None or not self.workload.timed)

    @property
    def resized(self) -> bool:
        """Whether requests have other lengths than the recorded ones."""
        return self.workload is not None

    def clients(self, rounds: Rounds, groups: "Groups", limit: int | None) -> Clients:
        """Everyone who sends requests, at most ``limit`` in flight."""
        return Clients(self.arrivals(rounds, groups, Drawn()), limit)

    def arrivals(self, rounds: Rounds, groups: "Groups", drawn: Drawn) -> Iterator[Arrival]:
        """The requests in order of arrival, read and drawn as they are asked for; ``drawn`` is added to."""
        times = None if self.rate is None else random_times(self.rate, self.burstiness, self.seed + 1)
        if self.workload is None:
            return as_recorded(rounds, self.order, times, groups.prefixes)
        found = islice(_Draws(rounds, groups, self, drawn).arrivals(self.workload.rows(drawn)), self.num_prompts)
        if times is None:
            return found
        return (each._replace(arrival_s=time) for each, time in zip(found, times, strict=False))

    def check(self, rounds: Rounds, groups: "Groups", limits: Limits) -> Drawn:
        """Read all of it once, so that a row at fault, or one that never fits, is found before anything runs."""
        drawn = Drawn()
        count = 0
        for count, arrival in enumerate(self.arrivals(rounds, groups, drawn), 1):
            limits.check_fits(arrival, f"request {count - 1}")
        if count == 0:
            where = self.workload.path if self.workload else "load"
            reason = f"; the first skipped: {drawn.first_skipped}" if drawn.skipped else ""
            raise InputError(f"{where}: no request to serve ({drawn.failed} failed, {drawn.skipped} skipped){reason}")
        drawn.rows = count
        return drawn


@dataclass(frozen=True, slots=True)
class Groups:
    """Recorded requests by dataset and by category."""

    dataset: Sequence[str]
    """[requests]"""
    category: Sequence[str]
    prefixes: Sequence[Prefix] = ()
    """[requests] What prompts begin with, where that is of use."""
    members: dict[tuple[str | None, str | None], list[int]] = field(default_factory=dict)

    def rows(self, dataset: str | None, category: str | None) -> list[int]:
        """The requests of a dataset and category, or of any; ValueError lists what there is."""
        key = (dataset, category)
        if key not in self.members:
            pairs = list(zip(self.dataset, self.category, strict=True))
            found = [i for i, (d, c) in enumerate(pairs) if dataset in (None, d) and category in (None, c)]
            if not found:
                known = ", ".join(sorted({f"{d}/{c}" for d, c in pairs}))
                raise InputError(f"dataset/category: found {dataset or '*'}/{category or '*'}, allowed: {known}")
            self.members[key] = found
        return self.members[key]


def groups_of(trace: DenseTrace, page_size: int | None = None) -> Groups:
    """The groups of a trace, with the prefixes of its prompts in pages of this size."""
    requests = trace.requests
    prefixes = prefixes_of(trace, page_size) if page_size is not None else ()
    return Groups([request.dataset for request in requests], [request.category for request in requests], prefixes)


class _Draws:
    """Recorded requests for the rows of a file."""

    def __init__(self, rounds: Rounds, groups: Groups, load: Load, drawn: Drawn) -> None:
        self.rounds, self.groups, self.load, self.drawn = rounds, groups, load, drawn
        self.outputs: list[int] = rounds.output_tokens.tolist()
        self.rng = np.random.default_rng(load.seed)

    def arrivals(self, rows: Iterator[Row]) -> Iterator[Arrival]:
        for row in rows:
            try:
                yield self._arrival(row)
            except InputError as error:
                if self.load.workload is None:
                    raise
                self.load.workload.skip(InputError(f"{row.where}: {error}"), self.drawn)

    def _arrival(self, row: Row) -> Arrival:
        room = self.rounds.max_context - row.input_tokens + 1
        if room < 2:
            raise InputError(f"input tokens: found {row.input_tokens}, allowed: under {self.rounds.max_context}")
        output = min(row.output_tokens, room)
        self.drawn.shortened += output < row.output_tokens
        candidates = self.groups.rows(row.dataset, row.category)
        first = candidates[int(self.rng.integers(len(candidates)))]
        then = self._then(first, output - self.outputs[first])
        prefix = Prefix(row.hash_ids, HASHED_TOKENS) if row.hash_ids else None
        return Arrival(row.arrival_s, first, row.input_tokens, output, then, prefix)

    def _then(self, first: int, missing: int) -> tuple[int, ...]:
        """Requests of the same dataset that give the tokens that are missing, in a random order."""
        if missing <= 0:
            return ()
        if not self.load.stitch:
            raise InputError(
                f"output tokens: {missing} more than the recorded request drawn for it; without --no-stitch it "
                "goes on with another one"
            )
        others = [row for row in self.groups.rows(self.groups.dataset[first], None) if row != first] or [first]
        self.drawn.stitched += 1
        self.drawn.stitched_tokens += missing
        rows: list[int] = []
        for row in cycle(self.rng.permutation(others).tolist()):
            rows.append(row)
            missing -= self.outputs[row]
            if missing <= 0:
                break
        return tuple(rows)
