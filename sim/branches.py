"""What became of prepared branches, counted (paper, Table 3), and how much a forward gives (paper, Table 2)."""

from collections.abc import Mapping

import numpy as np

from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.overlap import Outcome
from recguide.sim.rounds import AR, Ints


def forwards_each(run: Replay) -> Ints:
    """[emissions] Forwards that each emission took of its request: draft and verify, or one of both; prefills none."""
    forwards = np.where(run.emission_block_size > AR, 2, 1)
    if run.emission_outcome is not None:
        forwards = 1 + (run.emission_outcome & Outcome.DRAFTED != 0)
    each: Ints = forwards * (run.emission_block_size != PREFILL_STEP)
    return each


def branch_metrics(run: Replay) -> Mapping[str, float | None]:
    """Shares of all rounds with a draft, null where a run prepares no branches; and tau.

    ``tau`` is the paper's: tokens per window of two forwards.
    """
    forwards = int(forwards_each(run).sum())
    tokens = int(run.emission_tokens[run.emission_block_size != PREFILL_STEP].sum())
    return {"tau": 2 * tokens / forwards if forwards else None, **_shares(run)}


def _shares(run: Replay) -> Mapping[str, float | None]:
    names = ("correction_coverage", "correction_reuse", "continuation_coverage", "continuation_reuse")
    flags, drafted = run.emission_outcome, run.emission_block_size > AR
    if flags is None or not (flags & Outcome.PREPARED).any():
        return dict.fromkeys((*names, "no_hit"))
    events = (
        Outcome.CORRECTION_COVERED,
        Outcome.CORRECTION_REUSED,
        Outcome.CONTINUATION_COVERED,
        Outcome.CONTINUATION_REUSED,
    )
    shares = {name: float((flags[drafted] & event != 0).mean()) for name, event in zip(names, events, strict=True)}
    return {**shares, "no_hit": 1 - (shares["correction_coverage"] + shares["continuation_coverage"])}
