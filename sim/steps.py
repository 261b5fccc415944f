"""The next step of the running requests: whom it takes along, at which shapes, for how long, and what it emits."""

from typing import NamedTuple, Protocol

import numpy as np

from recguide.sim.batching import Batching
from recguide.sim.costs import ROUND, CostModel
from recguide.sim.policies import BlockPolicy, Tally
from recguide.sim.rounds import AR, Ints, Rounds
from recguide.sim.running import Running
from recguide.sim.sharing import Allocation
from recguide.traces.errors import InputError


class Work(NamedTuple):
    """One batched step of running requests."""

    seconds: float
    block_size: int
    """The largest of its requests: 1 is an AR step, one decode forward."""
    requests: int
    query_tokens: int
    """Of the last forward: the verify, the decode, or the one forward that does it all."""
    context_tokens: int
    """Cached before the step, summed over its requests."""
    draft_tokens: int = 0
    """Query tokens of the draft forward that comes first; 0 where none does."""
    padding: int = 0
    """Query tokens of both that fill short blocks up."""
    outside: bool = False
    """Whether its cost lies outside what was profiled."""


class Method(Protocol):
    """A way to take running requests one step further."""

    @property
    def rows(self) -> Ints | None:
        """Places of those that emit at the end of the step; None when all of the running ones do."""

    @property
    def outcomes(self) -> list[int] | None:
        """What became of each emission so far, as ``recguide.sim.overlap`` codes it; None where that is of no use."""

    def start(self, running: Running, step: int) -> Work:
        """Plan step number ``step``."""

    def finish(self, running: Running, step: int) -> tuple[list[int], list[int]]:
        """End it: the tokens, and the block sizes, of the requests that emit."""


def choose_blocks(
    wanted: int | Ints, largest: Ints | None, waited: Ints, batching: Batching, last: int
) -> tuple[int | Ints, Ints | None]:
    """Who takes part in a step at which block sizes, out of what a policy wants; the engine uses it too.

    ``largest`` is what each request has room for (None: anything), ``waited`` the steps since it ran, and ``last`` the
    last block size that ran alone. Gives one block size or that of each, and their places, None for everyone's.
    """
    if largest is not None:
        wanted = np.minimum(wanted, largest)
    if not isinstance(wanted, np.ndarray):
        return int(wanted), None
    if wanted.shape != waited.shape:
        raise InputError(f"policy: found block sizes of shape {wanted.shape}, allowed: one, or shape {waited.shape}")
    if (wanted == wanted[0]).all():
        return int(wanted[0]), None
    rows = batching.take(wanted, waited, last)
    taken = wanted[rows]
    places = rows if len(rows) < len(wanted) else None
    return int(taken[0]) if (taken == taken[0]).all() else taken, places


def count_rounds(tallies: dict[int, Tally], sizes: int | Ints, tokens: list[int], share_s: float) -> None:
    """Book rounds with these block sizes that emitted these tokens, ``share_s`` seconds each."""
    for size, emitted in _by_size(sizes, tokens).items():
        tally = tallies.setdefault(size, Tally())
        tally.rounds, tally.tokens = tally.rounds + len(emitted), tally.tokens + sum(emitted)
        tally.seconds += len(emitted) * share_s


def _by_size(sizes: int | Ints, tokens: list[int]) -> dict[int, list[int]]:
    """What the requests of each block size emitted."""
    if isinstance(sizes, int):
        return {sizes: tokens}
    own: dict[int, list[int]] = {}
    for size, many in zip(sizes.tolist(), tokens, strict=True):
        own.setdefault(size, []).append(many)
    return own


def planner_of(policy: BlockPolicy) -> str:
    """Whose rounds those of a policy are like, as the host's time of a profile has them; "" where it looks at nothing.

    "allocation" for one of unequal blocks in one step, "adaptive" for any other that looks back.
    """
    if isinstance(policy, Allocation):
        return "allocation"
    return "adaptive" if getattr(policy, "signal", None) is not None else ""


