"""The steps behind `recguide adapt`: distil or load text, train, write the adapter file."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from recguide.engine.adapt import Recipe, add_updates, compile_parts, rank_of_process, train, trainable
from recguide.engine.adapters import FORMAT, AdapterInfo, load_adapter, pack, read_info, save_adapter
from recguide.engine.corpora import encode_prompts, load_corpus, read_training_prompts, save_corpus, user_openings
from recguide.engine.distill import Corpus, distil, invent_prompts
from recguide.engine.environment import chosen_device
from recguide.engine.loading import load_model
from recguide.engine.model import Decoder
from recguide.engine.steps import StepDecoder
from recguide.engine.tokenizer import Tokenizer
from recguide.traces.checks import require
from recguide.traces.errors import InputError
from recguide.traces.files import file_sha256

Say = Callable[[str], None]


def start_processes(device: str) -> torch.device:
    """The device to train on; under torchrun also joins the process group."""
    place = chosen_device(device)
    if "RANK" not in os.environ:
        return place
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    return place


def training_dtype(device: torch.device) -> torch.dtype:
    """The frozen base is held in bf16 on a GPU, in fp32 on a CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@dataclass(frozen=True, slots=True)
class Source:
    """What to distil: prompt files and ``invent`` prompts of the model's own, within ``seconds``.

    Prompts of more than ``shortest`` and at most ``max_prompt`` tokens, ``batch`` of them decoded together.
    """

    prompts: Sequence[Path]
    invent: int
    seconds: float
    max_prompt: int
    max_response: int
    batch: int
    shortest: int = 0


def distil_source(model: str, device: torch.device, source: Source, say: Say) -> Corpus:
    """Greedy responses of the base model to the prompts of a source."""
    loaded = load_model(model, device, training_dtype(device))
    if loaded.tokenizer is None:
        raise InputError(f"{model}: has no tokenizer, so there is nothing to distil")
    started = time.monotonic()
    texts = [prompt for path in source.prompts for prompt in read_training_prompts(path)]
    encoded = encode_prompts(loaded.tokenizer, texts, source.max_prompt, source.shortest)
    if source.invent:
        encoded += _invented(loaded.decoder, loaded.tokenizer, source)
    say(f"{len(encoded)} prompts after {time.monotonic() - started:.0f} s")
    if not encoded:
        raise InputError(f"nothing to distil: no prompt of {source.shortest + 1} to {source.max_prompt} tokens")
    # long training texts differ in kind from file to file: any part of them should be a fair sample
    np.random.default_rng(0).shuffle(encoded)
    steps = StepDecoder(loaded.decoder, source.batch, source.max_prompt + source.max_response)
    going = partial(_in_time, started, source.seconds, say)
    corpus = distil(steps, encoded, source.max_prompt, source.max_response, going)
    say(f"{len(corpus.tokens)} of {len(encoded)} responses, mean length {corpus.response_lens.mean():.0f}")
    return corpus


def _invented(decoder: Decoder, tokenizer: Tokenizer, source: Source) -> list[list[int]]:
    openings, closing = user_openings(tokenizer)
    room = source.max_prompt - max(map(len, openings)) - len(closing)
    sampler = StepDecoder(decoder, source.batch, source.max_prompt, temperature=1.0)
    return invent_prompts(sampler, openings, min(room, 128), closing, source.invent)


def _in_time(started: float, seconds: float, say: Say, done: int) -> bool:
    say(f"{done} responses after {time.monotonic() - started:.0f} s")
    # the first batch is always wanted
    return done == 0 or time.monotonic() - started < seconds


def train_adapter(
    model: str,
    device: torch.device,
    corpora: Sequence[Corpus],
    recipe: Recipe,
    output: Path,
    command: str,
    say: Say,
    start: Path | None = None,
) -> dict[str, float | int | str]:
    """Train updates of ``model`` on ``corpora`` and write them to ``output``; returns what the file says of it.

    Training goes on from the adapter ``start``, if there is one; ValueError when its ranks are not the recipe's.
    """
    earlier = _earlier(start, recipe)
    if device.type == "cuda":
        compile_parts()
    tuned = load_model(model, device, training_dtype(device))
    base = load_model(model, device, training_dtype(device))
    base.decoder.requires_grad_(False)
    chief = rank_of_process() == 0
    rows = [float(len(corpus.tokens)) for corpus in corpora]
    prepare = partial(_continue, start, tuned.weights_sha256) if start else add_updates
    result = train(tuned.decoder, base.decoder, corpora, rows, recipe, say if chief else lambda _: None, prepare)
    info = AdapterInfo(
        format=FORMAT,
        base_model=tuned.config.name,
        base_weights_sha256=tuned.weights_sha256,
        mask_id=tuned.config.mask_id,
        draft_shift=recipe.draft_shift,
        shared_rank=recipe.shared_rank,
        draft_rank=recipe.draft_rank,
        training={**result, **earlier, **_provenance(recipe, corpora, device), "command": command},
    )
    if chief:
        save_adapter(output, pack(tuned.decoder), info)
    return dict(info.training)


def _earlier(start: Path | None, recipe: Recipe) -> dict[str, str | int | float]:
    """What led to the adapter that training goes on from, after a check that the recipe fits it."""
    if start is None:
        return {}
    info = read_info(start)
    for name in ("shared_rank", "draft_rank", "draft_shift"):
        found, allowed = getattr(recipe, name), getattr(info, name)
        require(found == allowed, "--" + name.replace("_", "-"), found, f"{allowed}, as in {start}")
    steps = int(info.training.get("steps", 0)) + int(info.training.get("earlier_steps", 0))
    return {"start_sha256": file_sha256(start), "earlier_steps": steps, "start_command": info.training["command"]}


def _continue(start: Path, weights_sha256: str, decoder: Decoder, recipe: Recipe) -> list[nn.Parameter]:
    """The updates of an adapter, in fp32 and apart from the frozen weights."""
    decoder.requires_grad_(False)
    load_adapter(decoder, start, weights_sha256, merge=False)
    return trainable(decoder)


def _provenance(recipe: Recipe, corpora: Sequence[Corpus], device: torch.device) -> dict[str, str | int | float]:
    return {
        "responses": sum(len(corpus.tokens) for corpus in corpora),
        "response_tokens": int(sum(corpus.response_lens.sum() for corpus in corpora)),
        "processes": dist.get_world_size() if dist.is_initialized() else 1,
        "learning_rate": recipe.learning_rate,
        "ar_weight": recipe.ar_weight,
        "tokens_per_step": recipe.tokens_per_step,
        "block_tokens": recipe.block_tokens,
        "soft": recipe.soft,
        "decay": recipe.decay,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else "none",
        "torch": torch.__version__,
    }


def prepare_corpora(
    model: str, device: torch.device, source: Source, corpora: Sequence[Path], keep: Path | None, say: Say
) -> list[Corpus]:
    """Every corpus to train on: the given files, and what is distilled now (or was, when ``keep`` exists)."""
    texts = [load_corpus(path) for path in corpora]
    if keep is not None and keep.exists():
        return [*texts, load_corpus(keep)]
    if source.prompts or source.invent:
        texts.append(distil_source(model, device, source, say))
        # every process distils for itself; one of them keeps what it has
        if keep is not None and rank_of_process() == 0:
            save_corpus(keep, texts[-1])
    return texts
