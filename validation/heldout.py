"""Which points of a campaign rest on nothing that the profile or a fit has seen."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from recguide.sim.campaigns import PointKey
from recguide.sim.costs import Profile
from recguide.sim.profile_rows import PRODUCTS

CONCURRENCY, DATASET, POLICY = "concurrency", "dataset", "policy"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was used to make the simulator's inputs."""

    concurrencies: frozenset[int]
    """Requests of a profiled forward are such."""
    datasets: frozenset[str]
    policies: frozenset[str]

    def held_out(self, key: PointKey, datasets: Iterable[str]) -> tuple[str, ...]:
        """What of a point it is not among; a point of several datasets is held out if all of them are."""
        found = {
            CONCURRENCY: key.concurrency not in self.concurrencies,
            DATASET: self.datasets.isdisjoint(datasets),
            POLICY: key.policy not in self.policies,
        }
        return tuple(name for name, is_out in found.items() if is_out)


def seen(profile: Profile, policies: Iterable[str], told: Sequence[Sequence[str]]) -> Seen:
    """Out of a profile's rows and of the files that policies name; ``told`` are further concurrencies, and so on."""
    concurrencies, datasets, others = told
    profiled = {row.requests for row in profile.rows if row.kind not in ("host", "prefill", PRODUCTS)}
    fitted = {name for policy in policies for name in fitted_datasets(policy)}
    return Seen(
        frozenset(profiled | {int(count) for count in concurrencies}),
        frozenset(fitted | set(datasets)),
        frozenset(others),
    )


def fitted_datasets(policy: str) -> list[str]:
    """The datasets that a policy's file was fitted on; none for a policy without a file, or without that knowledge."""
    paths = [Path(part) for part in re.split("[:,=]", policy)[1:] if part.endswith(".json")]
    found = [name for path in paths if path.is_file() for name in _datasets(path)]
    return list(map(str, found))


def _datasets(path: Path) -> list[object]:
    """Those that a policy file names; a file at fault is told when the policy is made."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["provenance"]["trace"]["datasets"]
    except (ValueError, KeyError, TypeError):
        return []
    return found if isinstance(found, list) else []
