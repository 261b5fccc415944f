"""One read of the logits gives what a sort and a softmax in fp64 give."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recguide.kernels.logit_statistics import (
    LogitStatistics,
    barred_ids,
    logit_statistics,
    logit_statistics_reference,
)
from recguide.kernels.logit_tiling import Tiling, scratch_for, tiling_for

IDS, NUMBERS = LogitStatistics._fields[:3], LogitStatistics._fields[3:]
# NumPy, which interprets kernels, warns of numbers that are then not chosen
pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN slice"),
]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BARRED = barred_ids(3, (7, 2), DEVICE)
SPECIAL = {"spread": 5.0, "close": 0.01}
# in the interpreter the time goes with the number of tiles
tilings = st.sampled_from(
    [Tiling(1, 2, 2, 3), Tiling(2, 2, 2, 1), Tiling(4, 1, 2, 1), Tiling(2, 4, 1, 2), Tiling(4, 4, 1, 1)]
)


def rows_of_logits(seed: int, rows: int, vocab: int, kind: str, dtype: torch.dtype) -> Tensor:
    """Random logits; "ties" has few values, "sparse" mostly -inf, "extreme" the ends of the range."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(rows, vocab, generator=generator)
    if kind == "ties":
        drawn = torch.randint(-1, 2, (rows, vocab), generator=generator)
    elif kind == "sparse":
        drawn = torch.where(torch.rand(rows, vocab, generator=generator) < 0.97, -torch.inf, drawn)
    else:
        drawn *= 2e4 if kind == "extreme" else SPECIAL[kind]
    return drawn.to(DEVICE, dtype)


def assert_same(found: LogitStatistics, wanted: LogitStatistics, tolerance: float = 2e-6) -> None:
    for name in IDS:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=0, atol=0)
    for name in NUMBERS:
        # entropy is a difference of two sums of about ln(vocab)
        scale = 12 if name == "entropy" else 1
        ours, theirs = getattr(found, name), getattr(wanted, name)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=tolerance * scale, equal_nan=True)


