"""How sure a speedup is: both policies serve the same requests, so that each resample takes the same ones of both."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from recguide.sim.figures import Figures
from recguide.sim.history import Floats
from recguide.sim.latencies import resamples


class Paid(NamedTuple):
    """[requests] Output tokens of each, and its time in flight."""

    tokens: Floats
    busy_ms: Floats


def paid_of(served: pa.Table) -> Paid:
    """What the requests of a point got, in the order of sending."""
    return Paid(served["output_tokens"].to_numpy().astype(np.float64), served["e2el_ms"].to_numpy())


def speedup_interval(speedup: float, mine: Paid, base: Paid, figures: Figures) -> tuple[float, float] | None:
    """95% confidence interval of a speedup in a closed loop, by paired bootstrap over requests.

    With C requests in flight, throughput is C times the tokens per second of a request's time in flight; the ratio of
    these is resampled, and scaled to the speedup, which leaves filling up and running empty out. None where requests
    take no time.
    """
    sums = np.stack([*mine, *base], axis=1)
    drawn = np.concatenate([weights @ sums for weights in resamples(len(sums), figures)])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = _ratio(drawn.T) / _ratio(sums.sum(axis=0)[:, None])
    if not np.isfinite(ratios).all():
        return None
    low, high = np.percentile(ratios, [2.5, 97.5]) * speedup
    return float(low), float(high)


def _ratio(sums: Floats) -> Floats:
    tokens, busy, base_tokens, base_busy = sums
    ratio: Floats = (tokens / busy) / (base_tokens / base_busy)
    return ratio
