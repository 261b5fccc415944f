"""The command `recguide traces import`."""

from pathlib import Path
from typing import Annotated

import typer

from recguide.traces.errors import InputError


def import_trace(
    file: Annotated[Path, typer.Argument(help="vLLM's per-step acceptance, or Spec-Bench's answers.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The trace, a .parquet file.")],
    model: Annotated[str, typer.Option(help="The model that was served, as profiles name it.")],
    block_size: Annotated[
        int | None,
        typer.Option(min=2, max=32, help="Draft tokens of a step plus one; default: as found."),
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Prompt length of requests whose file does not tell it.")
    ] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip and count requests that are at fault.")] = False,
) -> None:
    """Make a sparse trace, which replays with reduced fidelity, of acceptance that another system recorded."""
    from recguide.traces.acceptance import import_acceptance
    from recguide.traces.sparse import write_sparse

    if output.suffix != ".parquet" or output.is_dir():
        raise InputError(f"output: found {output}, allowed: a file whose name ends in .parquet")
    if not model.strip():
        raise InputError(f"model: found {model!r}, allowed: a name")
    trace = import_acceptance(file, model=model, block_size=block_size, prompt_tokens=prompt_tokens, lenient=lenient)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_sparse(trace, output)
    rounds = sum(len(request.accept_lens) for request in trace.requests)
    dropped = sum(trace.dropped.values())
    typer.echo(
        f"{len(trace.requests)} requests, {rounds} rounds at block size {trace.block_size}, {dropped} dropped", err=True
    )
    for reason, count in sorted(trace.dropped.items()):
        typer.echo(f"dropped: {count} for {reason}", err=True)
    typer.echo("reduced fidelity: only the rounds that were served are known; all others are guessed", err=True)
    typer.echo(output)
