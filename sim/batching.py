"""Which of the running requests a step takes along when their block sizes differ, and what each of them pays for.

Three ways: fill short blocks up to the largest, run one block size at a time, or neither (paper, section 5.3).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recguide.sim.rounds import Ints
from recguide.traces.errors import InputError

MAX_WAIT = 8
"""Steps after which a request's bucket runs next, however small it is."""


class Bucket(NamedTuple):
    """The running requests whose next rounds have the same block size."""

    block_size: int
    requests: int
    waited: int
    """Steps since the oldest of them ran."""
    place: int
    """Of the first such request; any number that orders places will do."""


Choose = Callable[[Sequence[Bucket], int], int]
"""The block size to run next: from the buckets, none of them empty, and the last block size that ran."""


def fullest(buckets: Sequence[Bucket], last: int = 0) -> int:
    """The bucket with the most requests; among equals the one whose oldest request waited longest.

    A request that waited ``MAX_WAIT`` steps takes its bucket to the front, so nobody waits for ever.
    """
    found = (0, 0, 0)
    for size, requests, waited, _ in buckets:
        if waited >= MAX_WAIT:
            return oldest(buckets, last)
        found = max(found, (requests, waited, -size))
    return -found[2]


def oldest(buckets: Sequence[Bucket], last: int = 0) -> int:
    """The bucket of the request that waited longest; of the first such request among equals."""
    return max((each.waited, -each.place, each.block_size) for each in buckets)[2]


def next_larger(buckets: Sequence[Bucket], last: int = 0) -> int:
    """Round robin: the next larger block size after the ``last`` one that ran, or the smallest.

    A request that waited ``MAX_WAIT`` steps takes its bucket to the front: a plan may change while it waits.
    """
    if max(each.waited for each in buckets) >= MAX_WAIT:
        return oldest(buckets, last)
    sizes = sorted(each.block_size for each in buckets)
    return next((size for size in sizes if size > last), sizes[0])


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests of different block sizes share the GPU."""

    choose: Choose | None
    """Which bucket goes next; None: everyone runs, whatever their block sizes."""
    padded: bool = False
    """Whether each block of a step is filled up to the step's largest, and paid for at that size."""

    def take(self, block_sizes: Ints, waited: Ints, last: int) -> Ints:
        """Indices of the requests to run: from each one's block size and the steps it waited, and the last size run."""
        if self.choose is None:
            return np.arange(len(block_sizes))
        return np.flatnonzero(block_sizes == self.choose(buckets_of(block_sizes, waited), last))


def buckets_of(block_sizes: Ints, waited: Ints) -> list[Bucket]:
    """The buckets of requests with these block sizes that waited so many steps."""
    found = []
    for size in set(block_sizes.tolist()):
        places = np.flatnonzero(block_sizes == size)
        waits = waited.take(places)
        first = int(waits.argmax())
        found.append(Bucket(size, len(places), int(waits[first]), int(places[first])))
    return found


BUCKETS: Mapping[str, Choose] = {"fullest": fullest, "oldest": oldest, "round-robin": next_larger}
BATCHINGS: Mapping[str, Batching] = {
    "pad": Batching(None, padded=True),
    "bucket": Batching(fullest),
    **{f"bucket:{name}": Batching(choose) for name, choose in BUCKETS.items()},
    "ragged": Batching(None),
}
BUCKETED = BATCHINGS["bucket"]


def batching_named(name: str) -> Batching:
    """The batching that a name on the command line means."""
    if name not in BATCHINGS:
        raise InputError(f"batching: found {name!r}, allowed: {', '.join(BATCHINGS)}")
    return BATCHINGS[name]
