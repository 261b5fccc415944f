import itertools

import pytest
import torch
from row_cases import Case, assert_right, one_hot_values, only

from recguide.kernels.layouts import Tail, branch, causal, copied_branch, draft, quadratic, rows
from recguide.kernels.row_plan import FIXED_TILE, Tile, tile_for

WIDE = Tile(64, 64, 4, 3, 2)
EMPTY = causal(0)
ROWS = (causal(4), rows(4, [2]), rows(4, [1, 3, 4]), draft(4), EMPTY)


SETTINGS = list(itertools.product([3, 4], [1, 16], [(64, Tile(16, 32, 4, 2, 1)), (64, WIDE), (512, WIDE)]))


@pytest.mark.parametrize("shift", range(len(SETTINGS)))
def test_every_row_kind_behind_every_prefix_is_as_the_reference(shift, device):
    group, page, (chunk, tile) = SETTINGS[shift]
    prefixes = (0, 1, 15, 16, 17, 63, 64, 65) if chunk == 64 else (511, 512, 513)
    # over all settings every kind meets every prefix
    pairs = [(ROWS[(i + shift) % 5], prefix) for i, prefix in enumerate(prefixes)]
    case = Case([tail for tail, _ in pairs], [p for _, p in pairs], group=group, page=page, device=device)
    assert_right(case, *case.attend(tile, chunk))


@pytest.mark.parametrize(("dtype", "dim"), [(torch.float16, 64), (torch.bfloat16, 128)])
def test_half_precision_is_as_the_reference_within_its_rounding(dtype, dim, device):
    tails = [rows(4, [2, 3, 4]), EMPTY, causal(1), draft(8)]
    case = Case(tails, [50, 10, 33, 31], kv_heads=2, dim=dim, dtype=dtype, device=device)
    for packed_rows in (16, 128):
        tile = tile_for(packed_rows, dim, dtype)
        out, lse = case.attend(tile)
        assert_right(case, out, lse)
        assert (out.double() - case.reference()[0]).abs().mean() < 1e-3


@pytest.mark.parametrize(
    "tail",
    [
        causal(9),
        draft(6),
        rows(5, [1, 3, 5]),
        rows(5, [2, 4, 5], copied_branch),
        quadratic(3),
        branch(0, 0, 3) + branch(3, 0, 4),
    ],
    ids=["verify", "draft", "rows", "copied rows", "quadratic", "two rows that see nothing of each other"],
)
@pytest.mark.parametrize("prefix", [0, 21])
def test_every_token_sees_what_its_layout_says_and_nothing_else(tail: Tail, prefix, device):
    case = one_hot_values(Case([tail], [prefix], device=device))
    out, _ = case.attend(chunk=32)
    seen = torch.ones(len(tail), case.dim, dtype=torch.bool)
    seen[:, prefix : prefix + len(tail)] = tail.mask()
    seen[:, prefix + len(tail) :] = False
    weights = seen / seen.sum(1, keepdim=True)
    torch.testing.assert_close(out.cpu(), weights[:, None].expand_as(out).float(), atol=1e-6, rtol=1e-6)


def test_a_prompt_in_two_pieces_is_as_in_one(device):
    whole = Case([causal(70)], [0], device=device)
    piece = Case([causal(30)], [40], device=device)
    piece.rows.page_table.copy_(whole.rows.page_table[:, : piece.rows.page_table.shape[1]])
    piece.q, piece.keys, piece.values = whole.q[40:], whole.keys, whole.values
    torch.testing.assert_close(piece.attend()[0], whole.attend()[0][40:], atol=2e-6, rtol=1e-6)


def test_branches_that_share_the_trunk_are_as_those_with_a_copy_of_it(device):
    shared, copied = (Case([rows(4, [2, 4], make)], [40], device=device) for make in (branch, copied_branch))
    # slots of the copies: verifier row, then two trunk tokens and a branch, then four and a branch
    source = torch.tensor([*range(4), 0, 1, *range(4, 8), 0, 1, 2, 3, *range(8, 12)], device=device)
    page, slot = shared.places(0, 52)
    own_page, own_slot = copied.places(0, 40 + len(source))
    places = torch.cat([torch.arange(40, device=device), 40 + source])
    for name in ("keys", "values"):
        getattr(copied, name)[own_page, own_slot] = getattr(shared, name)[page[places], slot[places]]
    copied.q = shared.q[source]
    own = torch.tensor([0, 1, 2, 3, 6, 7, 8, 9, 14, 15, 16, 17], device=device)
    torch.testing.assert_close(copied.attend()[0][own], shared.attend()[0], atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_with_a_fixed_chunk_a_result_does_not_depend_on_the_batch(dtype, device):
    tails = [causal(5), rows(4, [2, 3, 4]), causal(1), EMPTY, draft(4), causal(9)]
    case = Case(tails, [70, 64, 63, 7, 1, 100], group=2, dtype=dtype, device=device)
    together = case.attend(FIXED_TILE, 64)
    for request in (0, 1, 2, 4, 5):
        alone = only(case, request).attend(FIXED_TILE, 64)
        first, end = case.rows.indptr[request : request + 2].tolist()
        assert all(torch.equal(x, y[first:end]) for x, y in zip(alone, together, strict=True))


def test_with_a_fixed_chunk_a_causal_token_does_not_depend_on_those_behind_it(device):
    many = Case([causal(17)], [100], group=2, device=device)
    out, lse = many.attend(FIXED_TILE, 64)
    for count in (1, 9):
        few = Case([causal(count)], [100], group=2, device=device)
        few.q, few.keys, few.values = many.q[:count], many.keys, many.values
        few.rows.page_table.copy_(many.rows.page_table[:, : few.rows.page_table.shape[1]])
        found, found_lse = few.attend(FIXED_TILE, 64)
        assert torch.equal(found, out[:count])
        assert torch.equal(found_lse, lse[:count])
