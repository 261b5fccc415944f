"""A few launches of row attention, for compute-sanitizer: ragged rows, split and whole, in parts that are merged."""

import torch

from recguide.kernels.layouts import batch, causal, draft, rows
from recguide.kernels.row_attention import row_attention
from recguide.kernels.row_plan import RowPlan, Tile

DEVICE = torch.device("cuda")
TAILS, PREFIXES = [rows(8, [2, 5, 8]), causal(0), causal(1), draft(8)], [300, 7, 64, 130]


def main() -> None:
    """Prints the sum of the outputs of each tile."""
    table = torch.arange(4 * 24, dtype=torch.int32, device=DEVICE).view(4, 24)
    keys, values = (torch.randn(96, 16, 2, 128, device=DEVICE).bfloat16() for _ in range(2))
    made = batch(TAILS, PREFIXES, table)
    q = torch.randn(made.visible.shape[0], 8, 128, device=DEVICE).bfloat16()
    for tile in (Tile(16, 64, 4, 3, 2), Tile(64, 32, 4, 4, 2), Tile(128, 64, 8, 3, 1)):
        for chunk in (0, 64, 512):
            plan = RowPlan(4, len(q), (8, 2), 128, DEVICE, tile, chunk=chunk, longest=384)
            plan.update(made)
            print(tile, chunk, float(row_attention(q, keys, values, made, plan).float().sum()))


if __name__ == "__main__":
    main()
