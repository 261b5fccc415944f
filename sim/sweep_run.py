"""The steps behind `recguide sweep`: from its options to points, and from points to a table and a folder."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress

from recguide.sim.backends import check_backend
from recguide.sim.config import as_yaml
from recguide.sim.costs import Profile, read_profile, resolve_profile
from recguide.sim.environment import environment
from recguide.sim.fidelity import check_fidelity, fidelity_warnings, labelled
from recguide.sim.figures import Figures, parse_goodput, parse_percentiles
from recguide.sim.guards import Finding, check_points, check_sources, settle
from recguide.sim.load_options import check_stream, limits_of, load_of
from recguide.sim.reporting import FILE, page_of
from recguide.sim.results import foreign_file, write_results
from recguide.sim.scenario import Scenario
from recguide.sim.store import Store, inputs_hash, labels_of
from recguide.sim.sweep import BASELINE, Point, only_datasets, sweep, warnings_of
from recguide.sim.tables import notes, screen, table_of
from recguide.traces.checks import require_folder
from recguide.traces.dense import DenseTrace
from recguide.traces.documents import as_json
from recguide.traces.errors import InputError
from recguide.traces.files import read_traces
from recguide.traces.sparse import is_reduced

Options = Mapping[str, Any]
"""Those of the command, by the names of its parameters."""

NO_LIMIT = 0
MOST_CONCURRENT = 999_999
CONCURRENCIES = ["1,2,4,8,16,32,64,128"]
LOAD_OPTIONS = (
    "request_rate",
    "request_rate_mode",
    "burstiness",
    "arrivals",
    "time_scale",
    "lengths",
    "lenient",
    "no_stitch",
    "prefill_chunk",
    "max_num_seqs",
    "kv_page_size",
    "kv_tokens",
    "total_kv_pages",
    "prefix_reuse",
)
POINT_BY_POINT = {"trace", "profile", "policy", "max_concurrency", "request_rate"}
"""Options that decide a point by its own policy and load, or by their content."""
NO_MATTER = {"output_dir", "jobs", "backend", "cross_model", "report", "force"}
"""Options that do not decide what a point is."""


@dataclass(frozen=True, slots=True)
class _Sources:
    """What the points are made of."""

    trace: DenseTrace
    profile: Profile
    title: str
    found: list[Finding]


def run_sweep(options: Options, settings: Options) -> None:
    """Sweep, write the folder, print the table; ``settings`` are the options as `--config` reads them back."""
    words = notes()
    concurrencies, rates, scenario = _asked(options)
    sources = _read(options)
    shared = {name: value for name, value in settings.items() if name not in POINT_BY_POINT | NO_MATTER}
    # at this rate all come at once, though not as others finish
    shared["at_once"] = math.inf in rates
    inputs = inputs_hash(sources.trace, sources.profile, shared)
    store = Store(options["output_dir"], inputs, labels_of(sources.trace))
    points = _points(options, sources, concurrencies, rates, scenario, store, words)
    found = [*sources.found, *check_points(points, sources.profile.costs(), sources.trace.provenance.block_sizes)]
    warnings = [
        *fidelity_warnings(sources.trace),
        *settle(found, options["force"]),
        *warnings_of(points, len(sources.trace.requests)),
    ]
    if store.reused:
        words.print(f"{store.reused} of {len(points)} points were in {store.folder} already", highlight=False)
    paths = _write(options, settings, sources, points, warnings, store)
    _show(points, sources.title, warnings, words)
    for path in paths:
        typer.echo(path)


def _asked(options: Options) -> tuple[list[int], list[float], Scenario]:
    """Concurrencies, request rates and scenario; ValueError for whatever is wrong without looking into a file."""
    load_options = {name.replace("_", "-"): options[name] for name in LOAD_OPTIONS}
    rates = parse_rates(options["request_rate"] or [])
    load_options["request-rate"] = rates[0] if rates else None
    load = load_of(load_options, options["num_prompts"], options["seed"])
    levels = options["max_concurrency"] or (CONCURRENCIES if load.closed else [])
    percentiles, goodput = parse_percentiles([options["metric_percentiles"]]), parse_goodput(options["goodput"] or [])
    scenario = Scenario(
        load,
        limits_of(load_options, options["max_num_batched_tokens"]),
        Figures(percentiles, goodput, options["bootstrap"], options["seed"]),
        options["output_dir"] if options["save_detailed"] else None,
        options["stream"],
    )
    check_folder(options["output_dir"])
    check_backend(options["backend"])
    kept = {name: options[name.replace("-", "_")] for name in ("save-detailed", "bootstrap", "report")}
    check_stream(options["stream"], kept)
    return parse_concurrencies(levels) or [NO_LIMIT], rates, scenario


def _read(options: Options) -> _Sources:
    """Trace and profile; ValueError where they do not fit together."""
    profile = read_profile(resolve_profile(options["profile"]))
    trace = only_datasets(read_traces(options["trace"]), options["dataset"] or [])
    check_fidelity(trace, options["policy"])
    title = labelled(trace, title_of(trace, profile, options["cross_model"], options["num_prompts"]))
    found = check_sources(trace, profile)
    settle(found, options["force"])
    return _Sources(trace, profile, title, found)


def _points(
    options: Options,
    sources: _Sources,
    concurrencies: Sequence[int],
    rates: Sequence[float],
    scenario: Scenario,
    store: Store,
    words: Console,
) -> list[Point]:
    count = len({BASELINE, *options["policy"]}) * len(set(concurrencies)) * (len(set(rates)) or 1)
    with progress_on(words, count) as done:
        return sweep(
            sources.trace,
            sources.profile.costs(),
            options["policy"],
            concurrencies,
            num_prompts=options["num_prompts"],
            seed=options["seed"],
            jobs=options["jobs"] or -1,
            backend=options["backend"],
            rates=rates,
            scenario=scenario,
            batching=options["batching"],
            store=store,
            done=done,
        )


def _write(
    options: Options,
    settings: Options,
    sources: _Sources,
    points: Sequence[Point],
    warnings: Sequence[str],
    store: Store,
) -> list[Path]:
    """The folder; gives the paths of report, where there is one, and plot."""
    folder, with_report = options["output_dir"], options["report"] is not False and not options["stream"]
    told = ("seed", "num_prompts", "max_num_batched_tokens", "batching", *LOAD_OPTIONS)
    origin = about(sources.trace, sources.profile, warnings, {name: settings[name] for name in told})
    page = page_of(points, origin, sources.title, store, sources.trace, sources.profile) if with_report else None
    env = as_json(environment(sources.profile.header))
    texts = {FILE: page, "config.resolved.yaml": as_yaml(settings), "env.json": env}
    plot = write_results(folder, points, origin, sources.title, texts)
    store.keep_only(points)
    return [folder / FILE, plot] if with_report else [plot]


def _show(points: Sequence[Point], title: str, warnings: Sequence[str], words: Console) -> None:
    console = screen()
    table, hidden = table_of(points, title, console.width)
    console.print(table)
    if hidden:
        words.print(hidden, style="dim", highlight=False)
    for warning in warnings:
        words.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)


@contextmanager
def progress_on(words: Console, total: int) -> Iterator[Callable[[], None]]:
    """A line on stderr about points done and time left while a sweep runs, where somebody looks at it."""
    with Progress(console=words, transient=True, disable=not words.is_terminal) as bar:
        task = bar.add_task("points", total=total)
        yield lambda: bar.advance(task)


def parse_concurrencies(texts: Sequence[str]) -> list[int]:
    """Whole numbers of at least 1 from lists with commas."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"[0-9]+", part) or not 1 <= int(part) <= MOST_CONCURRENT:
            raise InputError(
                f"max-concurrency: found {part!r}, "
                f"allowed: whole numbers from 1 to {MOST_CONCURRENT}, with commas between"
            )
    return [int(part) for part in parts]


