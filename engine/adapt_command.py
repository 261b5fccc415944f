"""`recguide adapt`: from a causal language model and prompts to an adapter file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from recguide.traces.checks import require_place
from recguide.traces.errors import InputError


def say(text: str) -> None:
    """One line of progress on stderr."""
    typer.echo(text, err=True)


def adapt(
    model: Annotated[str, typer.Argument(help="smollm2-135m or a Hugging Face directory")],
    output: Annotated[Path, typer.Option(help="the adapter file (safetensors) to write")],
    prompts: Annotated[list[Path] | None, typer.Option(help="JSONL with a 'prompt' a line, to distil on")] = None,
    corpus: Annotated[list[Path] | None, typer.Option(help="distilled text (npz) to train on")] = None,
    save_corpus: Annotated[Path | None, typer.Option(help="keep the distilled text here and use it again")] = None,
    invent: Annotated[int, typer.Option(min=0, help="how many prompts the model writes itself")] = 0,
    from_adapter: Annotated[
        str | None, typer.Option(help="adapter (file, or a shipped one's name) to go on from; same ranks and shift")
    ] = None,
    seconds: Annotated[float, typer.Option(help="training time")] = 600.0,
    distil_seconds: Annotated[float, typer.Option(help="distillation time")] = 120.0,
    steps: Annotated[int, typer.Option(min=1, help="training steps at most")] = 100_000,
    shared_rank: Annotated[int, typer.Option(min=0, help="rank of the merged update; 0 freezes the base")] = 64,
    draft_rank: Annotated[int, typer.Option(min=0, help="rank of the update for draft tokens alone")] = 96,
    shifted: Annotated[bool, typer.Option(help="draft logits score the next position")] = False,
    soft: Annotated[
        float, typer.Option(min=0, max=1, help="share of the verifier's distribution in the draft loss")
    ] = 0.0,
    decay: Annotated[float, typer.Option(help="draft tokens before the loss weight falls to 1/e")] = 7.0,
    ar_weight: Annotated[float, typer.Option(min=0, help="weight of the loss that holds AR to the base")] = 1.0,
    learning_rate: Annotated[float, typer.Option()] = 1e-3,
    block_tokens: Annotated[int, typer.Option(help="draft tokens of a training row")] = 512,
    tokens_per_step: Annotated[int, typer.Option(min=1, help="tokens of a step, in each process")] = 65_536,
    max_prompt: Annotated[int, typer.Option(min=1, help="prompt tokens of a training row")] = 192,
    max_response: Annotated[int, typer.Option(min=1, help="response tokens of a training row")] = 256,
    batch: Annotated[int, typer.Option(min=1, help="requests decoded together in distillation")] = 1024,
    device: Annotated[str, typer.Option()] = "auto",
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train a diffusion-AR self-speculator: greedy self-distillation, then draft and AR losses on [clean | blocks].

    Data: one JSON line with what was trained, on stdout. Under torchrun every process trains on a GPU of its own.
    """
    from recguide.engine.adapt import Recipe, check, rank_of_process
    from recguide.engine.adapt_run import Source, prepare_corpora, start_processes, train_adapter
    from recguide.engine.adapters import resolve_adapter
    from recguide.engine.environment import command_line

    if not (prompts or corpus or invent):
        raise InputError("adapt: nothing to train on: give --prompts, --corpus or --invent")
    for option, path in (("--output", output), ("--save-corpus", save_corpus)):
        require_place(path, option)
    recipe = Recipe(
        seconds=seconds,
        steps=steps,
        shared_rank=shared_rank,
        draft_rank=draft_rank,
        draft_shift=int(shifted),
        soft=soft,
        decay=decay,
        ar_weight=ar_weight,
        learning_rate=learning_rate,
        block_tokens=block_tokens,
        tokens_per_step=tokens_per_step,
        seed=seed,
    )
    check(recipe)
    begun = None if from_adapter is None else resolve_adapter(from_adapter)
    place = start_processes(device)
    source = Source(prompts or [], invent, distil_seconds, max_prompt, max_response, batch)
    texts = prepare_corpora(model, place, source, corpus or [], save_corpus, say)
    result = train_adapter(model, place, texts, recipe, output, command_line(), say, begun)
    if rank_of_process() == 0:
        typer.echo(json.dumps(result, sort_keys=True))
