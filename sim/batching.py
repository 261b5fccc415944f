"""Which of the running requests a step takes along when their block sizes differ, and what each of them pays for.

Three ways: fill short blocks up to the largest, run one block size at a time, or neither (paper, section 5.3).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from recguide.sim.rounds import Ints

MAX_WAIT = 8
"""Steps after which a request's bucket runs next, however small it is."""

Take = Callable[[Ints, Ints, int], Ints]
"""Indices of the requests to run: from every request's block size, the steps it waited, and the last block size run."""


def fullest_bucket(block_sizes: Ints, waited: Ints, last: int = 0) -> Ints:
    """The bucket with the most requests; among equals the one whose oldest request waited longest.

    A request that waited ``MAX_WAIT`` steps takes its bucket to the front, so nobody waits for ever.
    """
    if waited.max() >= MAX_WAIT:
        return oldest_bucket(block_sizes, waited, last)
    sizes, bucket, count = np.unique(block_sizes, return_inverse=True, return_counts=True)
    longest_wait = np.zeros(len(sizes), np.int64)
    np.maximum.at(longest_wait, bucket, waited)
    best = np.lexsort((-sizes, longest_wait, count))[-1]
    return np.flatnonzero(bucket == best)


def oldest_bucket(block_sizes: Ints, waited: Ints, last: int = 0) -> Ints:
    """The bucket of the request that waited longest; of the first such request among equals."""
    return np.flatnonzero(block_sizes == block_sizes[waited.argmax()])


def next_bucket(block_sizes: Ints, waited: Ints, last: int = 0) -> Ints:
    """Round robin: the next larger block size after the ``last`` one that ran, or the smallest.

    A request that waited ``MAX_WAIT`` steps takes its bucket to the front: a plan may change while it waits.
    """
    if waited.max() >= MAX_WAIT:
        return oldest_bucket(block_sizes, waited, last)
    larger = block_sizes[block_sizes > last]
    return np.flatnonzero(block_sizes == (larger if len(larger) else block_sizes).min())


def everyone(block_sizes: Ints, waited: Ints, last: int = 0) -> Ints:
    """All of them, whatever their block sizes."""
    return np.arange(len(block_sizes))


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests of different block sizes share the GPU."""

    take: Take
    padded: bool = False
    """Whether each block of a step is filled up to the step's largest, and paid for at that size."""


BUCKETS: Mapping[str, Take] = {"fullest": fullest_bucket, "oldest": oldest_bucket, "round-robin": next_bucket}
BATCHINGS: Mapping[str, Batching] = {
    "pad": Batching(everyone, padded=True),
    "bucket": Batching(fullest_bucket),
    **{f"bucket:{name}": Batching(take) for name, take in BUCKETS.items()},
    "ragged": Batching(everyone),
}
BUCKETED = BATCHINGS["bucket"]


def batching_named(name: str) -> Batching:
    """The batching that a name on the command line means."""
    if name not in BATCHINGS:
        raise ValueError(f"batching: found {name!r}, allowed: {', '.join(BATCHINGS)}")
    return BATCHINGS[name]
