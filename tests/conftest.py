"""Fixtures for every test."""

import os
import shutil

import pytest
from hypothesis import settings
from running import Recguide, runner

# kernels run in Triton's interpreter where there is no GPU; Triton asks as soon as it sees the first of them
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# as many processes as cores need no threads each
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# a busy machine is no failure
settings.register_profile("recguide", deadline=None)
settings.load_profile("recguide")


@pytest.fixture
def recguide(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Recguide:
    """The console script, run in this process."""
    return runner(capsys, monkeypatch)
