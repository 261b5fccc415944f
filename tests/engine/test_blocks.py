"""Rows of a clean text and draft blocks: ids, mask and targets are those of the definition, slot by slot."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recguide.engine.blocks import build

MASK = 99
LENGTH = 12


@st.composite
def rows(draw):
    """Block size, shift, text ends ``[2]``, starts ``[2, 3]`` and whether blocks are seeded."""
    starts = [[draw(st.integers(0, LENGTH - 1)) for _ in range(3)] for _ in range(2)]
    seeded = [[draw(st.booleans()) for _ in range(3)] for _ in range(2)]
    ends = [draw(st.integers(1, LENGTH)) for _ in range(2)]
    return draw(st.sampled_from([2, 4])), draw(st.sampled_from([0, 1])), ends, starts, seeded


def built(case):
    block_size, shift, ends, starts, seeded = case
    clean = torch.arange(2 * LENGTH).view(2, LENGTH)
    batch = build(clean, torch.tensor(ends), torch.tensor(starts), torch.tensor(seeded), block_size, MASK, shift)
    return clean, batch


def blocks_of(case):
    """Row, block, slot and where the slot lies in the row, for all of them."""
    for row in range(2):
        for block in range(3):
            for slot in range(case[0]):
                yield row, block, slot, LENGTH + block * case[0] + slot


@given(rows())
def test_a_block_holds_its_seed_and_masks_at_the_positions_behind_its_start(case):
    _, _, _, starts, seeded = case
    clean, batch = built(case)
    assert torch.equal(batch.ids[:, :LENGTH], clean)
    assert batch.draft == LENGTH
    for row, block, slot, at in blocks_of(case):
        start = starts[row][block]
        assert batch.positions[row, at] == start + slot
        seed = slot == 0 and seeded[row][block]
        assert batch.ids[row, at] == (clean[row, start] if seed else MASK)


@given(rows())
def test_a_block_sees_the_text_before_its_start_and_all_of_itself(case):
    block_size, _, _, starts, _ = case
    _, batch = built(case)
    width = LENGTH + 3 * block_size
    assert batch.mask.shape == (2, 1, width, width)
    for row in range(2):
        for query in range(LENGTH):
            assert batch.mask[row, 0, query].tolist() == [key <= query for key in range(width)]
    for row, block, _, at in blocks_of(case):
        own = range(LENGTH + block * block_size, LENGTH + (block + 1) * block_size)
        seen = [key in own or key < min(LENGTH, starts[row][block]) for key in range(width)]
        assert batch.mask[row, 0, at].tolist() == seen


@given(rows())
def test_a_slot_predicts_its_own_token_or_with_shifted_logits_the_next(case):
    block_size, shift, ends, starts, seeded = case
    _, batch = built(case)
    for row, block, slot, _ in blocks_of(case):
        target = starts[row][block] + slot + shift
        drafts = slot < block_size - 1 if shift else slot > 0 or not seeded[row][block]
        assert bool(batch.scored[row, block, slot]) == (drafts and target < ends[row])
        if batch.scored[row, block, slot]:
            assert batch.targets[row, block, slot] == target
    # a draft token that counts from 0, whichever slot holds it
    assert batch.offsets.tolist() == list(range(block_size) if shift else range(-1, block_size - 1))


@pytest.mark.parametrize(("shift", "seeded", "targets"), [(0, True, [4, 5]), (0, False, [3, 4, 5]), (1, True, [4, 5])])
def test_one_block_spelled_out(shift, seeded, targets):
    clean = torch.arange(LENGTH)[None]
    batch = build(clean, torch.tensor([9]), torch.tensor([[3]]), torch.tensor([[seeded]]), 3, MASK, shift)
    assert batch.targets[batch.scored].tolist() == targets
