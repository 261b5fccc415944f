"""`recguide bench match`: whether policies give the text of one-token decoding, and where not, how close it was."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from recguide.engine.shared_options import DTYPES, MergeDrafts, parse_block_sizes, whole_numbers
from recguide.traces.checks import require, require_place

DEFAULT = ("ar", "fixed:8", "fixed:16", "fixed:32", "recipe", "overlap:B=16")


@dataclass(frozen=True, slots=True)
class MatchOptions:
    """The command line, parsed and checked."""

    model: str
    adapter: str | None
    merge_drafts: bool | None
    policy: tuple[str, ...]
    profile: str | None
    batching: str
    block_sizes: tuple[int, ...]
    outputs: tuple[Path, ...]
    dataset_path: tuple[Path, ...]
    limit: int | None
    output_len: int
    levels: tuple[int, ...]
    requests_each: int | None
    output: Path
    time_limit: float
    dtype: str
    device: str


def match(
    model: Annotated[str, typer.Argument(help="smollm2-135m, a directory, or an id in the local cache")],
    dataset_path: Annotated[list[Path], typer.Option(help="JSON lines with prompts; repeatable")],
    output: Annotated[Path, typer.Option(help="the JSON file to write")],
    policy: Annotated[list[str] | None, typer.Option(help="name and options, docs/policies.md; repeatable")] = None,
    outputs: Annotated[
        list[Path] | None,
        typer.Option(help="a .figures.json of recguide bench sglang, whose outputs are compared, too; repeatable"),
    ] = None,
    adapter: Annotated[str | None, typer.Option(help="adapter file, or the name of a shipped one")] = None,
    merge_drafts: MergeDrafts = None,
    profile: Annotated[str | None, typer.Option(help="of this GPU and model, for policies that look at costs")] = None,
    batching: Annotated[str, typer.Option(help="of unequal blocks: bucket, bucket:oldest, pad, ragged")] = "bucket",
    block_sizes: Annotated[str, typer.Option(help="block sizes that rounds may have")] = "4,8,16,32",
    limit: Annotated[int | None, typer.Option(min=1, help="prompts of each dataset; default: all")] = None,
    output_len: Annotated[int, typer.Option(min=1, help="output tokens of a request at most")] = 256,
    max_concurrency: Annotated[str, typer.Option(help="requests in flight, a list with commas")] = "1,8,32",
    requests_each: Annotated[
        int | None, typer.Option(min=1, help="requests of a run for each place in flight; default: all")
    ] = None,
    time_limit: Annotated[float, typer.Option(min=0, help="begin no further run after so many seconds")] = 3600.0,
    dtype: Annotated[str, typer.Option(help="bf16 or fp32")] = "bf16",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Serve prompts under policies, and compare every output with that of one-token decoding, one request at a time.

    With --outputs those of another server are compared as well, and without --policy those alone.

    Data: a table on stdout, a row for each run, and the file, which is there after each run and says whether it is
    complete. Where an output parts from the reference, both are read again with the same tokens before them. Exits 1
    where the logits of the two tokens are further apart there than noise explains, and 75 where time came first.
    """
    require(dtype in DTYPES, "--dtype", dtype, " or ".join(DTYPES))
    require(not (outputs and limit), "--limit", limit, "nothing beside --outputs, whose rows count all prompts")
    require_place(output, "--output")
    options = MatchOptions(
        model=model,
        adapter=adapter,
        merge_drafts=merge_drafts,
        policy=tuple(policy or (() if outputs else DEFAULT)),
        profile=profile,
        batching=batching,
        outputs=tuple(outputs or ()),
        block_sizes=parse_block_sizes(block_sizes),
        dataset_path=tuple(dataset_path),
        limit=limit,
        output_len=output_len,
        levels=whole_numbers(max_concurrency, "--max-concurrency"),
        requests_each=requests_each,
        output=output,
        time_limit=time_limit,
        dtype=dtype,
        device=device,
    )
    require(len(set(options.policy)) == len(options.policy), "--policy", ", ".join(options.policy), "each one once")

    from recguide.engine.bench_match import run

    raise typer.Exit(run(options))
