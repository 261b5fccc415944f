"""A random model small enough to run everywhere, and traces recorded from it."""

from dataclasses import replace
from pathlib import Path

import torch

from recguide.engine.groups import Encoded, Sizes
from recguide.engine.loading import LoadedModel
from recguide.engine.model import Decoder, ModelConfig
from recguide.engine.record import Recorder
from recguide.engine.shapes import random_decoder
from recguide.traces.datasets import Prompt
from recguide.traces.dense import DenseTrace, Provenance
from recguide.traces.merges import merge_traces

TINY = ModelConfig("tiny", 24, 2, 6, 2, 8, 40, 12, 1e4, 1e-5, False, 96, 3, (2, 7))
SMALL = Sizes(3, 2**20, 2, 24, 2**12)


def tiny_model(seed: int, draft_shift: int) -> LoadedModel:
    decoder = random_decoder(replace(TINY, draft_shift=draft_shift), "cpu", torch.float32, seed)
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            parameter.mul_(15)
    return LoadedModel(decoder, None, "0" * 64, None)


def provenance_of(model: LoadedModel, block_sizes: tuple[int, ...], max_output_tokens: int, max_context: int):
    return Provenance(
        model=model.config.name,
        weights_sha256=model.weights_sha256,
        adapter_sha256=None,
        dtype="fp32",
        engine_commit="none",
        gpu="cpu",
        driver="none",
        torch=str(torch.__version__),
        prompt_set_sha256="0" * 64,
        block_sizes=block_sizes,
        draft_shift=model.config.draft_shift,
        max_output_tokens=max_output_tokens,
        max_context=max_context,
        command="recguide record",
        created="2026-01-01T00:00:00+00:00",
        dropped={},
        base_agreement=None,
    )


def recorded(
    model: LoadedModel,
    prompts: list[list[int]],
    block_sizes: tuple[int, ...],
    max_output_tokens: int,
    max_context: int | None = None,
    sizes: Sizes = SMALL,
    drafter: Decoder | None = None,
) -> DenseTrace:
    provenance = provenance_of(model, block_sizes, max_output_tokens, max_context or model.config.max_context)
    encoded = [Encoded(Prompt(f"p/{i}", "p", "unknown", f"prompt {i}"), ids) for i, ids in enumerate(prompts)]
    recorder = Recorder(model, None, provenance, sizes, True, drafter)
    groups = [found for batch in recorder.plan(encoded, {"p": "p"}) for found in recorder.record(batch, lambda _: None)]
    merged = merge_traces([(Path(group.names["p"]), traces["p"]) for group, traces in groups])
    return replace(merged, requests=tuple(sorted(merged.requests, key=lambda request: request.request_id)))
