import pytest
import torch

from recguide.kernels.layouts import (
    MAX_TAIL,
    batch,
    branch,
    causal,
    copied_branch,
    draft,
    packed,
    quadratic,
    rows,
    tail_slots,
)


def spelled(mask):
    return ["".join(".x"[int(seen)] for seen in row) for row in mask]


def test_a_verifier_row_is_causal_and_a_draft_sees_all_of_itself():
    assert spelled(causal(3).mask()) == ["x..", "xx.", "xxx"]
    assert spelled(draft(3).mask()) == ["xxx", "xxx", "xxx"]


def test_a_branch_sees_the_trunk_before_it_and_its_own_row():
    tail = rows(3, [1, 3])
    assert spelled(tail.mask())[3:] == ["x..xxx..."] * 3 + ["xxx...xxx"] * 3
    assert tail.positions == (0, 1, 2, 1, 2, 3, 3, 4, 5)


def test_a_copied_branch_sees_its_own_copy_of_the_trunk_and_no_other():
    tail = copied_branch(1, 2, 2)
    assert spelled((causal(1) + tail).mask()) == ["x....", ".x...", ".xx..", ".xxxx", ".xxxx"]
    assert tail.positions == (0, 1, 2, 3)


def test_four_rows_bring_four_blocks_and_the_quadratic_layout_one_for_each_outcome():
    assert len(rows(16, [3, 9, 16])) == 64
    tail = quadratic(16)
    assert len(tail) == 16 * 17
    assert tail.positions[16:48] == (*range(1, 17), *range(2, 18))


def test_packed_words_hold_the_largest_numbers():
    last = packed(causal(MAX_TAIL))[-1]
    assert last == MAX_TAIL
    word = packed(causal(3800) + branch(3800, 4000, 255))[-1]
    assert (word & 4095, word >> 12 & 4095, word >> 24 & 255) == (4000, 3800, 255)
    assert -(2**31) <= word < 2**31


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: packed(causal(MAX_TAIL + 1)), "4096 tokens: allowed: up to 4095"),
        (lambda: packed(draft(256)), "row of 256 tokens: allowed: up to 255"),
        (lambda: rows(4, [0]), "branch at 0: allowed: 1 to 4"),
        (lambda: rows(4, [5]), "branch at 5: allowed: 1 to 4"),
        (lambda: batch([causal(1)], [1, 2], torch.zeros(1, 1)), "1 tails, 2 prefixes, 1 page tables"),
    ],
)
def test_what_has_no_room_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_tail_tokens_go_to_the_slots_behind_their_prefix():
    table = torch.tensor([[7, 3], [0, 0], [5, 9]])
    made = batch([causal(3), causal(0), draft(2)], [3, 0, 4], table)
    assert tail_slots(made, 4).tolist() == [31, 12, 13, 36, 37]
