"""The steps behind `recguide validate`: a campaign, a trace and a profile in; a table, JSON and a page out."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from recguide.sim.campaigns import MANIFEST, Campaign, PointKey, check_files, policy_files, read_campaign
from recguide.sim.costs import APART, DRAFTS, Profile, read_profile, resolve_profile
from recguide.sim.guards import check_sources, settle
from recguide.sim.measurement import ALL, DECIDED_BY, served_path
from recguide.sim.sweep_run import title_of
from recguide.sim.tables import notes, screen
from recguide.traces.checks import require_folder
from recguide.traces.dense import differ
from recguide.traces.documents import as_json, write_text
from recguide.traces.errors import InputError
from recguide.traces.files import file_sha256, read_traces
from recguide.validation.budget import throughputs
from recguide.validation.charts import figures
from recguide.validation.costing import OF_RUNS_CPU, WARNINGS, CostsOf, costs_for
from recguide.validation.frontiers import crossings, frontiers, rankings
from recguide.validation.heldout import Seen, seen
from recguide.validation.page import page
from recguide.validation.points import Compared, compare
from recguide.validation.processor import cpu_warnings, loop_us, slowness
from recguide.validation.replaying import Recorded, own_trace, recorded
from recguide.validation.tables import Rows, tables
from recguide.validation.verdict import Check, Outcome, Thresholds, checks, groups

FORMAT = 1
DOCUMENT, PAGE = "validation.json", "validation.html"
DRIFT = 0.02
"""Of an anchor between sessions, from which readers are warned."""


@dataclass(frozen=True, slots=True)
class ValidateOptions:
    """The command line, parsed and checked."""

    campaign: Path
    trace: tuple[str, ...]
    profile: str
    output: Path
    policies: tuple[str, ...]
    """Of these alone; none: of all that the campaign is to have."""
    concurrencies: tuple[int, ...]
    datasets: tuple[str, ...]
    percentiles: tuple[float, ...]
    seen: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    """Further concurrencies, datasets and policies that profile or fit rest on."""
    thresholds: Thresholds
    costs: str
    """"profile"; "cpu-speed", its host by the CPU of each run; "corrected", by steps served at other concurrencies; or
    "even-steps", fitted to every second."""
    cross_model: bool
    force: bool


@dataclass(frozen=True, slots=True)
class _Sources:
    campaign: Campaign
    recorded: Recorded
    profile: Profile
    title: str
    warnings: list[str]
    anchors: dict[PointKey, list[float]]
    """Tokens per second, session by session."""


def run(options: ValidateOptions) -> bool:
    """Compare, print and write; gives whether every threshold is kept and nothing is missing."""
    require_folder(options.output, "--output-dir")
    sources = _sources(options)
    wanted = _wanted(options, sources.campaign)
    missing = sources.campaign.missing(wanted, options.thresholds.repeats)
    there = [key for key in wanted if sources.campaign.runs.get(key)]
    if not there:
        raise InputError(f"{options.campaign}: no measurement of the {len(wanted)} points; recguide measure makes them")
    profiled = seen(sources.profile, [key.policy for key in wanted], options.seen)
    costs_of = costs_for(options.costs, sources.profile, [each for key in there for each in sources.campaign.runs[key]])
    points = [_compared(sources, costs_of, key, options, profiled) for key in there]
    outcome = Outcome(points, rankings(points), frontiers(points), crossings(points), missing)
    found = checks(outcome, options.thresholds)
    warnings = [*sources.warnings, *filter(None, [WARNINGS.get(options.costs)]), *_warnings(outcome, sources)]
    warnings += cpu_warnings(points, sources.profile.header)
    _write(options, sources, outcome, found, warnings)
    return all(check.passed for check in found)


def _sources(options: ValidateOptions) -> _Sources:
    trace, profile = read_traces(options.trace), read_profile(resolve_profile(options.profile))
    title = title_of(trace, profile, options.cross_model)
    warnings = settle(check_sources(trace, profile), options.force)
    campaign = read_campaign(options.campaign)
    setup, header = ({DRAFTS: APART, **given} for given in (campaign.manifest.setup, profile.header))
    for name in ("model", "gpu", "weights_sha256", DRAFTS):
        served, profiled = str(setup.get(name) or ""), str(header[name])
        if differ(served, profiled):
            text = f"{options.campaign}: {name}: measured on {served[:40]!r}, the profile is of {profiled[:40]!r}"
            if not options.force:
                raise InputError(f"{text}; --force compares all the same")
            warnings.append(f"FORCED: {text}")
    anchors = {key: throughputs([each.run for each in runs]) for key, runs in campaign.anchors.items()}
    return _Sources(campaign, recorded(trace), profile, title, [*warnings, *_changed(options, campaign)], anchors)


def _changed(options: ValidateOptions, campaign: Campaign) -> list[str]:
    """What to warn of where a policy's file is another one than was measured, and that is forced."""
    files = policy_files(options.policies or campaign.manifest.policy_files)
    try:
        check_files(options.campaign / MANIFEST, campaign.manifest, files)
    except InputError as error:
        if not options.force:
            raise InputError(f"{error}; --force compares all the same") from None
        return [f"FORCED: {error}"]
    return []


