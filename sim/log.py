"""The log of a replay: what the simulated server did, as flat arrays."""

from array import array
from dataclasses import dataclass
from itertools import chain
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recguide.sim.arrivals import Arrival
from recguide.sim.rounds import Ints

PREFILL_STEP = 0
"""Stands where a step has its block size."""


class Step(NamedTuple):
    """One batched step of the GPU."""

    start_s: float
    in_flight: int
    """Requests sent and not finished when it started."""
    seconds: float
    block_size: int
    """``PREFILL_STEP``, or 1: one decode forward, or B: drafts and verifies, of at most this size."""
    requests: int
    query_tokens: int
    """Of its last forward."""
    context_tokens: int
    """Cached before the step, summed over its requests."""
    draft_tokens: int
    """Query tokens of the draft forward that comes first; 0 where none does."""
    padding: int
    """Query tokens of both that fill short blocks up."""
    outside: bool
    """Whether its cost lies outside what was profiled."""


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What happened, as flat arrays: one entry a sent request, a step, or an emission (a request in a step)."""

    concurrency: int | None
    """Most requests that were allowed in flight; None where all are sent as they come."""
    closed: bool
    """Whether all requests were there at the start."""
    request: Ints
    """[sent] Its row in the trace."""
    prompt_tokens: Ints
    output_tokens: Ints
    arrival_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    """Later than its arrival where a client had to wait for a place."""
    started_s: NDArray[np.float64]
    """The start of its first prefill step."""
    first_token_s: NDArray[np.float64]
    finished_s: NDArray[np.float64]
    steps: dict[str, NDArray[Any]]
    """[steps] By the field names of ``Step``."""
    emission_request: Ints
    """[emissions] The sent request that emitted; emissions are in order of time, those of a step together."""
    emission_tokens: Ints
    emission_step: Ints
    emission_block_size: Ints
    """Of the round; ``PREFILL_STEP`` for a prefill's token."""
    emission_outcome: Ints | None
    """What became of the round's branches, as ``recguide.sim.overlap`` codes it; None where a run has none."""
    kv_pages: Ints | None
    """[steps] KV pages that hold tokens, or are set aside for them, during a step; None without a limit."""
    preemptions: int
    recomputed_tokens: int
    """Prefilled a second time, after a preemption."""
    seams: int
    """Times that a request went on with another recorded one."""
    cut_rounds: int | None
    """Rounds that emitted less than they accepted; None where requests end as recorded and it can be counted later."""
    reused_tokens: int | None = None
    """Prompt tokens that earlier prompts had cached; None where no prefix is reused."""


class Log:
    """A replay while it happens."""

    def __init__(self) -> None:
        self.rows, self.prompt_tokens, self.output_tokens = (array("q") for _ in range(3))
        self.arrival_s, self.sent_s, self.started_s, self.first_token_s, self.finished_s = (
            array("d") for _ in range(5)
        )
        self.steps: list[Step] = []
        self.kv_pages: list[int] = []
        self.emission_request: list[int] = []
        self.emission_tokens: list[int] = []
        self.emission_block_size: list[int] = []
        self.emissions: list[int] = []
        """How many of them each step has."""

    def send(self, arrival: Arrival, now: float) -> int:
        """A request is sent; gives its number."""
        self.rows.append(arrival.row)
        self.prompt_tokens.append(arrival.prompt_tokens)
        self.output_tokens.append(arrival.output_tokens)
        self.arrival_s.append(arrival.arrival_s)
        self.sent_s.append(now)
        for unknown in (self.started_s, self.first_token_s, self.finished_s):
            unknown.append(np.nan)
        return len(self.rows) - 1

    @property
    def num_steps(self) -> int:
        """Steps so far, the current one included."""
        return len(self.steps)

    def add_step(self, step: Step) -> None:
        """A step starts."""
        self.steps.append(step)

    def add_pages(self, pages: int) -> None:
        """So many KV pages are in use during the current step."""
        self.kv_pages.append(pages)

    def start(self, sent: int, now: float) -> None:
        """A step takes up a request's prefill, or a part of it."""
        if isnan(self.started_s[sent]):
            self.started_s[sent] = now

    def finish(self, sent: int, now: float) -> None:
        """A request has its last token."""
        self.finished_s[sent] = now

    def emit(self, requests: list[int], tokens: list[int], block_sizes: list[int], now: float) -> None:
        """The current step ended, and these requests emitted."""
        for sent, block_size in zip(requests, block_sizes, strict=True):
            if block_size != PREFILL_STEP:
                break
            if isnan(self.first_token_s[sent]):
                self.first_token_s[sent] = now
        self.emission_request += requests
        self.emission_tokens += tokens
        self.emission_block_size += block_sizes
        self.emissions.append(len(tokens))

    def arrays(self) -> dict[str, Any]:
        """All of it by the field names of ``Replay``, as far as the log knows it."""
        # every count of a step is far below 2^53, so a table of floats holds it exactly
        table = np.fromiter(chain.from_iterable(self.steps), np.float64).reshape(-1, len(Step._fields))
        steps = {name: table[:, i].astype(Step.__annotations__[name]) for i, name in enumerate(Step._fields)}
        times = ("arrival_s", "sent_s", "started_s", "first_token_s", "finished_s")
        return {
            "request": np.array(self.rows),
            "prompt_tokens": np.array(self.prompt_tokens),
            "output_tokens": np.array(self.output_tokens),
            **{name: np.array(getattr(self, name)) for name in times},
            "steps": steps,
            "emission_request": np.array(self.emission_request, np.int64),
            "emission_tokens": np.array(self.emission_tokens, np.int64),
            "emission_step": np.repeat(np.arange(len(self.steps)), self.emissions),
            "emission_block_size": np.array(self.emission_block_size, np.int64),
            "kv_pages": np.array(self.kv_pages) if self.kv_pages else None,
        }
