"""Python's garbage collector, kept off the clock of what is served."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 2**30


@contextmanager
def settled() -> Iterator[None]:
    """What is there by now stays until this is over, and nobody looks through it again and again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        # libraries complain of what is still there when the process ends
        gc.unfreeze()


@contextmanager
def young_alone() -> Iterator[None]:
    """Only what is young is looked through until this is over.

    A run that is measured keeps a log of all its steps, which no server does, and looking through that took 25 ms of a
    second of SmolLM2's on an H200.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