class Linear:
    """Drafts, then verifies, each request at the block size that a policy chose (paper, section 3.1)."""

    def __init__(self, rounds: Rounds, costs: CostModel, policy: BlockPolicy, batching: Batching) -> None:
        self.rounds, self.costs, self.policy, self.batching = rounds, costs, policy, batching
        self.planner = planner_of(policy)
        self.host = costs.host_of(self.planner)
        self.rows: Ints | None = None
        self.outcomes: list[int] | None = None
        self._last = 0
        self._sizes: int | Ints = 0
        self._share_s = 0.0
        """Seconds of the step for each of its requests."""

    def start(self, running: Running, step: int) -> Work:
        """Ask the policy, and take along whom the batching chooses."""
        work = self._start(running, step)
        self._share_s = work.seconds / work.requests
        return work

    def _start(self, running: Running, step: int) -> Work:
        self._sizes = sizes = self._plan(running, step)
        count, context = len(running.ids), running.context_tokens
        if self.rows is not None:
            count, context = len(self.rows), running.cached(self.rows)
        if not isinstance(sizes, int):
            return self._mixed(running, sizes, context)
        self._last = sizes
        if sizes not in self.rounds.emitted:
            self.rounds.check(sizes)
        curve = self.costs.round_curve(sizes, count, self.host)
        tokens = count * sizes
        drafted = tokens if sizes > AR else 0
        return Work(curve(context), sizes, count, tokens, context, drafted, 0, not curve.low <= context <= curve.high)

    def finish(self, running: Running, step: int) -> tuple[list[int], list[int]]:
        """Let the requests of the step play their round."""
        tokens = running.advance(self._sizes, self.rows, step)
        sizes = [self._sizes] * len(tokens) if isinstance(self._sizes, int) else self._sizes.tolist()
        if running.history is not None:
            count_rounds(running.tallies, self._sizes, tokens, self._share_s)
        return tokens, sizes

    def _plan(self, running: Running, step: int) -> int | Ints:
        """The block size of the next round, or one for each of its requests; their places go to ``rows``."""
        wanted = self.policy(running.look())
        sizes, self.rows = choose_blocks(wanted, running.largest, step - running.ran, self.batching, self._last)
        return sizes

    def _mixed(self, running: Running, sizes: Ints, context: int) -> Work:
        """A step whose blocks have several sizes."""
        for size in set(sizes.tolist()) - self.rounds.emitted.keys():
            self.rounds.check(size)
        if self.batching.padded:
            return self._padded(sizes, context)
        return self._ragged(running, sizes, context)

    def _padded(self, sizes: Ints, context: int) -> Work:
        count, largest = len(sizes), int(sizes.max())
        curve = self.costs.round_curve(largest, count, self.host)
        paid = count * largest
        padding = 2 * (paid - int(sizes.sum()))
        return Work(curve(context), largest, count, paid, context, paid, padding, not curve.covers(context))

    def _ragged(self, running: Running, sizes: Ints, context: int) -> Work:
        """Query tokens are summed: an AR step of a request is one token of the verify, and none of the draft."""
        count, tokens = len(sizes), int(sizes.sum())
        drafting = np.flatnonzero(sizes > AR)
        drafted, draft_context = int(sizes[drafting].sum()), context
        if len(drafting) < count:
            rows = drafting if self.rows is None else self.rows[drafting]
            draft_context = running.cached(rows)
        draft = self.costs.curve(ROUND[:1], len(drafting), drafted)
        verify = self.costs.curve((*ROUND[1:-1], self.host), count, tokens)
        outside = not (draft.covers(draft_context) and verify.covers(context))
        seconds = draft(draft_context) + verify(context)
        return Work(seconds, int(sizes.max()), count, tokens, context, drafted, 0, outside)
