"""`recguide record`: from prompts to dense traces. Options are checked here; engine/record_run.py does the work."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from recguide.engine.shared_options import DTYPES, parse_block_sizes
from recguide.traces.checks import require


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, parsed and checked."""

    model: str
    paths: tuple[Path, ...]
    output: Path
    adapter: str | None
    limit: int | None
    seed: int | None
    max_output_tokens: int
    max_context: int | None
    block_sizes: tuple[int, ...]
    dtype: str
    device: str
    shard: tuple[int, int]
    with_token_ids: bool

    @property
    def into_folder(self) -> bool:
        """Whether the output is a folder with one file a dataset."""
        return self.output.is_dir() or self.output.suffix != ".parquet"

    @property
    def shard_name(self) -> str:
        """The share of the prompts in file names, "1of2"; empty for all of them."""
        return "" if self.shard == (1, 1) else "{}of{}".format(*self.shard)

    @property
    def command(self) -> str:
        """The command as provenance keeps it: what was recorded, without where files lay."""
        given = {
            "--dataset-path": " --dataset-path ".join(path.name for path in self.paths),
            "--adapter": self.adapter and Path(self.adapter).name,
            "--limit": self.limit,
            "--seed": self.seed,
            "--max-output-tokens": self.max_output_tokens,
            "--max-context": self.max_context,
            "--block-sizes": ",".join(map(str, self.block_sizes)),
            "--dtype": self.dtype,
            "--shard": "{}/{}".format(*self.shard) if self.shard_name else None,
        }
        words = [f"{name} {value}" for name, value in given.items() if value is not None]
        return " ".join(["recguide record", Path(self.model).name, *words])


def record(
    model: Annotated[str, typer.Argument(help="smollm2-135m or a Hugging Face directory")],
    dataset_path: Annotated[list[Path], typer.Option(help="JSON lines with prompts; may be given several times")],
    output: Annotated[Path, typer.Option(help="a .parquet file, or a folder for one file a dataset")],
    adapter: Annotated[str | None, typer.Option(help="adapter file, or the name of a shipped one")] = None,
    limit: Annotated[int | None, typer.Option(help="prompts of each dataset at most")] = None,
    seed: Annotated[int | None, typer.Option(help="draw those prompts at random, not the first ones")] = None,
    max_output_tokens: Annotated[int, typer.Option(help="output tokens of a request at most")] = 512,
    max_context: Annotated[int | None, typer.Option(help="prompt and output tokens; default: the model's")] = None,
    block_sizes: Annotated[str, typer.Option(help="block sizes to record, ascending")] = "4,8,16,32",
    dtype: Annotated[str, typer.Option(help="fp32 (exact) or bf16 (drops ties)")] = "fp32",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    shard: Annotated[str, typer.Option(help="i/n: the i-th of n shares of the prompts, i from 1")] = "1/1",
    with_token_ids: Annotated[bool, typer.Option(help="store prompt and output token ids too")] = False,
) -> None:
    """Record dense traces: what a draft from every output position would achieve, at every block size, in both views.

    Data: on stdout, a line for each file written, with its requests and output tokens. An interrupted run goes on from
    the parts it finished when the same command is given again.
    """
    options = Options(
        model=model,
        paths=tuple(dataset_path),
        output=output,
        adapter=adapter,
        limit=limit,
        seed=seed,
        max_output_tokens=max_output_tokens,
        max_context=max_context,
        block_sizes=parse_block_sizes(block_sizes),
        dtype=dtype,
        device=device,
        shard=parse_shard(shard),
        with_token_ids=with_token_ids,
    )
    require(limit is None or limit >= 1, "--limit", limit, "1 or more")
    require(max_output_tokens >= 1, "--max-output-tokens", max_output_tokens, "1 or more")
    require(dtype in DTYPES, "--dtype", dtype, " or ".join(DTYPES))
    require(output.parent.is_dir(), "--output", str(output), "a path in a folder that is there")

    from recguide.engine.record_run import run

    for path, trace in run(options):
        tokens = sum(request.output_tokens for request in trace.requests)
        typer.echo(f"{path}\t{len(trace.requests)} requests\t{tokens} output tokens")


def parse_shard(text: str) -> tuple[int, int]:
    """Index (from 1) and number of shares from a text such as ``1/2``."""
    words = text.split("/")
    fits = len(words) == 2 and all(word.isdecimal() for word in words) and 1 <= int(words[0]) <= int(words[1])
    require(fits, "--shard", text, "i/n with 1 <= i <= n, as in 1/2")
    return int(words[0]), int(words[1])
