"""What every point of a sweep has in common: the load, the server's limits, and the figures that are asked for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from recguide.sim.figures import Figures
from recguide.sim.loads import Drawn, Groups, Load, groups_of
from recguide.sim.memory import Limits
from recguide.sim.rounds import Rounds
from recguide.traces.dense import DenseTrace


@dataclass(frozen=True, slots=True)
class Scenario:
    """The same for all policies, so that they are compared over the same requests at the same times."""

    load: Load = field(default_factory=lambda: Load(()))
    limits: Limits = field(default_factory=Limits)
    figures: Figures = field(default_factory=Figures)
    detailed: Path | None = None
    """Folder for one file a point with everything that happened to every request."""
    stream: bool = False
    """Whether to keep sums alone, so that memory does not grow with the number of requests."""
    groups: Groups = field(default_factory=lambda: Groups((), ()))
    drawn: Drawn = field(default_factory=Drawn)

    @property
    def rate(self) -> float:
        """Requests per second; 0 where no rate is finite."""
        rate = self.load.rate
        return 0.0 if rate is None or math.isinf(rate) else rate

    def at_rates(self, rates: Sequence[float]) -> "list[Scenario]":
        """The same at each of these request rates, or as it is where there are none."""
        return [replace(self, load=replace(self.load, rate=rate)) for rate in rates] or [self]

    def checked(self, rounds: Rounds, trace: DenseTrace, order: Sequence[int]) -> "Scenario":
        """The same with everything that it needs of a trace, once the whole load was read and found good."""
        self.limits.check()
        load = replace(self.load, order=order)
        groups = groups_of(trace, self.limits.page_size if self.limits.prefix_reuse else None)
        return replace(self, load=load, groups=groups, drawn=load.check(rounds, groups, self.limits))


def counts_of(scenario: Scenario) -> dict[str, str | float | int | None]:
    """What the load is, and what became of the rows of its file."""
    load, drawn = scenario.load, scenario.drawn
    return {
        "request_rate": scenario.rate or None,
        "burstiness": load.burstiness if load.rate is not None else None,
        "failed": drawn.failed,
        "skipped_rows": drawn.skipped,
        "shortened_requests": drawn.shortened,
        "stitched_requests": drawn.stitched,
        "stitched_tokens": drawn.stitched_tokens,
        "load_note": "; ".join(notes_of(drawn)) or None,
    }


def notes_of(drawn: Drawn) -> list[str]:
    """What a reader must know of the rows of a file, in sentences."""
    told = list(drawn.warnings)
    if drawn.failed:
        told.append(f"{drawn.failed} rows gave no output tokens when they were recorded: failed, and not served")
    if drawn.skipped:
        told.append(f"{drawn.skipped} rows were at fault and skipped; the first: {drawn.first_skipped}")
    if drawn.shortened:
        told.append(f"{drawn.shortened} outputs end early, at the context limit")
    if drawn.stitched:
        told.append(
            f"{drawn.stitched} of {drawn.rows} outputs are longer than the recorded request drawn for them, and go on "
            f"with others of its dataset ({drawn.stitched_tokens} tokens)"
        )
    return told
