"""What the host adds to steps, freed from how fast the CPU was at the time.

A CPU that others share has more than one speed, and a visit falls into one of them: rows of the same work, minutes
apart, differ by half. So a visit's host time is told in units of a Python loop timed around it, and out of all visits
the host's time is taken to be so much a step, a request and a query token (docs/profile.md).
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from recguide.sim.profile_rows import Row, is_host

LEAST = 8
"""Rows of a kind, below which they stay as they are."""
USUAL = 0.1
"""Shares of a row's time, from which on its distance counts less than by its square."""
SHORTEST_US = 1e-3
"""Of a row, where its distance is a share of it."""
TOLD = "host"
"""The key of a profile's header under which it says that its rows were laid on planes."""


def smoothed(rows: Sequence[Row]) -> list[Row]:
    """The rows, those of the host laid on a plane over requests and query tokens; AR steps and rounds apart."""
    planes: dict[Row, Row] = {}
    for _, group in groupby(sorted([row for row in rows if is_host(row.kind)], key=_sort), key=_sort):
        own = list(group)
        if len(own) >= LEAST:
            planes.update(zip(own, _on_plane(own), strict=True))
    return [planes.get(row, row) for row in rows]


def told_of_planes(before: Sequence[Row], after: Sequence[Row]) -> dict[str, str]:
    """What a profile's header says of it: how far rows were from their plane in the median; nothing of few rows."""
    pairs = [(old.median_us, new.median_us) for old, new in zip(before, after, strict=True) if old != new]
    if not pairs:
        return {}
    apart = np.median([abs(old - new) / max(new, SHORTEST_US) for old, new in pairs])
    return {TOLD: f"so much a step, a request and a query token; rows were {apart:.1%} from that in the median"}


def _sort(row: Row) -> tuple[str, bool]:
    return row.kind, row.requests == row.query_tokens


def _on_plane(rows: Sequence[Row]) -> list[Row]:
    times = np.array([row.median_us for row in rows])
    counts, tokens = (np.array([getattr(row, name) for row in rows], float) for name in ("requests", "query_tokens"))
    terms = np.stack([np.ones_like(counts), counts] + ([tokens] if (counts != tokens).any() else []), axis=1)
    plane = terms @ _coefficients(terms, np.maximum(times, SHORTEST_US))
    return [row._replace(median_us=round(float(time), 3)) for row, time in zip(rows, plane, strict=True)]


def _coefficients(terms: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """None of them below 0, by relative distances; a visit in a slow phase counts little."""
    start = np.zeros(terms.shape[1])
    start[0] = np.median(times)
    scale = terms / times[:, None]

    def distances(coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        apart: NDArray[np.float64] = scale @ coefficients - 1
        return apart

    found = least_squares(distances, start, bounds=(0, np.inf), loss="soft_l1", f_scale=USUAL, x_scale=start + 1)
    return np.asarray(found.x)
