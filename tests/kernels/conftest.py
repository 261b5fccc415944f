from collections.abc import Iterator

import pytest
import torch

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")),
        pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU]),
    ]
)
def device(request) -> torch.device:
    """Where kernels run: compiled on a GPU, or in Triton's interpreter where there is none."""
    return torch.device(request.param)


@pytest.fixture(scope="module")
def poisoned() -> Iterator[None]:
    """Memory that nobody has written holds NaN, or the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
