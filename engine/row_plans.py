"""Plans of row attention for forwards of all sizes, and the views of a cache that it takes."""

import torch
from torch import Tensor

from recguide.engine.inputs import power_of_2
from recguide.kernels.layouts import Rows
from recguide.kernels.row_attention import DTYPES, HEAD_DIMS, row_attention
from recguide.kernels.row_plan import RowPlan, Tile, tile_for
from recguide.traces.errors import InputError


def paged(buffer: Tensor, page_size: int) -> Tensor:
    """A layer's keys or values ``[slots, heads, dim]`` as ``[pages, page_size, heads, dim]``, on the same memory."""
    pages = buffer.shape[0] // page_size
    return buffer[: pages * page_size].view(pages, page_size, *buffer.shape[1:])


class RowPlans:
    """Plans of row attention, one for each size of forward, and where results go."""

    def __init__(self, heads: tuple[int, int], head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        if head_dim not in HEAD_DIMS or dtype not in DTYPES:
            raise InputError(
                f"row attention: heads of {head_dim} and keys in {dtype}; "
                f"allowed: {HEAD_DIMS}, {', '.join(map(str, DTYPES))}"
            )
        self.heads, self.head_dim, self.dtype, self.device = heads, head_dim, dtype, device
        self._plans: dict[tuple[int, int, Tile], RowPlan] = {}
        self._parts: dict[Tile, tuple[Tensor, Tensor]] = {}
        self._out: dict[int, Tensor] = {}

    def plan(self, rows: Rows) -> RowPlan:
        """The plan of forwards with so many requests and about as many tokens.

        Results in parts are large: plans of the same tile share theirs.
        """
        requests, tokens = rows.num_requests, rows.visible.shape[0]
        tile = tile_for(-(-tokens // requests) * (self.heads[0] // self.heads[1]), self.head_dim, self.dtype)
        key = requests, power_of_2(tokens), tile
        if key not in self._plans:
            plan = RowPlan(*key[:2], self.heads, self.head_dim, self.device, tile)
            plan.partial, plan.partial_lse = self._parts.setdefault(tile, (plan.partial, plan.partial_lse))
            self._plans[key] = plan
        return self._plans[key]

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, rows: Rows, scale: float) -> Tensor:
        """Attention ``[tokens, heads * dim]``. Tokens of no request get something finite: what was there before."""
        out = self._out.get(len(q))
        if out is None:
            out = self._out[len(q)] = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        return row_attention(q, keys, values, rows, self.plan(rows), scale=scale, out=out).flatten(1)
