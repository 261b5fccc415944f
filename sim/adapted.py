"""What plain drafts would take if they ran the draft adapter beside the weights, where a profile's run merged weights.

Forwards that verify and draft at once run it for some of their tokens, so where a profile does not have them, merged
drafts are no measure: SmolLM2's adapter takes as long as the rest of a small forward. What it takes grows far less than
the tokens do (an H200: 0.7 to 1.6 ms of 4 to 4096 tokens of SmolLM2, 0.3 to 0.8 of 4 to 1536 of NLD-8B's shape).
"""

from collections.abc import Mapping
from statistics import mean

from recguide.sim.curves import Points

Kind = dict[float, dict[float, dict[float, float]]]
"""One kind of forward: query tokens a request, then requests, then seconds by context tokens a request."""


def apart(drafts: Kind, rows: Kind) -> Kind | None:
    """Merged drafts, and on top of each what rows of few tokens take longer than they do at the same shape.

    Of numbers of requests that rows do not have, the next smaller one stands. None where the two have no shape in
    common: then nobody knows.
    """
    shared = sorted(drafts.keys() & rows.keys())
    if not shared:
        return None
    few = shared[0]
    longer = {count: _longer(rows[few][count], drafts[few][count]) for count in rows[few].keys() & drafts[few].keys()}
    known = {count: more for count, more in longer.items() if more is not None}
    if not known:
        return None
    return {
        size: {count: _later(points, _nearest(known, count)) for count, points in counts.items()}
        for size, counts in drafts.items()
    }


def _longer(rows: Points, drafts: Points) -> float | None:
    """Seconds in the mean over contexts, 0 at least."""
    contexts = rows.keys() & drafts.keys()
    return max(mean([rows[at] - drafts[at] for at in sorted(contexts)]), 0.0) if contexts else None


def _nearest(known: Mapping[float, float], count: float) -> float:
    below = [other for other in known if other <= count]
    return known[max(below) if below else min(known)]


def _later(points: Points, seconds: float) -> dict[float, float]:
    return {context: time_s + seconds for context, time_s in points.items()}
