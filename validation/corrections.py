"""A profile corrected by served steps: what an error comes to when steps cost what they cost at other loads.

A profile visits every shape for a moment. A GPU that works hard for longer draws more power than it may, and slows
down, and some sizes between the profiled ones are slower than both neighbours. So seconds of forwards are multiplied by
the ratio of measured to foretold ones, by the size that the query tokens are filled up to; those of forwards with
branches and of whole prefills by their own. A point is foretold from all concurrencies but its own.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from recguide.sim.costs import HOST, CostModel
from recguide.sim.curves import Curve, weighted
from recguide.sim.log import PREFILL_STEP
from recguide.sim.measurement import Measurement
from recguide.sim.profile_rows import is_host
from recguide.sim.rounds import AR
from recguide.sim.sizes import filled_up
from recguide.validation.budget import layout_of
from recguide.validation.pricing import host_of, priced_apart

FORWARD, LAYOUT, PREFILLED = GROUPS = ("forward", "layout", "prefill")
LEAST = 9
"""Forwards that a ratio rests on."""

Floats = NDArray[np.float64]
Table = Floats
"""[samples, 3] Query tokens, measured seconds, foretold seconds."""
Ratios = Mapping[str, tuple[Floats, Floats]]
"""By group: logarithms of sizes, ascending, and the ratio at each."""


def samples_of(measured: Measurement, costs: CostModel) -> dict[str, Table]:
    """By group, what the forwards of a run took and should have taken."""
    run = measured.run
    # the host's time is left as it is, whoever plans
    draft_s, forward_s, _ = priced_apart(run, costs, layout_of(measured.about.policy))
    sizes, tokens, drafted = (run.steps[name] for name in ("block_size", "query_tokens", "draft_tokens"))
    prefills, drafts = sizes == PREFILL_STEP, draft_s > 0
    # what is neither a round of two forwards nor an AR step is one forward that drafts and verifies
    linear = ~prefills & (drafts | (sizes == AR))
    own_s = measured.forward_s - np.where(drafts, measured.draft_s, 0.0)
    whole_s = measured.forward_s + host_of(run, measured.forward_s)
    halves = _table(drafts, drafted, measured.draft_s, draft_s), _table(linear, tokens, own_s, forward_s)
    return {
        FORWARD: np.concatenate(halves),
        LAYOUT: _table(~linear & ~prefills, np.where(tokens > 0, tokens, drafted), own_s, forward_s),
        PREFILLED: _table(prefills, tokens, whole_s, forward_s),
    }


def _table(those: NDArray[np.bool_], *columns: NDArray[np.generic]) -> Table:
    return np.stack([column[those].astype(np.float64) for column in columns], 1)


def ratios_of(samples: Iterable[Mapping[str, Table]]) -> Ratios:
    """The ratios over the runs that these samples are of; 1 where there is nothing to go by."""
    runs = list(samples)
    return {group: _ratios(np.concatenate([each[group] for each in runs])) for group in GROUPS}


def _ratios(table: Table) -> tuple[Floats, Floats]:
    sizes, found = np.array([filled_up(int(size)) for size in table[:, 0]]), []
    for size in np.unique(sizes):
        here = sizes == size
        if here.sum() >= LEAST:
            found.append((np.log2(size), table[here, 1].sum() / table[here, 2].sum()))
    columns = np.array(found or [(0.0, 1.0)]).T
    return columns[0], columns[1]


def corrected(costs: CostModel, ratios: Ratios) -> CostModel:
    """The same costs, multiplied by these ratios, between sizes by what lies between them."""
    return costs.changed(f"{costs.name}, corrected", partial(_corrected, ratios))


def _corrected(ratios: Ratios, curve: Curve, kind: str, query_tokens: int) -> Curve:
    if is_host(kind):
        return curve
    sizes, found = ratios[PREFILLED if kind == "prefill" else LAYOUT if kind in HOST else FORWARD]
    ratio = np.interp(np.log2(filled_up(query_tokens)), sizes, found)
    return weighted([(curve, float(ratio))], curve.floor_s)
