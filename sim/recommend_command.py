"""The command `recguide recommend`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recguide.sim.config import named_path
from recguide.traces.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from recguide.sim.slo import Verdict
    from recguide.sim.tiers import Tier

FILES = ("policy.json", "vllm.json", "sglang.json")
GRID_SHARE = 0.01
"""Share of the rounds from which a block size counts as used: each one has CUDA graphs of its own."""


def recommend(
    results: Annotated[
        Path, typer.Argument(parser=named_path, metavar="RESULTS", help="The folder of a sweep.")
    ] = Path("results"),
    slo: Annotated[
        list[str] | None, typer.Option(help="ttft:MS, tpot:MS or e2el:MS, as in vLLM's --goodput. May be repeated.")
    ] = None,
    attainment: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of requests that must keep them.")] = 0.9,
    trace: Annotated[list[str] | None, typer.Option(help="With --profile: sweep into RESULTS first.")] = None,
    profile: Annotated[str | None, typer.Option(help="With --trace: sweep into RESULTS first.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Of that sweep, as for `recguide sweep`. May be repeated.")
    ] = None,
    max_concurrency: Annotated[
        list[str] | None,
        typer.Option("--max-concurrency", "--concurrency", help="Of that sweep: requests in flight, with commas."),
    ] = None,
    request_rate: Annotated[list[str] | None, typer.Option(help="Of that sweep: requests per second.")] = None,
    num_prompts: Annotated[
        int | None, typer.Option("--num-prompts", "--num-requests", min=1, help="Of that sweep; default: all.")
    ] = None,
    cross_model: Annotated[bool, typer.Option("--cross-model", help="Of that sweep: allow two models.")] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "--output",
            parser=named_path,
            metavar="FOLDER",
            help="Gets policy.json, vllm.json, sglang.json; default: RESULTS.",
        ),
    ] = None,
) -> None:
    """Find the fastest policy whose requests keep a service level, and write it down for servers."""
    from recguide.sim.figures import parse_goodput
    from recguide.sim.recommendation import as_policy, as_sglang, as_vllm, tiers_of
    from recguide.sim.slo import best_of, closest_of, read_sweep, verdicts
    from recguide.sim.sweep import place_of
    from recguide.sim.tables import screen
    from recguide.traces.checks import require_folder
    from recguide.traces.documents import write_json

    levels = _named(parse_goodput, slo or [])
    options: dict[str, Any] = {"policy": policy, "max-concurrency": max_concurrency, "request-rate": request_rate}
    options |= {"num-prompts": num_prompts, "cross-model": cross_model}
    _check_together(trace, profile, options)
    folder = output_dir or results
    require_folder(folder, "--output-dir" if output_dir else "RESULTS")
    if trace and profile:
        _sweep(trace, profile, results, options)
    document = read_sweep(results)
    found = verdicts(results, document["points"], levels)
    best = best_of(found, attainment)
    if best is None:
        near = closest_of(found)
        typer.echo(
            f"no policy keeps {_said(levels)} for {attainment:.0%} of the requests; the closest: "
            f"{place_of(near.point)}, {near.attainment:.1%}",
            err=True,
        )
        raise typer.Exit(1)
    tiers = tiers_of(found, attainment)
    about = {"recommended": _recommended(best), "slo_ms": levels, "attainment": attainment, **_origin(document)}
    folder.mkdir(parents=True, exist_ok=True)
    contents = (as_policy(tiers, about), as_vllm(tiers), as_sglang(tiers))
    for name, content in zip(FILES, contents, strict=True):
        write_json(folder / name, content)
    _print(screen(), found, best, tiers, attainment, f"{_said(levels)}, for {attainment:.0%} of the requests")
    if document.get("cross_model"):
        typer.echo("warning: CROSS-MODEL results: acceptance and costs are of two models", err=True)
    for warning in document.get("warnings", ()):
        typer.echo(f"warning: {warning}", err=True)
    for name in FILES:
        typer.echo(folder / name)


def _named(parse: Any, slo: Sequence[str]) -> dict[str, float]:  # noqa: ANN401 - a function imported late
    try:
        levels: dict[str, float] = parse(slo)
    except InputError as error:
        raise InputError(str(error).replace("goodput", "slo", 1)) from None
    if not levels:
        raise InputError("slo: found none, allowed: at least one of ttft:MS, tpot:MS and e2el:MS")
    return levels


def _check_together(trace: Sequence[str] | None, profile: str | None, options: Mapping[str, Any]) -> None:
    if (trace is None) != (profile is None):
        raise InputError("trace, profile: found one of them, allowed: both, or none")
    given = [name for name, value in options.items() if value]
    if given and trace is None:
        raise InputError(f"{given[0]}: found without trace and profile, whose sweep it is about")


def _sweep(trace: Sequence[str], profile: str, folder: Path, options: Mapping[str, Any]) -> None:
    """Run `recguide sweep`; its table goes where words go."""
    import sys
    from contextlib import redirect_stdout

    from recguide.sim.cli import app

    words = [word for name in trace for word in ("--trace", name)]
    for name, value in options.items():
        given = value if isinstance(value, list) else [value] if value else []
        words += [word for each in given for word in ([f"--{name}"] if each is True else [f"--{name}", str(each)])]
    with redirect_stdout(sys.stderr):
        app(["sweep", *words, "--profile", profile, "--output-dir", str(folder)], standalone_mode=False)


def _said(levels: Mapping[str, float]) -> str:
    return " and ".join(f"{name.upper()} <= {limit:g} ms" for name, limit in levels.items())


def _recommended(best: "Verdict") -> dict[str, Any]:
    """The policy, the load it keeps the levels at, and the block sizes that it uses."""
    sizes = [
        int(name.rpartition("_")[2])
        for name, share in best.point.items()
        if name.startswith("block_share_") and float(share or 0) >= GRID_SHARE
    ]
    return {
        "policy": best.policy,
        "max_concurrency": best.concurrency,
        "request_rate": best.level.rate or None,
        "block_sizes": sorted(size for size in sizes if size > 1),
        "output_throughput": best.tokens_per_s,
        "request_goodput": best.goodput,
        "attainment": best.attainment,
    }


def _origin(document: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("model", "weights_sha256", "adapter_sha256")
    trace, profile = document["trace"], document["profile"]
    origin = {"model": trace["model"], "weights_sha256": trace["weights_sha256"], "gpu": profile["gpu"]}
    made_of = {"trace": {key: trace.get(key) for key in keys}, "profile": {key: profile.get(key) for key in keys}}
    return {**origin, "provenance": {**made_of, "options": document["options"], "warnings": document["warnings"]}}


def _print(
    console: Any,  # noqa: ANN401 - rich is imported late
    found: Sequence["Verdict"],
    best: "Verdict",
    tiers: Sequence["Tier"],
    attainment: float,
    title: str,
) -> None:
    console.print(f"{title}; the best point of each policy, dim where it does not keep them", highlight=False)
    console.print(_table(found, best, attainment))
    sizes = _recommended(best)["block_sizes"]
    grid = f", blocks {', '.join(map(str, sizes))}" if sizes else ""
    flight = f" at {best.concurrency} in flight" if best.concurrency else ""
    rate = f" at {best.level.rate:g} requests/s" if best.level.rate else ""
    console.print(f"best: {best.policy}{flight}{rate}{grid}", highlight=False)
    ranges = "; ".join(
        f"{tier.low}-{tier.high}: {f'B = {tier.block_size}' if tier.block_size > 1 else 'AR'}" for tier in tiers
    )
    console.print(f"fixed blocks by running requests: {ranges}", highlight=False)


def _table(found: Sequence["Verdict"], best: "Verdict", attainment: float) -> "Table":
    """The best point of each policy, or the one closest to the levels where none keeps them."""
    from rich.table import Table

    from recguide.sim.slo import best_of, closest_of

    table = Table()
    # the one column that may be broken: figures may not
    table.add_column("policy", overflow="fold")
    for heading in ("load", "tokens/s", "kept %", "good req/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in dict.fromkeys(verdict.policy for verdict in found if verdict.deployable):
        mine = [verdict for verdict in found if verdict.policy == name]
        kept = best_of(mine, attainment)
        shown = kept or closest_of(mine)
        style = "bold" if shown is best else "dim" if kept is None else ""
        cells = (f"{shown.tokens_per_s:,.0f}", f"{100 * shown.attainment:.1f}", f"{shown.goodput:,.2f}")
        table.add_row(name, str(shown.level), *cells, style=style)
    return table
