"""The steps behind `recguide reproduce`: from names of tables to a page, a JSON file and tables on the screen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console

from recguide.sim.costs import Profile, read_profile, resolve_profile
from recguide.sim.paper import heldout_page
from recguide.sim.paper.acceptance import NOTE, model_name, paper_trace
from recguide.sim.paper.b200 import at_the_edge, forwards_alone, lean_host_ms, profile_of
from recguide.sim.paper.entries import Section
from recguide.sim.paper.heldout import gains_of, held_out
from recguide.sim.paper.page import document, page, table_of
from recguide.sim.paper.published import MODELS
from recguide.sim.paper.sections import NAMES, Study, section
from recguide.sim.paper.subjects import Subject, recorded_subject
from recguide.sim.sweep_run import check_folder
from recguide.sim.tables import notes
from recguide.traces.documents import as_json, write_text
from recguide.traces.errors import InputError
from recguide.traces.files import read_traces

HELD_OUT = "heldout"
WIDTH = 160
FILES = ("reproduce.html", "reproduce.json")
SERVED, CALIBRATED = 0, 1
"""Seeds of the synthetic requests that are served, and of those that policies are fitted to."""


def run_reproduce(wanted: Sequence[str], folder: Path, traces: Sequence[str], profile: str, requests: int) -> None:
    """Compute what is asked for, print it, write both files."""
    names = chosen(wanted)
    check_folder(folder)
    words = notes()
    recorded = recorded_study(traces, profile)
    sections: list[Section] = []
    for model in MODELS if set(names) & set(NAMES) else ():
        study = study_of(model, requests, recorded)
        for name in [name for name in names if name in NAMES]:
            sections.append(section(name, study))
            if any(entry.target for entry in sections[-1].entries) or sections[-1].claims:
                Console(width=WIDTH).print(table_of(sections[-1]))
    gains = gains_of(held_out(recorded.whole, recorded.costs)) if HELD_OUT in names and recorded else {}
    about = about_of(requests, recorded)
    label = recorded.label if recorded else ""
    extra, more = "", {}
    if gains:
        Console(width=WIDTH).print(heldout_page.table_of(gains, label))
        extra, more = heldout_page.html(gains, label, HELD_OUT), {HELD_OUT: heldout_page.figure(gains)}
    told = as_json(document(sections, about, heldout_page.plain(gains) if gains else None))
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in zip(FILES, (page(sections, about, extra, more), told), strict=True):
        write_text(folder / name, content)
        typer.echo(folder / name)
    words.print(
        "\n".join([said(sections), *(heldout_page.claims(gains) if gains else [])]), highlight=False, soft_wrap=True
    )


def chosen(wanted: Sequence[str]) -> list[str]:
    """Names of tables, in the paper's order; ValueError for one that there is not."""
    for name in wanted:
        if name not in (*NAMES, HELD_OUT, "all"):
            raise InputError(f"reproduce: found {name!r}, allowed: {', '.join(NAMES)}, {HELD_OUT}, all")
    return [name for name in (*NAMES, HELD_OUT) if not wanted or "all" in wanted or name in wanted]


def study_of(model: str, requests: int, recorded: Subject | None) -> Study:
    """A model of the paper, synthetic on B200."""
    profile = read_profile(resolve_profile(f"{model_name(model)}-b200"))
    served, fitted = (paper_trace(model, requests, seed) for seed in (SERVED, CALIBRATED))
    seen = forwards_alone(model).costs()
    subject = Subject(
        f"{model_name(model)}, synthetic, B200",
        model,
        served,
        fitted,
        profile.costs(),
        seen,
        lean_costs=profile_of(model, lean_host_ms(model)).costs(),
        unadapted=paper_trace(model, requests, SERVED, adapter=False, grid=(16,)),
    )
    return Study(subject, [edge_of(subject, profile, side) for side in (-1, 1)], recorded)


def edge_of(subject: Subject, profile: Profile, side: int) -> Subject:
    """The same where everything that its profiles infer, a lean host's included, lies at one edge of its band."""
    model = subject.model or ""
    lean = profile_of(model, lean_host_ms(model))
    return replace(subject.priced(at_the_edge(profile, side).costs()), lean_costs=at_the_edge(lean, side).costs())


def recorded_study(traces: Sequence[str], profile: str) -> Subject | None:
    """Recorded requests on a profiled GPU, unless none are named."""
    if not traces:
        return None
    read = read_profile(resolve_profile(profile))
    trace = read_traces(traces)
    return recorded_subject(f"{trace.provenance.model}, recorded, {read.header['gpu']}", trace, read.costs())


def about_of(requests: int, recorded: Subject | None) -> Mapping[str, str]:
    """What the page says at its top."""
    return {
        "paper": "RecGuide, Tables 1 to 6 and Figures 2, 3 and 5",
        "ours": f"NLD-8B and 14B on B200. {NOTE}; {requests} requests of each benchmark",
        "costs": "published forward times; the host's, branches' and AR's times are inferred (nld-8b-b200.csv)",
        "recorded": recorded.label if recorded else "none",
        "mean of benchmarks": "gsm8k, math500, aime2025, humaneval, mbpp, livecodebench, gpqa, ifeval; recorded traces "
        "have mmlu-stem in GPQA's place, and mt-bench is left out of means",
        "kinds": "input: taken from the paper; fitted: the synthetic texts were fitted to it; predicted: neither; "
        "reading: again, under another reading of the paper, and not counted; not in the paper: ours alone",
        "readings": "C counts requests in flight (Tables 4 and 6, Figure 5). Those of padding (Table 6), rho_C (Table "
        "4) and TiDAR's drafts (Table 2) that count were chosen by the words of the paper and its authors' "
        "repository, but after the ones before them had missed these figures (docs/reproduce.md)",
        "bounds": "fitted: 3 points, tau 3%; predicted: tau 5%, speedup and tokens/s 10%, shares and gains 10 points",
        "band": "everything that the profile infers at the lower and the upper edge of its band",
    }


def said(sections: Sequence[Section]) -> str:
    """How much was missed."""
    missed = sum(len(one.missed) for one in sections)
    checked = sum(
        entry.target is not None and entry.target.within is not None for one in sections for entry in one.entries
    )
    claims = [claim for one in sections for claim in one.claims]
    unexplained = [f"{one.name} {one.model}: {name}" for one in sections for name in one.unexplained]
    why = f"unexplained: {'; '.join(unexplained)}" if unexplained else "the page says why"
    return (
        f"{missed} of {checked} figures miss their bounds, and {sum(not claim.holds for claim in claims)} of "
        f"{len(claims)} claims do not hold; {why}"
    )