def _wanted(options: ValidateOptions, campaign: Campaign) -> list[PointKey]:
    """The points that there must be: those named, else all of the manifest."""
    known = campaign.manifest.points
    if options.policies and options.concurrencies:
        datasets = options.datasets or tuple(dict.fromkeys(key.dataset for key in known))
        return [PointKey(p, d, c) for d in datasets for c in options.concurrencies for p in options.policies]
    kept = [
        key
        for key in known
        if (not options.policies or key.policy in options.policies)
        and (not options.concurrencies or key.concurrency in options.concurrencies)
        and (not options.datasets or key.dataset in options.datasets)
    ]
    if not kept:
        raise InputError(f"{options.campaign}: none of its {len(known)} points is of these policies, C and datasets")
    return kept


def _compared(
    sources: _Sources, costs_of: CostsOf, key: PointKey, options: ValidateOptions, profiled: Seen
) -> Compared:
    runs = sources.campaign.runs[key]
    served = [own_trace(served_path(sources.campaign.folder / each.about.name), each) for each in runs]
    cpu, loops = slowness(runs, sources.profile.header), tuple(loop_us(each.about.origin) for each in runs)
    # what the costs know already is no part of the gap
    slower = [1.0 if options.costs in OF_RUNS_CPU else each for each in cpu]
    found = compare(runs, sources.recorded, list(map(costs_of, runs)), options.percentiles, served, slower)
    trace = sources.recorded.trace
    rows = [sources.recorded.rows[name] for name in runs[0].about.request_ids]
    datasets = {trace.requests[row].dataset for row in rows} if key.dataset == ALL else {key.dataset}
    return replace(found, held_out=profiled.held_out(key, datasets), cpu=cpu, loop_us=loops)


def _decided_otherwise(sources: _Sources) -> list[str]:
    """What to say of points that were not foretold where policies decided by another profile than this one."""
    own = file_sha256(Path(sources.profile.path))
    origins = [each.about.origin for runs in sources.campaign.runs.values() for each in runs]
    # what runs do not say is no difference
    others = {str(origin.get("profile") or "unnamed") for origin in origins if (origin.get(DECIDED_BY) or own) != own}
    return [
        f"policies that look at costs decided by another profile ({name}) than {sources.profile.path}: "
        "by its prices they may choose otherwise"
        for name in sorted(others)
    ]


def _warnings(outcome: Outcome, sources: _Sources) -> list[str]:
    told = [f"missing: {count} repeats of {key}" for key, count in outcome.missing.items()]
    other = sum(point.other_outputs for point in outcome.points)
    if other:
        told.append(f"{other} measured outputs are longer or shorter than the recorded ones")
    apart = [str(point.key) for point in outcome.points if not point.agreement.same_steps]
    if apart:
        told.append(f"{len(apart)} points were not foretold step by step: {', '.join(apart)}")
        told += _decided_otherwise(sources)
    for key, speeds in sources.anchors.items():
        drift = max(speeds) / min(speeds) - 1
        if drift > DRIFT:
            told.append(f"drift: the anchor {key} varies by {drift:.1%} over {len(speeds)} sessions")
    return told


def _write(
    options: ValidateOptions, sources: _Sources, outcome: Outcome, found: Sequence[Check], warnings: Sequence[str]
) -> None:
    summaries = groups(outcome.points)
    shown = tables(outcome, found, summaries)
    title = f"Simulated against measured: {sources.title}"
    texts = {
        DOCUMENT: as_json(_document(options, sources, outcome, found, warnings)),
        PAGE: page(title, warnings, figures(outcome.points, sources.anchors), shown),
    }
    options.output.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(options.output / name, text)
    _show(title, shown, warnings, [options.output / name for name in texts])


def _document(
    options: ValidateOptions, sources: _Sources, outcome: Outcome, found: Sequence[Check], warnings: Sequence[str]
) -> dict[str, Any]:
    manifest = sources.campaign.manifest
    return {
        "recguide_validation": FORMAT,
        "passed": all(check.passed for check in found),
        "checks": [asdict(check) for check in found],
        "warnings": list(warnings),
        "missing": [{**key._asdict(), "repeats": count} for key, count in outcome.missing.items()],
        "summary": {name: asdict(each) for name, each in groups(outcome.points).items()},
        "points": [asdict(point) | {"key": point.key._asdict()} for point in outcome.points],
        "rankings": [
            {"dataset": dataset, "concurrency": count, **asdict(each)}
            for (dataset, count), each in outcome.rankings.items()
        ],
        "frontiers": [
            {"dataset": dataset, "policy": policy, "simulated": ours, "measured": theirs, "error": error}
            for (dataset, policy), (ours, theirs, error) in outcome.frontiers.items()
        ],
        "crossovers": [
            {"dataset": dataset, "policy": policy, **asdict(each), "octaves": each.octaves}
            for (dataset, policy), each in outcome.crossings.items()
        ],
        "anchors": [{**key._asdict(), "throughputs": speeds} for key, speeds in sources.anchors.items()],
        "campaign": {"repeats": manifest.repeats, "sessions": manifest.sessions, "setup": dict(manifest.setup)},
        "trace": asdict(sources.recorded.trace.provenance),
        "profile": dict(sources.profile.header),
        "thresholds": asdict(options.thresholds),
    }


def _show(title: str, shown: Sequence[Rows], warnings: Sequence[str], paths: Sequence[Path]) -> None:
    out, words = screen(400), notes()
    for rows in reversed(shown[:4]):
        table = Table(
            *rows.heads, title=rows.title, box=None, pad_edge=False, header_style="bold", title_justify="left"
        )
        for cells in rows.cells:
            table.add_row(*cells)
        out.print(table)
    for path in paths:
        out.print(str(path), highlight=False, soft_wrap=True)
    for warning in warnings:
        words.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
    words.print(title, highlight=False, soft_wrap=True)
