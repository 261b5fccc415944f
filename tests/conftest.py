"""Fixtures for every test."""

import pytest
from hypothesis import settings
from running import Recguide, runner

# a busy machine is no failure
settings.register_profile("recguide", deadline=None)
settings.load_profile("recguide")


@pytest.fixture
def recguide(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Recguide:
    """The console script, run in this process."""
    return runner(capsys, monkeypatch)
