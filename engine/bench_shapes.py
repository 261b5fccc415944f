"""Attention launches to be measured: a model's heads, requests, prefixes, and a layout of rows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.kernels.layouts import Rows, Tail, batch, causal, draft, quadratic, rows

# query heads, key heads, dimension
HEADS = {"nld-8b": (32, 8, 128), "smollm2-135m": (9, 3, 64)}
BRANCHES = (4, 10, 16)
"""Two corrections and the continuation of a block of 16."""
LAYOUTS: dict[str, Callable[[], Tail]] = {
    "decode": lambda: causal(1),
    "draft-16": lambda: draft(16),
    "verify-8": lambda: causal(8),
    "verify-16": lambda: causal(16),
    "verify-32": lambda: causal(32),
    "rows-16": lambda: rows(16, BRANCHES),
    "quadratic-16": lambda: quadratic(16),
}
PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """One launch: every request brings ``layout`` behind ``prefix`` cached tokens."""

    model: str
    requests: int
    prefix: int
    layout: str

    @property
    def tail(self) -> Tail:
        """What each request brings."""
        return LAYOUTS[self.layout]()

    @property
    def num_bytes(self) -> int:
        """Bytes of 2-byte numbers that a launch must move: keys and values once, queries, outputs."""
        heads, kv_heads, dim = HEADS[self.model]
        tokens = len(self.tail)
        return 4 * self.requests * dim * ((self.prefix + tokens) * kv_heads + tokens * heads)

    @property
    def flop(self) -> int:
        """Operations for the keys that each token sees."""
        heads, _, dim = HEADS[self.model]
        return 4 * heads * dim * self.requests * (len(self.tail) * self.prefix + int(self.tail.mask().sum()))


@dataclass(frozen=True, slots=True)
class Inputs:
    """Tensors of one launch; pages lie in random order, some behind them are nobody's."""

    shape: Shape
    q: Tensor  # [tokens, heads, dim]
    keys: Tensor  # [pages, page, kv_heads, dim]
    values: Tensor
    rows: Rows

    @property
    def num_tokens(self) -> int:
        """Tokens of each request."""
        return len(self.shape.tail)

    def dense(self, cache: Tensor) -> Tensor:
        """Keys or values as ``[requests, kv_heads, prefix + tokens, dim]``."""
        paged = cache[self.rows.page_table.long()].flatten(1, 2)
        return paged[:, : self.shape.prefix + self.num_tokens].transpose(1, 2).contiguous()

    def mask(self) -> Tensor:
        """Bool ``[tokens, prefix + tokens]``, the same for every request."""
        seen = self.shape.tail.mask().to(self.q.device)
        return torch.cat([seen.new_ones(self.num_tokens, self.shape.prefix), seen], 1)


def inputs(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int, spare_pages: int = 0) -> Inputs:
    """Fresh random tensors for a shape."""
    torch.manual_seed(seed)
    heads, kv_heads, dim = HEADS[shape.model]
    pages = -(-(shape.prefix + len(shape.tail)) // PAGE_SIZE)
    table = torch.randperm(shape.requests * pages, device=device).int().view(shape.requests, pages)
    size = (shape.requests * pages + spare_pages, PAGE_SIZE, kv_heads, dim)
    keys, values = (torch.empty(size, dtype=dtype, device=device).normal_() for _ in range(2))
    q = torch.empty(shape.requests * len(shape.tail), heads, dim, dtype=dtype, device=device).normal_()
    return Inputs(shape, q, keys, values, batch([shape.tail] * shape.requests, [shape.prefix] * shape.requests, table))


def some_requests(given: Inputs, count: int) -> Inputs:
    """The last ``count`` requests of a launch on their own: enough to check a large one by."""
    tokens = given.num_tokens
    first = given.shape.requests - min(count, given.shape.requests)
    ends = (given.rows.indptr[first:] - first * tokens).contiguous()
    part = Rows(
        ends, given.rows.prefix_lens[first:], given.rows.page_table[first:], given.rows.visible[first * tokens :]
    )
    return Inputs(given.shape, given.q[first * tokens :], given.keys, given.values, part)
