"""Which of the running requests a step takes along, when their block sizes differ (paper, section 5.3)."""

from collections.abc import Callable

import numpy as np

from recguide.sim.rounds import Ints

MAX_WAIT = 8
"""Steps after which a request's bucket runs next, however small it is."""

Batching = Callable[[Ints, Ints], Ints]
"""Indices of the requests to run, all of one block size: from every request's block size and the steps it waited."""


def fullest_bucket(block_sizes: Ints, waited: Ints) -> Ints:
    """The bucket with the most requests; among equals the one whose oldest request waited longest.

    A request that waited ``MAX_WAIT`` steps takes its bucket to the front, so nobody waits for ever.
    """
    oldest = int(waited.argmax())
    if waited[oldest] >= MAX_WAIT:
        return np.flatnonzero(block_sizes == block_sizes[oldest])
    sizes, bucket, count = np.unique(block_sizes, return_inverse=True, return_counts=True)
    longest_wait = np.zeros(len(sizes), np.int64)
    np.maximum.at(longest_wait, bucket, waited)
    best = np.lexsort((-sizes, longest_wait, count))[-1]
    return np.flatnonzero(bucket == best)
