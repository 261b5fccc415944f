"""A campaign of measurements as a folder: which points it is to have, how often each, and the runs that are there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from recguide.sim.costs import DRAFTS
from recguide.sim.measurement import ROLES, SUFFIX, Measurement, read_measurement
from recguide.sim.store import files_hash
from recguide.traces.checks import require
from recguide.traces.documents import read_json, write_json

FORMAT = 1
MANIFEST = "campaign.json"


class PointKey(NamedTuple):
    """One point of a campaign."""

    policy: str
    dataset: str
    concurrency: int

    def __str__(self) -> str:
        return f"{self.policy} at C={self.concurrency}, {self.dataset}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a campaign is to have."""

    repeats: int
    points: tuple[PointKey, ...]
    setup: Mapping[str, Any]
    """What all runs have in common: model, trace, acceptance, limits."""
    sessions: int = 1
    """Calls that measured, or are measuring."""
    policy_files: Mapping[str, str] = field(default_factory=dict)
    """By policy that names a file, a hash of it when it was measured."""


def manifest_of(folder: Path, wanted: Manifest) -> Manifest:
    """The wanted manifest with what the folder's own has, for one more session; ValueError where the setups differ.

    So it does where a policy's file is another one than before. It is written.
    """
    path = folder / MANIFEST
    files = policy_files(key.policy for key in wanted.points)
    if path.exists():
        known = read_manifest(folder)
        for name in sorted({*known.setup, *wanted.setup}):
            there, here = known.setup.get(name), wanted.setup.get(name)
            choosing = " (--merge-drafts or --no-merge-drafts)" if name == DRAFTS else ""
            require(there == here, f"{path}: {name}", there, f"{here!r}{choosing}, or another folder")
        check_files(path, known, files)
        points = tuple(dict.fromkeys((*known.points, *wanted.points)))
        wanted = Manifest(max(wanted.repeats, known.repeats), points, wanted.setup, known.sessions + 1)
        files = {**known.policy_files, **files}
    wanted = replace(wanted, policy_files=files)
    folder.mkdir(parents=True, exist_ok=True)
    document = {"recguide_campaign": FORMAT, **asdict(wanted), "points": [key._asdict() for key in wanted.points]}
    write_json(path, document)
    return wanted


def policy_files(policies: Iterable[str]) -> dict[str, str]:
    """By policy that names a file that is there, a hash of it."""
    hashes = {policy: files_hash(policy) for policy in policies}
    return {policy: found for policy, found in hashes.items() if found}


def check_files(path: Path, known: Manifest, files: Mapping[str, str]) -> None:
    """InputError where a policy's file is another one than when it was measured."""
    for policy, here in files.items():
        there = known.policy_files.get(policy, here)
        require(here == there, f"{path}: the file of {policy}", here[:16], f"{there[:16]!r}, the one that was measured")


def read_manifest(folder: Path) -> Manifest:
    """What the folder is to have; ValueError names file and field."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; `recguide measure --output-dir {folder}` writes it")
    document = read_json(path)
    found = document.get("recguide_campaign") if isinstance(document, dict) else None
    require(found == FORMAT, f"{path}: recguide_campaign", found, FORMAT)
    setup = document.get("setup")
    for name in ("repeats", "sessions"):
        count = document.get(name)
        require(type(count) is int and count >= 1, f"{path}: {name}", count, "a whole number of at least 1")
    require(isinstance(setup, dict), f"{path}: setup", setup, "an object")
    points = document.get("points")
    require(isinstance(points, list) and len(points) > 0, f"{path}: points", points, "a list, not empty")
    keys = tuple(_key(f"{path}: points[{i}]", each) for i, each in enumerate(points))
    files = document.get("policy_files", {})
    right = isinstance(files, dict) and all(isinstance(each, str) for each in files.values())
    require(right, f"{path}: policy_files", files, "an object of hashes")
    return Manifest(document["repeats"], keys, setup, document["sessions"], files)


def _key(where: str, found: object) -> PointKey:
    kinds = PointKey.__annotations__
    right = isinstance(found, dict) and found.keys() == kinds.keys()
    right = right and all(type(found[name]) is kind for name, kind in kinds.items())  # type: ignore[index]
    require(right, where, found, "policy, dataset and concurrency")
    return PointKey(**found)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Campaign:
    """All that a folder holds."""

    folder: Path
    manifest: Manifest
    runs: Mapping[PointKey, Sequence[Measurement]]
    """By point, in order of the repeats."""
    anchors: Mapping[PointKey, Sequence[Measurement]]
    """The same of the anchors, by session."""

    def missing(self, points: Sequence[PointKey], repeats: int) -> dict[PointKey, int]:
        """Repeats that points lack."""
        lacks = {key: repeats - len(self.runs.get(key, ())) for key in points}
        return {key: count for key, count in lacks.items() if count > 0}


def read_campaign(folder: Path) -> Campaign:
    """Read the manifest and every run; ValueError names the file at fault, or two that do not belong together."""
    manifest = read_manifest(folder)
    found = sorted((read_measurement(path) for path in sorted(folder.glob(f"*{SUFFIX}"))), key=_rank)
    first = found[0].about if found else None
    for each in found:
        for name in ("acceptance", "batching", "max_batched_tokens", "kv_tokens", "trace"):
            mine, theirs = getattr(each.about, name), getattr(first, name)
            require(mine == theirs, f"{folder / each.about.name}: about.{name}", mine, f"{theirs!r}, as in other files")
    by_role: dict[str, dict[PointKey, list[Measurement]]] = {role: {} for role in ROLES}
    for each in found:
        by_role[each.about.role].setdefault(PointKey(*each.about.key), []).append(each)
    for runs in by_role[ROLES[0]].values():
        numbers = [each.about.repeat for each in runs]
        require(len(set(numbers)) == len(numbers), f"{folder}: repeats of {runs[0].about.key}", numbers, "each once")
    return Campaign(folder, manifest, *by_role.values())


def _rank(each: Measurement) -> tuple[int, int]:
    return each.about.repeat, each.about.session
