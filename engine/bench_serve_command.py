"""`recguide bench serve`: options, named as those of `vllm bench serve` where they mean the same."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from recguide.engine.shared_options import DTYPES, MergeDrafts, parse_block_sizes
from recguide.traces.checks import require, require_place


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The command line, parsed and checked."""

    model: str
    adapter: str | None
    merge_drafts: bool | None
    policy: str
    profile: str | None
    batching: str
    block_sizes: tuple[int, ...]
    dataset_path: tuple[Path, ...]
    random_input_len: int
    output_len: int
    force_acceptance: str | None
    num_prompts: int | None
    num_warmups: int
    max_concurrency: int | None
    request_rate: float
    burstiness: float
    ignore_eos: bool
    temperature: float
    seed: int
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int
    prefill_chunk: int | None
    kv_tokens: int | None
    kv_page_size: int
    enforce_eager: bool
    goodput: tuple[str, ...]
    metric_percentiles: str
    label: str | None
    result: Path | None
    save_detailed: bool
    save_trace: Path | None
    dtype: str
    device: str


def serve(
    model: Annotated[str, typer.Option(help="smollm2-135m, a named shape with random weights, or a directory")],
    policy: Annotated[str, typer.Option(help="name and options, docs/policies.md")] = "fixed:16",
    adapter: Annotated[str | None, typer.Option(help="adapter file, or the name of a shipped one")] = None,
    merge_drafts: MergeDrafts = None,
    profile: Annotated[str | None, typer.Option(help="of this GPU and model, for policies that look at costs")] = None,
    batching: Annotated[str, typer.Option(help="of unequal blocks: bucket, bucket:oldest, pad, ragged")] = "bucket",
    block_sizes: Annotated[str, typer.Option(help="block sizes that rounds may have")] = "4,8,16,32",
    dataset_path: Annotated[list[Path] | None, typer.Option(help="JSON lines with prompts; repeatable")] = None,
    random_input_len: Annotated[int, typer.Option(min=1, help="of random prompts, where no dataset is given")] = 512,
    output_len: Annotated[
        int, typer.Option("--output-len", "--random-output-len", min=1, help="output tokens of a request at most")
    ] = 256,
    force_acceptance: Annotated[
        str | None, typer.Option(help="a trace whose requests are played: lengths, acceptance, margins, entropies")
    ] = None,
    num_prompts: Annotated[int | None, typer.Option(min=1, help="requests; default: all, or 100 random ones")] = None,
    num_warmups: Annotated[int, typer.Option(min=0, help="requests before the clock starts")] = 2,
    max_concurrency: Annotated[int | None, typer.Option(min=1, help="requests in flight")] = None,
    request_rate: Annotated[float, typer.Option(help="requests per second; inf: all at once")] = float("inf"),
    burstiness: Annotated[float, typer.Option(help="shape of Gamma gaps; 1 is Poisson")] = 1.0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="outputs end at --output-len alone")] = False,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="of random prompts, arrivals and sampling")] = 0,
    max_model_len: Annotated[int | None, typer.Option(min=2, help="context; default: what the load needs")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="requests that run at a time")] = None,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="prompt tokens of a prefill step")] = 2048,
    prefill_chunk: Annotated[int | None, typer.Option(min=1, help="split prompts into steps of so many tokens")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="tokens that the KV cache holds")] = None,
    kv_page_size: Annotated[int, typer.Option(min=1, help="tokens of a KV page")] = 16,
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", help="no CUDA graphs")] = False,
    goodput: Annotated[list[str] | None, typer.Option(help="service levels, 'ttft:500 tpot:50' in ms")] = None,
    metric_percentiles: Annotated[str, typer.Option(help="of the latencies; a list with commas")] = "99",
    label: Annotated[str | None, typer.Option(help="written into the results")] = None,
    save_result: Annotated[bool, typer.Option("--save-result", help="write a JSON file")] = False,
    result_dir: Annotated[Path, typer.Option(help="where it goes")] = Path("."),
    result_filename: Annotated[str, typer.Option(help="what it is called")] = "bench-serve.json",
    save_detailed: Annotated[bool, typer.Option("--save-detailed", help="with lists, an entry a request")] = False,
    save_trace: Annotated[Path | None, typer.Option(help="write the run as a trace that the simulator replays")] = None,
    dtype: Annotated[str, typer.Option(help="fp32 or bf16")] = "bf16",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Serve a load with the real engine, in this process, and measure it.

    Data: the figures as JSON on stdout, by the names of vLLM where it has them. A result file is there from the first
    seconds on and says whether the run is complete, so that one that is killed leaves what it had.
    """
    require(dtype in DTYPES, "--dtype", dtype, " or ".join(DTYPES))
    require(request_rate > 0, "--request-rate", request_rate, "above 0, or inf")
    require(0 < burstiness < float("inf"), "--burstiness", burstiness, "above 0")
    require(result_dir.is_dir(), "--result-dir", str(result_dir), "a folder that is there")
    given = locals()
    fields = {name: given[name] for name in ServeOptions.__dataclass_fields__ if name in given}
    fields["block_sizes"] = parse_block_sizes(block_sizes)
    fields["dataset_path"], fields["goodput"] = tuple(dataset_path or ()), tuple(goodput or ())
    fields["result"] = result_dir / result_filename if save_result or save_detailed else None
    _check_together(options := ServeOptions(**fields))

    import json

    from recguide.engine.bench_serve import run

    typer.echo(json.dumps(run(options), indent=1, allow_nan=False))


def _check_together(options: ServeOptions) -> None:
    """ValueError for options of which one makes the other meaningless."""
    forced = options.force_acceptance is not None
    require(not (forced and options.dataset_path), "--dataset-path", "beside --force-acceptance", "one of them")
    require(not (forced and options.ignore_eos), "--ignore-eos", "beside --force-acceptance", "one of them")
    require(not (forced and options.temperature), "--temperature", "beside --force-acceptance", "one of them")
    require_place(options.result, "--result-filename")
    require_place(options.save_trace, "--save-trace")
