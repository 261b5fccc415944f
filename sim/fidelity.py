"""What may be replayed from rounds that another system served, and how results say so (recguide.traces.sparse)."""

from collections.abc import Sequence

from recguide.traces.dense import DenseTrace
from recguide.traces.errors import InputError
from recguide.traces.sparse import is_reduced

LOOK_AT_LENGTHS = ("ar", "fixed", "recipe", "tiers", "window", "bandit", "goodput", "oracle", "optimum")
"""Policies that need nothing but acceptance lengths."""


def check_fidelity(trace: DenseTrace, policies: Sequence[str]) -> None:
    """ValueError for a policy that looks at what an imported trace does not hold: margins, entropies, branches."""
    if not is_reduced(trace):
        return
    for name in policies:
        if name.partition(":")[0] not in LOOK_AT_LENGTHS:
            raise InputError(
                f"policy {name!r}: the trace holds acceptance lengths alone ({trace.provenance.note}); "
                f"allowed: {', '.join(LOOK_AT_LENGTHS)}"
            )


def labelled(trace: DenseTrace, title: str) -> str:
    """The title of every table and plot, with what is reduced in front."""
    return f"REDUCED FIDELITY (acceptance imported): {title}" if is_reduced(trace) else title


def fidelity_warnings(trace: DenseTrace) -> list[str]:
    """The same as a sentence."""
    return [f"the trace has {trace.provenance.note}"] if is_reduced(trace) else []
