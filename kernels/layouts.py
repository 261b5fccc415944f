"""Which tokens of a forward see each other, for every layout of row attention (paper, equation 1 and section 5.3).

A request brings a *tail* of query tokens behind its cached prefix. All of them see the whole prefix. Of the tail, each
sees one interval that begins at its first token, the *trunk*, and one more, its own *row*: `[0, trunk)` and
`[start, start + length)`. That is enough for every layout here, and fits into one int32 a token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

MAX_TAIL = 4095
"""Tail tokens of a request, and with it the largest trunk and start: they have 12 bits each."""
MAX_ROW = 255
"""Tokens of a row that see each other: the length has 8 bits."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The query tokens of one request: what each sees of the tail, and its position counted from the prefix's end.

    Positions are those of rotary embeddings; keys lie in the order of the tail, whatever the positions.
    """

    trunks: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    positions: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.trunks)

    def __add__(self, other: "Tail") -> "Tail":
        return Tail(
            self.trunks + other.trunks,
            self.starts + other.starts,
            self.lengths + other.lengths,
            self.positions + other.positions,
        )

    def mask(self) -> Tensor:
        """Bool `[tokens, tokens]`: which token (row) sees which (column)."""
        trunk, start, length = (torch.tensor(x)[:, None] for x in (self.trunks, self.starts, self.lengths))
        key = torch.arange(len(self))
        return (key < trunk) | ((key >= start) & (key < start + length))


def causal(num_tokens: int) -> Tail:
    """A verifier row, one-token decoding (1), or a piece of a prompt: each token sees those before it and itself."""
    tokens = range(num_tokens)
    return Tail(tuple(i + 1 for i in tokens), (0,) * num_tokens, (0,) * num_tokens, tuple(tokens))


def branch(start: int, leaves: int, num_tokens: int) -> Tail:
    """A row at ``start`` of the tail whose tokens see each other, and the first ``leaves`` tokens of the tail."""
    seen = ((leaves,) * num_tokens, (start,) * num_tokens, (num_tokens,) * num_tokens)
    return Tail(*seen, tuple(leaves + i for i in range(num_tokens)))


def copied_branch(start: int, leaves: int, num_tokens: int) -> Tail:
    """The same with a causal copy of those ``leaves`` tokens in the row itself: it sees nothing before ``start``."""
    total = leaves + num_tokens
    lengths = (*range(1, leaves + 1), *(total,) * num_tokens)
    return Tail((0,) * total, (start,) * total, lengths, tuple(range(total)))


def draft(block_size: int) -> Tail:
    """A plain draft: the seed and its masks see each other."""
    return branch(0, 0, block_size)


def rows(
    block_size: int,
    leaves: Sequence[int],
    make: Callable[[int, int, int], Tail] = branch,
    branch_size: int | None = None,
) -> Tail:
    """A verifier row, and behind it a branch for each place in ``leaves`` (section 5.1).

    Branches are of ``branch_size`` tokens; None: as many as the row has.

    Below ``block_size`` that is a correction, whose first token replaces the one at that place; at ``block_size`` it is
    the continuation, all masks. ``make`` is :func:`branch`, or :func:`copied_branch` where nothing is to be shared.
    ValueError for other places.
    """
    tail = causal(block_size)
    for place in leaves:
        if not 0 < place <= block_size:
            raise ValueError(f"branch at {place}: allowed: 1 to {block_size}")
        tail += make(len(tail), place, branch_size or block_size)
    return tail


def quadratic(block_size: int) -> Tail:
    """TiDAR's layout: a verifier row, and a draft behind each number of its tokens that may be accepted."""
    tail = causal(block_size)
    for accepted in range(1, block_size + 1):
        tail += branch(len(tail), accepted, block_size)
    return tail


def packed(tail: Tail) -> list[int]:
    """What each token sees of the tail as an int32; ValueError where it has no room.

    Bits 0-11 hold the trunk, 12-23 the start and 24-31 the length of its own row.
    """
    if len(tail) > MAX_TAIL:
        raise ValueError(f"a tail of {len(tail)} tokens: allowed: up to {MAX_TAIL}; take a longer prompt in pieces")
    if max(tail.lengths, default=0) > MAX_ROW:
        raise ValueError(f"a row of {max(tail.lengths)} tokens: allowed: up to {MAX_ROW}")
    words = (t | s << 12 | n << 24 for t, s, n in zip(tail.trunks, tail.starts, tail.lengths, strict=True))
    return [word - (1 << 32) if word >> 31 else word for word in words]


@dataclass(frozen=True, slots=True)
class Rows:
    """One forward's requests, on the device: int32 throughout, read anew by every launch.

    Request r brings the tokens ``indptr[r]`` to ``indptr[r + 1]``. Its keys and values are ``prefix_lens[r]`` cached
    tokens and then its tail, through ``page_table[r]``: the tail must have been written before. A request may bring
    nothing, and tables may be padded with anything that is a page.
    """

    indptr: Tensor  # [requests + 1]
    prefix_lens: Tensor  # [requests]
    page_table: Tensor  # [requests, pages]
    visible: Tensor  # [tokens]

    @property
    def num_requests(self) -> int:
        """Requests, those that bring nothing included."""
        return self.prefix_lens.shape[0]


def batch(tails: Sequence[Tail], prefix_lens: Sequence[int], page_table: Tensor) -> Rows:
    """The rows of requests with these tails, on the page table's device."""
    if not len(tails) == len(prefix_lens) == len(page_table):
        raise ValueError(
            f"{len(tails)} tails, {len(prefix_lens)} prefixes, {len(page_table)} page tables: must be equal"
        )
    device = page_table.device

    def ints(numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    ends = [0, *accumulate(len(tail) for tail in tails)]
    visible = [word for tail in tails for word in packed(tail)]
    return Rows(ints(ends), ints(prefix_lens), page_table.int(), ints(visible))


def tail_slots(rows: Rows, page_size: int) -> Tensor:
    """Int64 `[tokens]`: where each tail token's key and value go, as page * page_size + place in the page."""
    device = rows.visible.device
    token = torch.arange(rows.visible.shape[0], device=device)
    request = torch.bucketize(token, rows.indptr[1:].long(), right=True)
    place = rows.prefix_lens[request].long() + token - rows.indptr[request].long()
    return rows.page_table[request, place // page_size].long() * page_size + place % page_size
