"""Who of the running requests takes part in which step, once it is known what each of them will do.

What requests do is laid out in long arrays, request by request in the order in which they were sent. A request's next
entry is a place there, so places order requests as the running ones are ordered.
"""

from collections import defaultdict
from heapq import heappop, heappush

import numpy as np

from recguide.sim.batching import Bucket, Choose
from recguide.sim.chains import Chains, Standing
from recguide.sim.rounds import Ints

PREFIX = 2
"""Entries before each request's own: its last two rounds."""


class Layout:
    """Entries of many requests: the last two rounds of each, what it will do from here on, and an end of size 0."""

    def __init__(self, requests: Ints, standing: Standing, chains: Chains) -> None:
        self.chains = chains
        self.counts = chains.counts
        starts = np.cumsum(self.counts + PREFIX + 1) - self.counts - PREFIX - 1
        self.first = starts + PREFIX
        """[requests] Place of each one's first entry."""
        total = int(starts[-1] + self.counts[-1]) + PREFIX + 1
        self.request = np.repeat(requests, self.counts + PREFIX + 1)
        """[places]"""
        self.entry = np.zeros(total, np.int64)
        """[places] Where in ``chains`` it is; of no meaning in prefixes and ends."""
        places = np.repeat(self.first - np.cumsum(self.counts) + self.counts, self.counts) + np.arange(len(chains.at))
        self.entry[places] = np.arange(len(chains.at))
        self.at, self.block_size = np.zeros((2, total), np.int64)
        self.at[places], self.block_size[places] = chains.at, chains.block_size
        self.at[starts], self.block_size[starts] = standing.before_at, standing.before_size
        self.at[starts + 1], self.block_size[starts + 1] = standing.last_at, standing.last_size

    def standing(self, places: Ints) -> Standing:
        """Where the requests stand whose next entries are these."""
        last, before = places - 1, places - 2
        return Standing(self.at[places], self.at[last], self.block_size[last], self.at[before], self.block_size[before])


class Together:
    """Everyone takes part in every step, so each request ends as many steps later as it has entries."""

    last = 0

    def __init__(self) -> None:
        self._plays: list[tuple[int, int, int]] = []
        """First place, how many entries follow each other, and the number of the first one's round step."""
        self._ends: list[tuple[int, int, int]] = []
        """Round step behind the last one, first place and first round step of every running request."""

    def join(self, place: int, count: int, ran: int, at_step: int) -> None:
        """A request with so many entries takes part from the round step ``at_step`` on."""
        heappush(self._ends, (at_step + count, place, at_step))

    def advance(self, at_step: int, steps_before: int) -> tuple[int, list[int]]:
        """Steps until the next request ends, and the places of the last entries of those that do."""
        end = self._ends[0][0]
        ended = []
        while self._ends and self._ends[0][0] == end:
            _, place, start = heappop(self._ends)
            self._plays.append((place, end - start, start))
            ended.append(place + end - start - 1)
        return end - at_step, ended

    def stop(self, at_step: int, steps_before: int) -> list[tuple[int, int]]:
        """Take everyone out: the place of each one's next entry, and the steps that were done when it last ran."""
        self._plays += [(place, at_step - start, start) for _, place, start in self._ends if at_step > start]
        out = [(place + at_step - start, steps_before) for _, place, start in self._ends]
        self._ends = []
        return out

    def played(self) -> tuple[Ints, Ints]:
        """Places of all entries that were played, and the round step of each, in order of steps, then of places."""
        place, count, start = np.array(sorted(self._plays), np.int64).reshape(-1, 3).T
        follows = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        places, steps = np.repeat(place, count) + follows, np.repeat(start, count) + follows
        order = np.argsort(steps, kind="stable")
        return places[order], steps[order]


class Apart:
    """A step takes one bucket of requests, all of those whose next block has the same size."""

    def __init__(self, choose: Choose, block_sizes: Ints, last: int) -> None:
        self.choose, self.last = choose, last
        self._sizes = block_sizes.astype(np.uint8).tobytes()
        self._following = self._sizes[1:]
        """Block size of the entry behind each; 0 behind a request's last one."""
        self._places: list[int] = []
        self._steps: list[tuple[int, int]] = []
        """Round steps, and how many entries were played in each."""
        self._buckets: dict[int, list[int]] = {}
        """By block size, the places of next entries, in the order of when they last ran, then of place."""
        self._entered: dict[int, list[tuple[int, int]]] = {}
        """By block size, how many entries are there up to those that last ran when so many steps were done."""

    def join(self, place: int, count: int, ran: int, at_step: int) -> None:
        """A request takes part, which last ran when ``ran`` steps were done."""
        self._put(self._sizes[place], [place], ran)

    def _put(self, size: int, places: list[int], ran: int) -> None:
        if size in self._buckets:
            bucket = self._buckets[size]
            bucket += places
            self._entered[size].append((len(bucket), ran))
        else:
            self._buckets[size] = places
            self._entered[size] = [(len(places), ran)]

    def advance(self, at_step: int, steps_before: int) -> tuple[int, list[int]]:
        """Play one step; gives 1, and the places of the last entries of requests that end."""
        self.last = self._next(steps_before)
        members = self._buckets.pop(self.last)
        if len(self._entered.pop(self.last)) > 1:
            members.sort()
        self._places += members
        self._steps.append((at_step, len(members)))
        fresh: defaultdict[int, list[int]] = defaultdict(list)
        following = self._following
        for place in members:
            fresh[following[place]].append(place + 1)
        ended = fresh.pop(0, [])
        for size, places in fresh.items():
            self._put(size, places, steps_before + 1)
        return 1, [place - 1 for place in ended]

    def _next(self, steps_before: int) -> int:
        if len(self._buckets) == 1:
            return next(iter(self._buckets))
        return self.choose(
            [
                Bucket(size, len(places), steps_before - self._entered[size][0][1], places[0])
                for size, places in self._buckets.items()
            ],
            self.last,
        )

    def stop(self, at_step: int, steps_before: int) -> list[tuple[int, int]]:
        """Take everyone out: the place of each one's next entry, and the steps that were done when it last ran."""
        out = []
        for size, places in self._buckets.items():
            start = 0
            for end, ran in self._entered[size]:
                out += [(place, ran) for place in places[start:end]]
                start = end
        self._buckets, self._entered = {}, {}
        return out

    def played(self) -> tuple[Ints, Ints]:
        """Places of all entries that were played, and the round step of each, in order of steps, then of places."""
        steps, counts = np.array(self._steps, np.int64).reshape(-1, 2).T
        return np.array(self._places, np.int64), np.repeat(steps, counts)


Lane = Together | Apart


def lane_of(choose: Choose | None, layout: Layout, last: int) -> Lane:
    """Everyone together, or bucket by bucket, of which the one of block size ``last`` ran last."""
    return Together() if choose is None else Apart(choose, layout.block_size, last)
