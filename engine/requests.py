"""A request of the serving engine: what it asks for, where it stands, and what policies may see of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recguide.engine.pages import HeldPages
from recguide.sim.history import CHECKED, ENTROPY, ENTROPY_BEFORE, MATCHED, NOTHING, Floats
from recguide.sim.policies import Outcomes, Tally
from recguide.sim.rounds import Ints, largest_fitting
from recguide.traces.errors import InputError

MAX_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client asks for."""

    max_new_tokens: int
    temperature: float = 0.0
    """0 is greedy."""
    seed: int = 0
    """Of the sampled output, which depends on nothing else: neither on other requests nor on how it is drafted."""
    eos_ids: tuple[int, ...] | None = None
    """Tokens that end the output; None: those of the model."""
    block_size: int | None = None
    """Of all its rounds, 1 for AR steps; None: what the engine's policy chooses."""

    def check(self, prompt: Sequence[int], vocab_size: int, max_context: int, block_sizes: Sequence[int] = ()) -> None:
        """ValueError for what cannot be served; ``block_sizes`` are those that a request may choose."""
        if self.block_size is not None and self.block_size not in block_sizes:
            allowed = ", ".join(map(str, block_sizes)) or "None: the engine's policy is no choice of block sizes"
            raise InputError(f"block_size: found {self.block_size}, allowed: {allowed}")
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens: found {self.max_new_tokens}, allowed: at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"temperature: found {self.temperature}, allowed: a finite number, 0 or more")
        if not 0 <= self.seed <= MAX_SEED:
            raise InputError(f"seed: found {self.seed}, allowed: 0 to {MAX_SEED}")
        if not 1 <= len(prompt) < max_context:
            raise InputError(
                f"prompt: {len(prompt)} tokens, allowed: 1 to {max_context - 1}, for a context of {max_context} "
                "that the output shares"
            )
        wrong = next((token for token in prompt if not 0 <= token < vocab_size), None)
        if wrong is not None:
            raise InputError(f"prompt: token {wrong}, allowed: 0 to {vocab_size - 1}")


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A draft that waits for its verification: B entries each, the first one the seed's."""

    tokens: Ints
    second: Ints
    """The second candidates; -1 where there is none."""
    second_no_eos: Ints
    margin: NDArray[np.uint8]
    p1: NDArray[np.uint8]
    source: int
    """As in ``recguide.sim.overlap``: a forward of its own, a correction branch, or a continuation branch."""
    cached: int
    """The cached tokens that it was made behind; it is worth nothing behind others."""

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True, eq=False)
class Live:
    """A request from its arrival to its end. Its seed, the last token, is emitted but not cached."""

    number: int
    """In the order of arrival."""
    prompt: list[int]
    wish: Wish
    eos_ids: frozenset[int]
    tokens_left: int
    """What the output limit and the context permit."""
    row: int = 0
    """Whose recorded acceptance it plays, where acceptance is forced."""
    tokens: list[int] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    """Of the verifier's distributions that gave the tokens, in nats."""
    pages: HeldPages = field(default_factory=HeldPages)
    admitted: bool = False
    done: int = 0
    """Tokens of the prompt, and after a preemption of the output too, that are prefilled."""
    ran: int = 0
    """Steps that were over when it last took part in one."""
    held: Held | None = None
    block_size: int = 0
    """Of the last round; 0 before the first."""
    accept_len: int = 0
    """Emitted by the last round."""
    figures: Floats = field(default_factory=lambda: np.array(NOTHING))
    """What ``recguide.sim.history`` keeps of it."""
    finish_reason: str | None = None
    """"eos", "length", "cancelled" or "error"."""
    error: str | None = None

    @property
    def known(self) -> int:
        """Tokens of prompt and output: those to be prefilled, when it is to be prefilled."""
        return len(self.prompt) + len(self.tokens)

    @property
    def cached(self) -> int:
        """Tokens in the cache while it runs: all but the seed."""
        return len(self.prompt) + len(self.tokens) - 1

    @property
    def asked(self) -> int:
        """The block size that the client asked for, 0 for none."""
        return self.wish.block_size or 0

    @property
    def limit(self) -> int:
        """Output tokens up to the limit that the client set."""
        return self.wish.max_new_tokens - len(self.tokens)

    def drafted(self) -> Held | None:
        """The draft that it holds, if that is of any use where it stands."""
        return self.held if self.held is not None and self.held.cached == self.cached else None

    def known_ids(self, first: int, count: int) -> list[int]:
        """Some of the known tokens."""
        if first + count <= len(self.prompt):
            return self.prompt[first : first + count]
        return [*self.prompt, *self.tokens][first : first + count]


