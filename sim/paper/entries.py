"""Published figures beside ours, one an entry, with what each is to us and why those that miss do."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from recguide.sim.paper.targets import Target

Figures = Mapping[str, float]
OURS_ALONE = "not in the paper"


class Reason(NamedTuple):
    """Why figures miss or claims do not hold."""

    of: str
    """A regular expression that finds something in the names of these figures and in these claims."""
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One figure of a table."""

    name: str
    target: Target | None
    """None where the paper has nothing like it."""
    ours: float | None
    band: tuple[float, float] | None
    """Ours where everything that the profile infers lies at an edge of its band."""
    recorded: float | None
    """The same figure of the recorded traces."""

    @property
    def kind(self) -> str:
        """What the paper's figure is to us."""
        return self.target.kind if self.target else OURS_ALONE

    @property
    def paper(self) -> float | None:
        """The paper's figure, where it prints one."""
        return self.target.value if self.target else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.paper is None or self.ours is None else self.ours - self.paper

    @property
    def missed(self) -> bool:
        """Whether it differs by more than was promised."""
        within = self.target.within if self.target else None
        return within is not None and self.difference is not None and abs(self.difference) > within

    @property
    def share(self) -> float | None:
        """The difference as a share of the paper's figure; None where that is 0."""
        if self.paper is None or self.difference is None or self.paper == 0:
            return None
        return self.difference / abs(self.paper)


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that the paper says of its results, and whether it holds for ours."""

    text: str
    holds: bool
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Section:
    """One table or figure for one model."""

    name: str
    model: str
    title: str
    about: str
    entries: Sequence[Entry]
    claims: Sequence[Claim] = ()
    reasons: Sequence[Reason] = ()
    """Each of something that is missed."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Plots, by name."""

    @property
    def missed(self) -> list[Entry]:
        """Figures out of their bounds."""
        return [entry for entry in self.entries if entry.missed]

    @property
    def failing(self) -> list[Claim]:
        """Claims that do not hold."""
        return [claim for claim in self.claims if not claim.holds]

    @property
    def unexplained(self) -> list[str]:
        """What is missed, or does not hold, for no reason that is told."""
        found = [entry.name for entry in self.missed] + [claim.text for claim in self.failing]
        return [name for name in found if not self.why(name)]

    def why(self, name: str) -> list[int]:
        """Numbers, from 1 on, of the reasons for a figure or a claim."""
        return [i for i, reason in enumerate(self.reasons, 1) if re.search(reason.of, name)]


def joined(
    ours: Figures, targets: Mapping[str, Target], edges: Sequence[Figures] = (), recorded: Figures | None = None
) -> list[Entry]:
    """Entries in the order of ours, then what only the paper has, then what only the recorded traces have."""
    found = []
    for name in dict.fromkeys([*ours, *targets, *(recorded or {})]):
        at_edges = [edge[name] for edge in edges if name in edge]
        band = (min(at_edges), max(at_edges)) if at_edges else None
        found.append(Entry(name, targets.get(name), ours.get(name), band, (recorded or {}).get(name)))
    return found