@settings(max_examples=18)
@given(
    seed=st.integers(0, 2**16),
    vocab=st.integers(9, 50),
    kind=st.sampled_from(["spread", "close", "ties", "sparse", "extreme"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    tiling=tilings,
)
def test_statistics_are_those_of_the_reference(seed, vocab, kind, dtype, tiling):
    logits = rows_of_logits(seed, 2, vocab, kind, dtype)
    assert_same(logit_statistics(logits, BARRED, tiling=tiling), logit_statistics_reference(logits, BARRED))


def test_ties_go_to_the_lowest_token_wherever_the_tiles_are():
    logits = torch.zeros(1, 64, device=DEVICE)
    for best in ([8, 9], [9, 63], [40, 41], [0, 63], [2, 40], [40, 7]):
        logits.zero_()[0, best] = 1.0
        found = logit_statistics(logits, BARRED, tiling=Tiling(1, 2, 2, 2))
        assert [int(found.first), int(found.second)] == sorted(best)
        assert float(found.margin) == 0.0


def test_mask_is_no_candidate_and_eos_none_for_the_second_without_it():
    logits = torch.arange(20.0, device=DEVICE)[None].clone()
    logits[0, [3, 7, 2]] = torch.tensor([50.0, 40.0, 30.0], device=DEVICE)
    found = logit_statistics(logits, BARRED, tiling=Tiling(1, 1, 1, 3))
    assert [int(x) for x in found[:3]] == [7, 2, 19]
    logits[0, 15] = 45.0
    found = logit_statistics(logits, BARRED, tiling=Tiling(1, 1, 1, 3))
    assert [int(x) for x in found[:3]] == [15, 7, 19]


@pytest.mark.parametrize("tiling", [Tiling(1, 2, 1, 2), Tiling(2, 2, 1, 1)])
def test_a_row_without_a_distribution_has_no_token_and_no_number(tiling):
    logits = rows_of_logits(0, 5, 32, "spread", torch.float32)
    logits[0, 9], logits[1, 30], logits[3] = torch.nan, torch.inf, -torch.inf
    # the mask's own logit does not matter
    logits[2, 3], logits[4, 3] = torch.nan, torch.inf
    found = logit_statistics(logits, BARRED, tiling=tiling)
    assert_same(found, logit_statistics_reference(logits, BARRED))
    assert (found.first < 0).tolist() == [True, True, False, True, False]
    for name in NUMBERS:
        assert getattr(found, name).isnan().tolist() == [True, True, False, True, False]


def test_a_lone_token_is_certain_and_has_no_second():
    logits = torch.full((1, 32), -torch.inf, device=DEVICE)
    logits[0, 20] = 4.0
    for found in (
        logit_statistics(logits, BARRED, tiling=Tiling(1, 2, 1, 2)),
        logit_statistics_reference(logits, BARRED),
    ):
        assert [int(x) for x in found[:3]] == [20, -1, -1]
        assert [float(x) for x in found[3:]] == [1.0, 1.0, 0.0]


def test_one_eos_is_second_and_nothing_without_eos_is():
    logits = torch.full((1, 32), -torch.inf, device=DEVICE)
    logits[0, [20, 7]] = torch.tensor([4.0, 3.0], device=DEVICE)
    for found in (
        logit_statistics(logits, BARRED, tiling=Tiling(1, 2, 1, 2)),
        logit_statistics_reference(logits, BARRED),
    ):
        assert [int(x) for x in found[:3]] == [20, 7, -1]


def test_rows_may_have_a_stride_and_the_vocabulary_none():
    wide = rows_of_logits(1, 3, 64, "spread", torch.float32)
    assert_same(
        logit_statistics(wide[:, 8:40], BARRED, tiling=Tiling(1, 2, 1, 2)),
        logit_statistics_reference(wide[:, 8:40], BARRED),
    )
    with pytest.raises(ValueError, match="stride 64 along the vocabulary; allowed: 1"):
        logit_statistics(wide.T, BARRED)


def test_a_row_does_not_depend_on_its_batch_and_scratch_may_be_used_again():
    tiling = Tiling(1, 2, 1, 2)
    logits = rows_of_logits(2, 4, 32, "spread", torch.float32)
    scratch = scratch_for(4, 32, DEVICE, tiling)
    whole = logit_statistics(logits, BARRED, scratch, tiling)
    again = logit_statistics(logits, BARRED, scratch, tiling)
    alone = logit_statistics(logits[2:3], BARRED, tiling=tiling)
    for first, second, third in zip(whole, again, alone, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first[2:3], third)
    assert not scratch.tickets.any()


def test_logits_that_are_as_good_as_none_count_as_none():
    logits = torch.tensor([[-2e38] * 16 + [1.0, -2e38]], device=DEVICE)
    for found in (
        logit_statistics(logits, BARRED, tiling=Tiling(1, 2, 2, 1)),
        logit_statistics_reference(logits, BARRED),
    ):
        assert [int(x) for x in found[:3]] == [16, -1, -1]


@given(rows=st.integers(1, 5000), vocab=st.sampled_from([300, 49152, 50257, 131072]))
def test_tilings_cover_the_vocabulary_once(rows, vocab):
    depth, lanes, tiles, parts, *_ = tiling_for(rows, vocab)
    assert depth * lanes * 8 * tiles * (parts - 1) < vocab <= depth * lanes * 8 * tiles * parts


def test_no_rows_give_no_statistics():
    assert all(len(column) == 0 for column in logit_statistics(torch.zeros(0, 32, device=DEVICE), BARRED))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [49152, 50257, 131072])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_statistics_on_the_gpu_are_those_of_the_reference(rows, vocab, dtype):
    barred = barred_ids(3, (7, 2), "cuda")
    for kind in ("spread", "close", "ties", "extreme"):
        logits = rows_of_logits(rows, min(rows, 20), vocab, kind, dtype)
        logits = torch.cat([logits.roll(shift, 1) for shift in range(-(-rows // 20))])[:rows]
        logits[rows // 2, 17] = torch.nan
        for _ in range(3):
            assert_same(logit_statistics(logits, barred), logit_statistics_reference(logits, barred), 1e-5)