CACHED, TOKENS, NUMBER, BLOCK_SIZE, ACCEPT_LEN, RAN, ASKED, SAMPLED, PAGES_ROW = range(9)
"""Rows of what is known of running requests as arrays."""


class Roster(list[Live]):
    """The running requests, and where they stand as arrays, which follow what becomes of them."""

    def __init__(self) -> None:
        super().__init__()
        self._state = _gathered(())
        self._figures: Floats | None = None

    @property
    def state(self) -> Ints:
        """[9, requests] Cached tokens, and so on."""
        known = self._state.shape[1]
        if known < len(self):
            self._state = np.concatenate([self._state, _gathered(self[known:])], 1)
        return self._state

    def leave(self, gone: Sequence[Live]) -> None:
        """These are none of the running ones any more."""
        places = [self.index(live) for live in gone]
        self._state = np.delete(self.state, places, 1)
        figures = None if self._figures is None else np.delete(self.figures, places, 1)
        for place in sorted(places, reverse=True):
            del self[place]
        if figures is not None:
            self._share(figures)

    @property
    def figures(self) -> Floats:
        """[4, requests] What ``recguide.sim.history`` keeps of each; columns are the requests' own."""
        figures = self._figures
        if figures is None or figures.shape[1] < len(self):
            figures = _figures(self)
            self._share(figures)
        return figures

    def _share(self, figures: Floats) -> None:
        self._figures = figures
        for live, column in zip(self, figures.T, strict=True):
            live.figures = column

    def moved(self, places: Ints | None, emitted: Ints, block_sizes: Ints, steps: int) -> None:
        """So many tokens came to the requests at these places (None: to all) in a round that was step ``steps``."""
        state = self.state
        if places is None and emitted.all():
            state[:2] += emitted
            state[BLOCK_SIZE], state[ACCEPT_LEN], state[RAN] = block_sizes, emitted, steps
            return
        came = emitted > 0
        at, emitted = np.flatnonzero(came) if places is None else places[came], emitted[came]
        state[:2, at] += emitted
        state[BLOCK_SIZE, at], state[ACCEPT_LEN, at], state[RAN, at] = block_sizes[came], emitted, steps

    def told_anew(self) -> None:
        """Somebody else changed what is known of the requests."""
        self._state = _gathered(self)

    def check(self) -> None:
        """RuntimeError where the arrays say anything else than the requests do."""
        if not np.array_equal(self.state, _gathered(self)):
            raise RuntimeError(f"running requests: {_gathered(self).tolist()}, found {self.state.tolist()}")


def _figures(lives: Sequence[Live]) -> Floats:
    return np.stack([live.figures for live in lives], 1)


def _gathered(lives: Sequence[Live]) -> Ints:
    columns = [_column(live) for live in lives]
    return np.array(columns, np.int64).reshape(len(lives), 9).T


def _column(live: Live) -> tuple[int, ...]:
    rounds = live.block_size, live.accept_len, live.ran, live.asked
    return live.cached, len(live.tokens), live.number, *rounds, live.wish.temperature > 0, live.pages.row


def standing(running: Sequence[Live]) -> Ints:
    """The state of running requests, as a :class:`Roster` has it."""
    return running.state if isinstance(running, Roster) else _gathered(running)


def figures_of(running: Sequence[Live]) -> Floats:
    """The figures of running requests, as a :class:`Roster` has them."""
    return running.figures if isinstance(running, Roster) else _figures(running)


def seen_of(running: Sequence[Live], tallies: dict[int, Tally] | None) -> Outcomes:
    """What policies may see, as the simulator shows it; without ``tallies`` nothing of the history."""
    state = standing(running)
    number, tokens, block_size, accept_len = state[[NUMBER, TOKENS, BLOCK_SIZE, ACCEPT_LEN]]
    seen = Outcomes(number, tokens, block_size, accept_len, int(state[CACHED].sum()))
    if tallies is not None:
        # copied, because policies may keep what they see
        figures = figures_of(running).copy()
        seen.entropy, seen.entropy_before = figures[ENTROPY], figures[ENTROPY_BEFORE]
        seen.matched, seen.checked = figures[MATCHED], figures[CHECKED]
        seen.tallies = tallies
    return seen


def room_for(running: Sequence[Live], block_sizes: Sequence[int], max_context: int) -> Ints | None:
    """The largest block size that each request has room for; None where all have room for the largest one."""
    cached = standing(running)[CACHED]
    if int(cached.max()) + block_sizes[-1] <= max_context:
        return None
    return largest_fitting(block_sizes, cached, max_context)