def parse_rates(texts: Sequence[str]) -> list[float]:
    """Requests per second from lists with commas, each once."""
    rates: dict[float, None] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        try:
            rate = float(part)
        except ValueError:
            rate = math.nan
        if not rate > 0:
            raise InputError(f"request-rate: found {part!r}, allowed: numbers above 0, or inf, with commas between")
        rates[rate] = None
    return list(rates)


def check_folder(folder: Path) -> None:
    """ValueError where results could not go, before anything is computed."""
    require_folder(folder, "output-dir")
    if (folder / "requests").exists() and not (folder / "requests").is_dir():
        raise InputError(f"output-dir: found the file {folder / 'requests'}, allowed: a folder there, or none")
    foreign = foreign_file(folder)
    if foreign is not None:
        raise InputError(f"output-dir: found {foreign} of something else, allowed: a sweep's folder, or a new one")


def title_of(trace: DenseTrace, profile: Profile, cross_model: bool, num_prompts: int | None = None) -> str:
    """GPU, model and trace; ValueError where acceptance and costs are of two models and nobody allowed that.

    ``num_prompts`` are the requests that are served, where those are not all that are recorded.
    """
    recorded, profiled = trace.provenance.model, profile.header["model"]
    count, datasets = len(trace.requests), len({request.dataset for request in trace.requests})
    all_of = num_prompts is None or num_prompts == count
    served = f"{count} requests of" if all_of else f"{num_prompts} requests drawn from {count} of"
    served += f" {datasets} datasets"
    if recorded == profiled:
        return f"{profile.header['gpu']}, {profiled}, {served}"
    if not cross_model:
        raise InputError(
            f"{profile.path}: model: found {profiled!r}, but the trace is of {recorded!r}; "
            "--cross-model allows the acceptance of one model on the costs of another"
        )
    return f"CROSS-MODEL: acceptance of {recorded}, costs of {profiled} on {profile.header['gpu']}, {served}"


def about(trace: DenseTrace, profile: Profile, warnings: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """What the points come from, for the files."""
    counts = Counter(request.dataset for request in trace.requests)
    return {
        "reduced_fidelity": is_reduced(trace),
        "cross_model": trace.provenance.model != profile.header["model"],
        "options": options,
        "warnings": list(warnings),
        "datasets": dict(sorted(counts.items())),
        "trace": asdict(trace.provenance),
        "profile": dict(profile.header),
    }
