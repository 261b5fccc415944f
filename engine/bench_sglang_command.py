"""`recguide bench sglang`: SGLang's own decoding and this package's policies in it, one engine after the other."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from recguide.engine.shared_options import DTYPES, parse_block_sizes, whole_numbers
from recguide.traces.checks import require

BASELINES = ("sglang:ar", "sglang:ngram")
"""What SGLang does by itself: a token a forward, and drafts looked up in the text so far."""


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """The command line, parsed and checked."""

    model: str
    adapter: str | None
    merge_drafts: bool
    policy: tuple[tuple[str, tuple[int, ...]], ...]
    """Of ours, and of ``BASELINES``; and how many requests are in flight in each run."""
    profile: str | None
    batching: str
    block_sizes: tuple[int, ...]
    dataset_path: tuple[Path, ...]
    random_input_len: int
    output_len: int
    force_acceptance: str | None
    num_prompts: int | None
    requests_each: int
    least_requests: int
    warmups_each: int
    repeats: int
    ignore_eos: bool
    temperature: float
    seed: int
    max_model_len: int | None
    stream: bool
    arguments: dict[str, Any]
    """SGLang's own."""
    together: bool
    """Whether all engines start at once; they serve one after the other all the same."""
    time_limit: float
    """Seconds of each engine, its start included; of all of them where they start together."""
    result_dir: Path
    dtype: str
    device: str


def sglang(
    model: Annotated[str, typer.Argument(help="smollm2-135m, a named shape with random weights, a directory or an id")],
    result_dir: Annotated[Path, typer.Option(help="where results go, a campaign for `recguide validate`")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="as in docs/policies.md, or sglang:ar, sglang:ngram; NAME@C,C has its own concurrencies; repeatable"
        ),
    ] = None,
    adapter: Annotated[str | None, typer.Option(help="adapter file, PEFT folder, or a shipped one's name")] = None,
    merge_drafts: Annotated[
        bool,
        typer.Option(help="keep weights with the draft adapter merged, for forwards that only draft"),
    ] = False,
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
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="of the load; default: all, or 100 random ones")
    ] = None,
    max_concurrency: Annotated[str, typer.Option(help="requests in flight, a list with commas")] = "1,8,32",
    requests_each: Annotated[int, typer.Option(min=1, help="requests of a run for each place in flight")] = 4,
    least_requests: Annotated[int, typer.Option(min=1, help="requests of a run at least")] = 8,
    warmups_each: Annotated[int, typer.Option(min=0, help="requests for each place before the clock starts")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="runs of each point")] = 1,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="outputs end at --output-len alone")] = False,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="of random prompts, their order, and sampling")] = 0,
    max_model_len: Annotated[int | None, typer.Option(min=2, help="context; default: what the load needs")] = None,
    stream: Annotated[bool, typer.Option(help="whether clients see tokens as they come; else no TTFT and TPOT")] = True,
    argument: Annotated[
        list[str] | None, typer.Option("--set", help="an argument of SGLang's, NAME=VALUE in JSON; repeatable")
    ] = None,
    together: Annotated[
        bool,
        typer.Option("--together", help="start all engines at once, where the GPU has room; each serves in its turn"),
    ] = False,
    time_limit: Annotated[float, typer.Option(min=1, help="seconds of each engine, its start included")] = 3600.0,
    dtype: Annotated[str, typer.Option(help="fp32 or bf16")] = "bf16",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Serve the same closed loops with one SGLang engine after the other, each in processes of its own.

    Data: the figures as JSON on stdout, an entry a run, by the names of vLLM where it has them; each is a file in
    --result-dir, too. Runs of our policies are also measurements there, with a trace where the model said what is
    accepted: `recguide validate` compares them with the simulator. Exits 1 where an engine failed or ran out of time.
    """
    require(dtype in DTYPES, "--dtype", dtype, " or ".join(DTYPES))
    require(device in ("auto", "cpu", "cuda"), "--device", device, "auto, cpu or cuda")
    fits = result_dir.is_dir() or (result_dir.parent.is_dir() and not result_dir.exists())
    require(fits, "--result-dir", str(result_dir), "a folder, or a new name in a folder that is there")
    given = locals()
    fields = {name: given[name] for name in SglangOptions.__dataclass_fields__ if name in given}
    levels = whole_numbers(max_concurrency, "--max-concurrency")
    fields["policy"] = tuple(_point(text, levels) for text in policy or ("sglang:ar", "fixed:16"))
    fields["dataset_path"] = tuple(dataset_path or ())
    fields["block_sizes"] = parse_block_sizes(block_sizes)
    fields["arguments"] = dict(_argument(text) for text in argument or ())
    options = SglangOptions(**fields)
    _check_together(options)

    from recguide.engine.bench_sglang import run

    failed = run(options)
    raise typer.Exit(1 if failed else 0)


def _check_together(options: SglangOptions) -> None:
    forced = options.force_acceptance is not None
    beside = {"--dataset-path": options.dataset_path, "--ignore-eos": options.ignore_eos}
    for name, value in {**beside, "--temperature": options.temperature}.items():
        require(not (forced and value), name, "beside --force-acceptance", "one of them")
    names = [name for name, _ in options.policy]
    for name in names:
        known = name in BASELINES or not name.startswith("sglang:")
        require(known, "--policy", name, f"{', '.join(BASELINES)}, or one of ours")
    require(len(set(names)) == len(names), "--policy", names, "each one once")


def _point(text: str, levels: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """A policy, and its own concurrencies where it names some: ``fixed:16@1,8``."""
    name, at, own = text.rpartition("@")
    if not at or not own.replace(",", "").isdecimal():
        return text, levels
    return name, whole_numbers(own, "--policy")


def _argument(text: str) -> tuple[str, Any]:
    """An argument of SGLang's engine; what is not JSON is text."""
    name, equals, value = text.partition("=")
    require(bool(equals) and name.replace("-", "_").isidentifier(), "--set", text, "NAME=VALUE")
    try:
        return name.replace("-", "_"), json.loads(value)
    except ValueError:
        return name.replace("-", "_"), value
