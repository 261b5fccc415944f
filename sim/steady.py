"""The steady part of a run while it happens, for runs that are not kept; defined as in ``recguide.sim.windows``."""

import math
from dataclasses import dataclass

from recguide.sim.arrivals import Clients
from recguide.sim.windows import ENOUGH


@dataclass(slots=True)
class Mark:
    """What has happened up to a moment, and at it."""

    time_s: float = 0.0
    tokens: int = 0
    in_flight_s: float = 0.0
    finished: int = 0
    good: int = 0
    """Finished requests that meet every service level."""

    def copy(self) -> "Mark":
        """The same, which stays as it is."""
        return Mark(self.time_s, self.tokens, self.in_flight_s, self.finished, self.good)


class Steady:
    """Is told what happens in order of time; where a window starts and ends is known later than it happens."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self._now = Mark()
        self._sent = self._started = 0
        self._all_started: Mark | None = None
        """When the first C requests had their first token."""
        self._first_unfollowed: Mark | None = None
        """The first finish that no new request follows."""
        self._first_finish: Mark | None = None
        self._last_finish: Mark | None = None
        self._last_sent: Mark | None = None

    def send(self, now: float) -> None:
        """A request is sent."""
        self._pass(now)
        self._sent += 1
        self._last_sent = self._now.copy()

    def start(self, sent: int, now: float) -> None:
        """A request has its first token."""
        self._pass(now)
        self._started += sent < self.clients.limit
        if self._started == self.clients.limit and self._all_started is None:
            self._all_started = self._now.copy()

    def emit(self, tokens: int, now: float) -> None:
        """Tokens came out."""
        self._pass(now)
        self._now.tokens += tokens
        self._refresh()

    def finish(self, good: bool, now: float) -> None:
        """A request has its last token."""
        self._pass(now)
        self._now.finished += 1
        self._now.good += good
        self._last_finish = self._now.copy()
        if self._first_finish is None:
            self._first_finish = self._now.copy()
        self._refresh()

    def window(self, closed: bool) -> tuple[Mark, Mark] | None:
        """The start and the end of the steady part, or None where there is none."""
        self._pass(math.inf)
        if closed and not math.isinf(self.clients.limit):
            start, end = self._all_started, self._first_unfollowed
        else:
            start, end = self._first_finish, self._last_sent
            if start and end and end.finished - start.finished < ENOUGH:
                return None
        return (start, end) if start and end and end.time_s > start.time_s else None

    def _pass(self, now: float) -> None:
        """The clock moves on."""
        if now <= self._now.time_s:
            return
        last, ended = self._last_finish, self._now.finished
        unfollowed = self.clients.next is None and ended > self._sent - self.clients.limit
        if last is not None and self._first_unfollowed is None and unfollowed:
            self._first_unfollowed = last
        if not math.isinf(now):
            self._now.in_flight_s += (self._sent - ended) * (now - self._now.time_s)
            self._now.time_s = now

    def _refresh(self) -> None:
        """What happens at the moment of a mark belongs to it."""
        for mark in (self._all_started, self._first_finish, self._last_finish, self._last_sent):
            if mark is not None and mark.time_s == self._now.time_s:
                mark.tokens, mark.finished, mark.good = self._now.tokens, self._now.finished, self._now.good
