"""Where steps are measured: requests that are alike, and the grid of them that a profile has."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from recguide.engine.certain_policies import mixture, one_size
from recguide.sim.methods import Policy
from recguide.sim.overlap import Overlap
from recguide.sim.policies import Fixed
from recguide.sim.rounds import AR
from recguide.sim.tidar import Tidar

LAYOUTS = "rows", "quadratic", "adaptive", "allocation"
"""What is measured beside rounds of one block size for all; of the last two, which choose by certainty, the host."""
LAYOUT_BLOCK = 16
"""The block size at which layouts of several rows are measured."""
MOST_ROWS = 4
"""A verifier's row and three branches."""
ROW_TOKENS = 16, 32, 48, 64, 128
"""At block size 16 one row to four, and four at 32; the first is for drafts that are made alone."""
PROMPTS = 1, 4, 12
"""That share a prefill."""
QUADRATIC_TOKENS = LAYOUT_BLOCK * (LAYOUT_BLOCK + 1)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Requests that are alike: how they are served, how many they are, and the tokens that each has cached.

    ``size`` is the block size of linear rounds, 1 for AR steps, the query tokens of a request under "rows" and
    "quadratic", the mean of two block sizes under "allocation", and the tokens of all prompts under "prefill".
    """

    method: str
    requests: int
    size: int
    context: int
    waiting: int = 0
    """Requests that run too, but not in the timed steps: they are of another bucket."""

    @property
    def policy(self) -> Policy:
        """One whose steps are those to be timed."""
        if self.method == "rows":
            # hardly a position is sure, so there are as many branches as there may be
            rows = self.size // self.block_size
            return Overlap(self.block_size, 255 / 256, max(rows - 2, 0), "always" if rows > 1 else "never")
        if self.method == "adaptive":
            return one_size(self.size)
        if self.method == "allocation":
            return mixture(self.block_size // 2)
        return Tidar(LAYOUT_BLOCK) if self.method == "quadratic" else Fixed(self.size)

    @property
    def block_size(self) -> int:
        """Of a round; the larger one of two, and of rows the smallest at which so many tokens are a verifier's row and
        three branches at most."""
        if self.method == "allocation":
            return self.size * 4 // 3
        if self.method != "rows":
            return LAYOUT_BLOCK if self.method == "quadratic" else self.size
        return LAYOUT_BLOCK if self.size <= MOST_ROWS * LAYOUT_BLOCK else self.size // MOST_ROWS


@dataclass(frozen=True, slots=True)
class Grid:
    """What to measure. Layouts for low load (rows, quadratic) are measured up to ``layout_requests`` requests.

    Policies that choose by certainty (adaptive, allocation) are at one context, for the host's time depends on none,
    and at every second number of requests, the largest among them: each brings forwards that no other place has.
    """

    requests: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    contexts: tuple[int, ...] = (64, 512, 2048)
    block_sizes: tuple[int, ...] = (4, 8, 16, 32)
    prefill_tokens: tuple[int, ...] = (16, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
    layout_requests: int = 8
    layouts: tuple[str, ...] = LAYOUTS

    def places(self) -> Iterator[Place]:
        """Everywhere to measure."""
        for requests in self.requests:
            for context in self.contexts:
                for size in (AR, *self.block_sizes):
                    yield Place("linear", requests, size, context)
                if requests <= self.layout_requests:
                    yield from self._layouts(requests, context)
            if requests in self.requests[::-2]:
                yield from self._by_certainty(requests, self.contexts[len(self.contexts) // 2])
        for tokens in self.prefill_tokens:
            for prompts in PROMPTS:
                if prompts <= min(tokens, max(self.requests)):
                    yield Place("prefill", prompts, tokens, 0)

    def _layouts(self, requests: int, context: int) -> Iterator[Place]:
        if "rows" in self.layouts:
            for tokens in ROW_TOKENS:
                yield Place("rows", requests, tokens, context)
        if "quadratic" in self.layouts:
            yield Place("quadratic", requests, QUADRATIC_TOKENS, context)

    def _by_certainty(self, requests: int, context: int) -> Iterator[Place]:
        if "adaptive" in self.layouts:
            waiting = min(requests // 2, max(self.requests) - requests)
            for size in self.block_sizes:
                yield Place("adaptive", requests, size, context, waiting)
        if "allocation" in self.layouts and requests > 1:
            for small, large in pairwise(self.block_sizes):
                if large == 2 * small and small % 2 == 0:
                    yield Place("allocation", requests, 3 * small // 2, context)
