"""The command `recguide timeline`."""

from pathlib import Path
from typing import Annotated

import typer

from recguide.sim.config import named_path


def timeline(
    trace: Annotated[list[str], typer.Option(help="A trace: file, folder, or shipped name. May be repeated.")],
    profile: Annotated[str, typer.Option(help="A GPU profile: file, or shipped name.")],
    policy: Annotated[str, typer.Option(help="The policy, named as for `recguide sweep`.")] = "fixed:16",
    max_concurrency: Annotated[
        int, typer.Option("--max-concurrency", "--concurrency", min=1, help="Requests in flight.")
    ] = 8,
    num_prompts: Annotated[
        int, typer.Option("--num-prompts", "--num-requests", min=1, help="Requests to serve; each has a track.")
    ] = 32,
    dataset: Annotated[list[str] | None, typer.Option(help="Only requests of this dataset. May be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order in which requests are sent.")] = 0,
    request_rate: Annotated[float | None, typer.Option(help="Requests per second, at random times.")] = None,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens of one prefill step.")] = 2048,
    prefill_chunk: Annotated[
        int | None, typer.Option(min=1, help="Split prompts into steps of so many tokens.")
    ] = None,
    batching: Annotated[str, typer.Option(help="Of unequal blocks, as for `recguide sweep`.")] = "bucket",
    output: Annotated[
        Path, typer.Option("--output", "-o", parser=named_path, metavar="FILE", help="The file to write.")
    ] = Path("timeline.json"),
    cross_model: Annotated[
        bool, typer.Option("--cross-model", help="Allow the acceptance of one model on the costs of another.")
    ] = False,
) -> None:
    """Simulate one run, and write what happened when, for https://ui.perfetto.dev or chrome://tracing."""
    # pyarrow and simpy are not needed to print the help of the commands
    from recguide.sim.catalogue import make_policy, rounds_for
    from recguide.sim.costs import read_profile, resolve_profile
    from recguide.sim.load_options import limits_of, load_of
    from recguide.sim.methods import planned_by
    from recguide.sim.scenario import Scenario
    from recguide.sim.sweep import only_datasets, run_of, serving_order
    from recguide.sim.sweep_run import title_of
    from recguide.sim.timeline import timeline as as_timeline
    from recguide.traces.checks import require_place
    from recguide.traces.documents import write_text
    from recguide.traces.files import read_traces

    require_place(output, "--output")
    options = {"request-rate": request_rate, "prefill-chunk": prefill_chunk}
    priced = read_profile(resolve_profile(profile))
    recorded = only_datasets(read_traces(trace), dataset or [])
    title, costs, rounds = title_of(recorded, priced, cross_model), priced.costs(), rounds_for(recorded, [policy])
    rules = make_policy(policy, rounds, costs)
    order = serving_order(len(recorded.requests), num_prompts, seed)
    load, limits = load_of(options, num_prompts, seed), limits_of(options, max_num_batched_tokens)
    scenario = Scenario(load, limits).checked(rounds, recorded, order)
    run = run_of(rounds, costs, policy, max_concurrency, batching, scenario)
    about = {"title": title, "policy": policy, "max_concurrency": max_concurrency, "seed": seed, "batching": batching}
    names = [request.request_id for request in recorded.requests]
    write_text(output, as_timeline(run, names, about, costs, planned_by(rules)))
    typer.echo(output)
