"""The part of a run in which it neither fills up nor runs empty."""

import numpy as np

from recguide.sim.log import Replay

ENOUGH = 4


def steady_window(run: Replay) -> tuple[float, float] | None:
    """When the run is steady, or None when it never is.

    In a closed loop: from the first tokens of the first C requests to the first finish that no new request follows.
    Otherwise from the first finish to the last request sent, if at least ``ENOUGH`` others finish in between.
    """
    count = len(run.request)
    if not run.closed or run.concurrency is None:
        start, end = float(run.finished_s.min()), float(run.sent_s.max())
        if ((run.finished_s > start) & (run.finished_s <= end)).sum() < ENOUGH:
            return None
    elif count < run.concurrency:
        return None
    else:
        start = float(run.first_token_s[: run.concurrency].max())
        end = float(np.sort(run.finished_s)[count - run.concurrency])
    return (start, end) if end > start else None


def in_flight_s(run: Replay, start: float, end: float) -> float:
    """Request-seconds in flight between two times."""
    inside = np.minimum(run.finished_s, end) - np.maximum(run.sent_s, start)
    return float(np.maximum(inside, 0).sum())
