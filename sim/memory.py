"""KV pages: who fits into the GPU's cache, and who has to give way (recompute, as in vLLM's scheduler)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recguide.sim.arrivals import Arrival
from recguide.sim.prefixes import Prefix
from recguide.sim.rounds import Ints
from recguide.traces.errors import InputError

MAX_BATCHED_TOKENS = 2048
"""Prompt tokens of one prefill step; a longer prompt has a step of its own."""
PAGE_SIZE = 16
"""Tokens of a page."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server takes on at a time."""

    max_batched_tokens: int = MAX_BATCHED_TOKENS
    prefill_chunk: int | None = None
    """Prompt tokens of one prefill step, which then takes parts of prompts and alternates with rounds."""
    max_running: int | None = None
    """Requests that have been admitted and are not finished."""
    page_size: int = PAGE_SIZE
    kv_pages: int | None = None
    """None: more than any load needs."""
    prefix_reuse: bool = False
    """Whether prompts skip what earlier ones began with; for caches without a limit."""

    def check(self) -> None:
        """ValueError for what no server has."""
        for name in ("max_batched_tokens", "prefill_chunk", "max_running", "page_size", "kv_pages"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}: found {value}, allowed: whole numbers of at least 1")
        if self.prefix_reuse and self.kv_pages is not None:
            raise InputError("prefix-reuse: found beside a limit of KV pages, allowed: one of them")

    @property
    def none(self) -> bool:
        """Whether one request alone never meets a limit."""
        return self.prefill_chunk is None and self.kv_pages is None and not self.prefix_reuse

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that fit into all pages of one request."""
        return None if self.kv_pages is None else self.kv_pages * self.page_size

    def pages(self, tokens: int) -> int:
        """Pages for this many tokens of one request."""
        return -(-tokens // self.page_size)

    def pages_of(self, tokens: Ints) -> int:
        """Pages for requests that hold these many tokens each."""
        return int((-(-tokens // self.page_size)).sum())

    def check_fits(self, arrival: Arrival, name: str) -> None:
        """ValueError for a request that fits into the cache at no time, however small its blocks."""
        # the last step feeds the token before the last one
        most = arrival.prompt_tokens + arrival.output_tokens - 1
        if self.kv_pages is not None and self.pages(most) > self.kv_pages:
            raise InputError(
                f"{name}: {arrival.prompt_tokens} prompt and {arrival.output_tokens} output tokens need "
                f"{self.pages(most)} KV pages of {self.page_size} tokens, but there are {self.kv_pages}"
            )


class Column(NamedTuple):
    """Where one request stands."""

    state: tuple[int, ...]
    figures: tuple[float, ...]
    """What verification told of it, as ``History`` has it."""


@dataclass(slots=True)
class Prompt:
    """A request that waits for its prefill, or for its recomputation after it lost its pages."""

    sent: int
    tokens: int
    """To be prefilled: the prompt, and after a preemption what it had emitted too."""
    done: int = 0
    """Of these, prefilled already."""
    admitted: bool = False
    """Whether pages for all of its tokens are set aside."""
    column: Column | None = None
    """Where it stood when it was preempted."""
    prefix: Prefix | None = None
    """What it begins with, where that may be there already."""


def with_lookahead(cached: Ints, rows: Ints | None, block_size: int) -> Ints:
    """Tokens for which requests need pages in a step: those of it have slots for every token of their block."""
    needed = np.array(cached)
    needed[slice(None) if rows is None else rows] += block_size
    return needed
