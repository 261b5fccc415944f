"""Statistics as words say what the statistics said, and the same in one launch."""

import numpy as np
import pytest
import torch

from recguide.engine.scores import scores_of
from recguide.kernels.logit_statistics import LogitStatistics, barred_ids, logit_statistics_reference
from recguide.kernels.packed_statistics import packed_statistics, packed_statistics_reference

pytestmark = pytest.mark.usefixtures("poisoned")


def found_in(rows: int, device: torch.device) -> LogitStatistics:
    logits = torch.randn(rows, 40, generator=torch.Generator().manual_seed(rows)) * 9
    logits[::5] = float("nan")
    logits[1::5, 1:] = float("-inf")
    return LogitStatistics(
        *(column.to(device) for column in logit_statistics_reference(logits, barred_ids(3, (2,), "cpu")))
    )


@pytest.mark.parametrize("rows", [0, 1, 7, 300])
@pytest.mark.parametrize("kept", [False, True])
def test_one_launch_gives_the_same_words(rows, kept, device):
    found, best = found_in(rows, device), [torch.full((rows + 2,), -7, dtype=torch.int32, device=device) for _ in "ab"]
    ours = packed_statistics(found, best[0] if kept else None)
    assert torch.equal(ours, packed_statistics_reference(found, best[1] if kept else None))
    assert torch.equal(*best)
    assert best[0][rows:].tolist() == [-7, -7]
    assert not kept or torch.equal(best[0][:rows], found.first.int())


def test_the_host_reads_what_was_found_in_arrays_of_its_own():
    found = found_in(60, torch.device("cpu"))
    words = packed_statistics_reference(found).numpy()
    scores = scores_of(words)
    words[:] = 0
    assert scores.first.tolist() == found.first.tolist()
    assert scores.second.tolist() == found.second.tolist()
    assert scores.second_no_eos.tolist() == found.second_no_eos.tolist()
    for levels, shares in ((scores.margin, found.margin), (scores.p1, found.p1)):
        wanted = np.fmin(np.fmax(shares.numpy() * 256, 0), 255).astype(np.uint8)
        assert levels.tolist() == wanted.tolist()
    assert np.array_equal(scores.entropy, found.entropy.numpy(), equal_nan=True)
