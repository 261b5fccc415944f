"""The steps behind `recguide fit`: from a trace and a profile to a policy file, its gains, and a plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from recguide.sim.adaptive import CANDIDATES, Adaptive, write_policy
from recguide.sim.costs import Profile, read_profile, resolve_profile
from recguide.sim.crossfit import FOLDS, WAYS, Times, crossfit, gains
from recguide.sim.fit_plots import plot_policy
from recguide.sim.fitting import CONCURRENCIES, ENOUGH, Calibration, Settings, calibrate, checked, fit_rows
from recguide.sim.guards import check_sources, settle
from recguide.sim.history import Signal
from recguide.sim.joint_file import write_joint
from recguide.sim.joint_fit import fit_joint
from recguide.sim.lowload import with_low_load
from recguide.sim.rounds import Rounds, rounds_of
from recguide.sim.sweep import only_datasets
from recguide.sim.sweep_run import parse_concurrencies, title_of
from recguide.sim.tables import notes
from recguide.traces.checks import require, require_place
from recguide.traces.dense import DenseTrace
from recguide.traces.errors import InputError
from recguide.traces.files import read_traces
from recguide.traces.sparse import is_reduced

SAID = {
    "in_sample": "on the very requests (too good)",
    "by_prompt": f"on other prompts ({FOLDS} folds)",
    "by_dataset": "on other datasets",
}


@dataclass(frozen=True, slots=True)
class Fit:
    """The options of the command."""

    trace: Sequence[str]
    profile: str
    output: Path
    max_concurrency: Sequence[str]
    block_sizes: str | None
    dataset: Sequence[str]
    signal: Signal
    bins: int
    seed: int
    joint: Path | None
    plot: Path
    cross_model: bool
    force: bool


def run_fit(wanted: Fit) -> None:
    """Fit, write the policy file and the plot, print the gains."""
    words = notes()
    _check_outputs(wanted)
    loads = parse_concurrencies(wanted.max_concurrency) or list(CONCURRENCIES)
    profile = read_profile(resolve_profile(wanted.profile))
    trace = only_datasets(read_traces(wanted.trace), wanted.dataset)
    if is_reduced(trace):
        raise InputError(f"trace: found {trace.provenance.note}, allowed: dense traces, which have entropies")
    title = title_of(trace, profile, wanted.cross_model)
    warnings = settle(check_sources(trace, profile), wanted.force)
    sizes = parse_sizes(wanted.block_sizes, trace.provenance.block_sizes)
    settings = Settings(loads, sizes, wanted.signal, wanted.bins, wanted.seed)
    fitted, times = fit_trace(trace, profile, settings)
    write_policy(fitted, wanted.output)
    plot_policy(fitted, title, wanted.plot)
    Console().print(_table(fitted, fitted.provenance["gain"], title))
    for warning in warnings:
        words.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
    words.print(_remarks(fitted, times), highlight=False, soft_wrap=True)
    written = [wanted.output, wanted.plot]
    if wanted.joint is not None:
        write_joint(fit_joint(trace, profile.costs(), fitted), wanted.joint)
        written.append(wanted.joint)
    for path in written:
        typer.echo(path)


def _check_outputs(wanted: Fit) -> None:
    # a fit takes minutes: what cannot be written is said before it
    taken: set[Path] = set()
    for option, path in (("--output", wanted.output), ("--plot", wanted.plot), ("--joint", wanted.joint)):
        require_place(path, option)
        if path is not None:
            require(path.resolve() not in taken, option, str(path), "a file of its own")
            taken.add(path.resolve())


def fit_trace(trace: DenseTrace, profile: Profile, settings: Settings) -> tuple[Adaptive, Mapping[str, Times]]:
    """The policy of the whole trace, its gains among its provenance, and the times behind them."""
    rounds, costs = rounds_of(trace), profile.costs()
    datasets = [request.dataset for request in trace.requests]
    rows = calibrate(rounds, datasets, checked(rounds, settings), settings.signal, settings.seed)
    check_enough(rounds, rows, settings)
    everyone = np.ones(len(datasets), bool)
    fitted = with_low_load(trace, costs, fit_rows(trace, rounds, costs, rows, everyone, settings))
    times = crossfit(trace, rounds, costs, rows, settings)
    found = gains(fitted, trace.requests, times)
    weights = {"weights_sha256": profile.header["weights_sha256"], "created": profile.header["created"]}
    profiled = {**fitted.provenance["profile"], **weights}
    return replace(fitted, provenance={**fitted.provenance, "profile": profiled, "gain": found}), times


def check_enough(rounds: Rounds, rows: Calibration, settings: Settings) -> None:
    """ValueError that says what is needed, where there are too few prompts or rounds to fit to."""
    # a round is walked through once at each candidate, and once in the mixture
    found, prompts = len(rows.s) // (len(settings.candidates) + 1), len(rounds.first)
    needed, least = ENOUGH * settings.bins, 2 * FOLDS
    if found < needed or prompts < least:
        raise InputError(
            f"trace: found {found} rounds with another one before them, of {prompts} requests; needed: {needed} "
            f"({ENOUGH} for each of {settings.bins} bins, --bins) of at least {least} requests: record more prompts, "
            "or longer outputs"
        )


def parse_sizes(text: str | None, recorded: Sequence[int]) -> list[int]:
    """Block sizes from a list with commas, or the paper's as far as they were recorded, or all of them."""
    if text is None:
        return [size for size in CANDIDATES if size in recorded] or list(recorded)
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) in recorded for part in parts):
        raise InputError(f"block-sizes: found {text!r}, allowed: of {', '.join(map(str, recorded))}, with commas")
    return sorted({int(part) for part in parts})


def _table(fitted: Adaptive, found: Mapping[str, Any], title: str) -> Table:
    table = Table(title=f"{title}\ngain over the best fixed block size at full batches, % (95% interval)")
    table.add_column("C", justify="right")
    for way in WAYS:
        table.add_column(SAID[way], justify="right")
    for load in fitted.loads:
        cells = [_percent(found[way][str(load.concurrency)]) if way in found else "-" for way in WAYS]
        table.add_row(str(load.concurrency), *cells)
    return table


def _percent(gain: Mapping[str, float]) -> str:
    return f"{100 * gain['gain']:+.1f} ({100 * gain['low']:+.1f}, {100 * gain['high']:+.1f})"


def _remarks(fitted: Adaptive, times: Mapping[str, Times]) -> str:
    low = fitted.low_load
    overlap = (
        f"overlap: B = {low.block_size}, delta = {low.delta:g}, up to {low.switch} running requests"
        if low
        else "overlap: the profile has no rows of kind 'rows', so that no switch point was fitted"
    )
    missing = [SAID[way] for way in WAYS if way not in times]
    return "\n".join([overlap, *(f"not tried {way}: there is one alone" for way in missing)])
