"""Requests with paged keys and values for tests of row attention: whatever must not be read is NaN."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from recguide.kernels.layouts import Rows, Tail, batch, tail_slots
from recguide.kernels.row_attention import row_attention, row_attention_reference
from recguide.kernels.row_plan import RowPlan, Tile

SMALL = Tile(16, 32, 4, 2, 1)
CPU = torch.device("cpu")
# largest error of an output that averages a few to a few thousand values of a normal distribution
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass
class Case:
    """What one launch is given; ``groups`` query heads share each key head."""

    tails: list[Tail]
    prefixes: list[int]
    kv_heads: int = 1
    group: int = 4
    dim: int = 64
    page: int = 16
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    seed: int = 0
    q: Tensor = field(init=False)
    keys: Tensor = field(init=False)
    values: Tensor = field(init=False)
    rows: Rows = field(init=False)

    def __post_init__(self) -> None:
        self.random = torch.Generator(self.device).manual_seed(self.seed)
        self.rows = batch(self.tails, self.prefixes, self._page_table())
        tokens = self.rows.visible.shape[0]
        self.q = self._normal(tokens, self.kv_heads * self.group, self.dim)
        shape = (self.num_pages, self.page, self.kv_heads, self.dim)
        self.keys, self.values = (torch.full(shape, torch.nan, dtype=self.dtype, device=self.device) for _ in range(2))
        for request, length in enumerate(self.lengths):
            for cache in (self.keys, self.values):
                page, slot = self.places(request, length)
                cache[page, slot] = self._normal(length, self.kv_heads, self.dim)

    @property
    def lengths(self) -> list[int]:
        """Keys of each request."""
        return [prefix + len(tail) for prefix, tail in zip(self.prefixes, self.tails, strict=True)]

    def places(self, request: int, length: int) -> tuple[Tensor, Tensor]:
        """Page and slot of the first ``length`` keys of a request."""
        place = torch.arange(length, device=self.device)
        return self.rows.page_table[request, place // self.page].long(), place % self.page

    def plan(self, tile: Tile = SMALL, chunk: int = 0) -> RowPlan:
        """A plan for this case whose buffers hold rubbish, updated."""
        heads = (self.kv_heads * self.group, self.kv_heads)
        longest = self.rows.page_table.shape[1] * self.page
        made = RowPlan(len(self.tails), len(self.q), heads, self.dim, self.device, tile, chunk=chunk, longest=longest)
        poison(made)
        made.update(self.rows)
        return made

    def attend(self, tile: Tile = SMALL, chunk: int = 0) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of the kernel, written over NaN."""
        out, lse = torch.full_like(self.q, torch.nan), self.q.new_full(self.q.shape[:2], torch.nan, dtype=torch.float32)
        row_attention(self.q, self.keys, self.values, self.rows, self.plan(tile, chunk), out=out, lse=lse)
        return out, lse

    def reference(self) -> tuple[Tensor, Tensor]:
        """The same in float64, by masks."""
        return row_attention_reference(self.q, self.keys, self.values, self.rows)

    def _page_table(self) -> Tensor:
        """Shuffled pages, none shared; page 0 is nobody's, and pads the table."""
        needed = [-(-length // self.page) for length in self.lengths]
        self.num_pages = sum(needed) + 2
        pages = 1 + torch.randperm(self.num_pages - 1, generator=self.random, device=self.device)
        table = torch.zeros(len(needed), max(needed) + 1, dtype=torch.int32, device=self.device)
        for row, part in zip(table, pages.split([*needed, self.num_pages - 1 - sum(needed)]), strict=False):
            row[: len(part)] = part
        return table

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random, device=self.device).to(self.dtype)


def poison(plan: RowPlan) -> None:
    """Fill what a plan has to write before it is read."""
    plan.plan.fill_(0x7F7F7F7F)
    plan.items.fill_(0x7F7F7F7F)
    plan.partial.fill_(torch.nan)
    plan.partial_lse.fill_(torch.nan)


def assert_right(case: Case, out: Tensor, lse: Tensor) -> None:
    """Close to the reference everywhere; a token that sees nothing has exactly 0 and minus infinity."""
    expected, expected_lse = case.reference()
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[case.dtype], rtol=TOLERANCE[case.dtype] / 2)
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)


def one_hot_values(case: Case) -> Case:
    """The case with queries and keys of zero, and values that name their place: outputs are means of what is seen."""
    case.q.zero_()
    for request, length in enumerate(case.lengths):
        page, slot = case.places(request, length)
        case.keys[page, slot] = 0
        eye = torch.eye(case.dim, dtype=case.dtype, device=case.device)[:length]
        case.values[page, slot] = eye[:, None].expand(-1, case.kv_heads, -1)
    return case


def only(case: Case, request: int) -> Case:
    """One request of a case as a case of its own, on the same pages."""
    first, end = case.rows.indptr[request : request + 2].tolist()
    alone = replace(case, tails=[case.tails[request]], prefixes=[case.prefixes[request]])
    alone.rows = batch(alone.tails, alone.prefixes, case.rows.page_table[request : request + 1])
    alone.q, alone.keys, alone.values = case.q[first:end].clone(), case.keys, case.values
    return alone


__all__ = ["Case", "assert_right", "one_hot_values", "only", "poison", "tail_slots"]
