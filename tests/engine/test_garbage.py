"""Runs that are measured are not stopped for what they keep of themselves, and what was is as before."""

import gc

import pytest

from recguide.engine.garbage import NEVER, settled, young_alone


def test_only_what_is_old_is_left_alone_and_only_meanwhile() -> None:
    before = gc.get_threshold()
    with young_alone():
        assert gc.get_threshold() == (*before[:2], NEVER)
    assert gc.get_threshold() == before


def fail() -> None:
    with young_alone():
        raise ValueError("in the midst")


def test_a_run_that_fails_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="in the midst"):
        fail()
    assert gc.get_threshold() == before


def test_what_is_settled_is_not_looked_through_again() -> None:
    with settled():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0
