"""One adapter trial on one GPU: train for a short time, then measure acceptance on evaluation prompts.

usage: adapt_trials.py MODEL OUT.json CORPUS.npz,... PROMPTS_DIR [key=value of engine.adapt.Recipe ...]
Prints and writes mean acceptance length per dataset at B=16, the agreement by offset, and that with the base.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recguide.engine.adapt import Recipe
from recguide.engine.adapt_run import train_adapter, training_dtype
from recguide.engine.adapters import resolve_adapter
from recguide.engine.agreement import base_agreement, mean_accept, measure
from recguide.engine.corpora import load_corpus, read_training_prompts
from recguide.engine.distill import distil
from recguide.engine.loading import load_model
from recguide.engine.steps import StepDecoder

DATASETS = ("gsm8k", "math500", "humaneval", "mbpp", "mmlu_stem", "ifeval", "mt_bench")


def say(text: str) -> None:
    print(text, flush=True)


def evaluate(
    model: str, adapter: Path, folder: Path, device: torch.device, per_set: int, max_response: int
) -> dict[str, object]:
    started = time.monotonic()
    loaded = load_model(model, device, training_dtype(device), resolve_adapter(str(adapter)))
    assert loaded.tokenizer is not None
    encoded, groups = [], []
    for name in DATASETS:
        rows = [loaded.tokenizer.encode_chat(text) for text in read_training_prompts(folder / f"{name}.jsonl")]
        rows = [row for row in rows if len(row) <= 320][:per_set]
        encoded += rows
        groups += [name] * len(rows)
    steps = StepDecoder(loaded.decoder, len(encoded), 320 + max_response)
    corpus = distil(steps, encoded, 320, max_response, lambda _: True)
    del steps
    agreement = measure(loaded.decoder, corpus, 16)
    base = load_model(model, device, training_dtype(device)).decoder
    lengths = mean_accept(agreement, corpus, np.array(groups))
    return {
        "mean": float(np.mean(list(lengths.values()))),
        "accept": lengths,
        "offsets": agreement.offsets.round(4).tolist(),
        "base_agreement": base_agreement(base, corpus),
        "eval_seconds": time.monotonic() - started,
    }


def main() -> None:
    model, out, corpora, folder, *options = sys.argv[1:]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings: dict[str, Any] = {key: json.loads(value) for key, value in (option.split("=") for option in options)}
    per_set, max_response = settings.pop("per_set", 32), settings.pop("max_response", 256)
    texts = [load_corpus(Path(path)) for path in corpora.split(",")]
    adapter = Path(out).with_suffix(".safetensors")
    trained: dict[str, float | int | str] = {}
    if not adapter.exists():
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
        recipe = Recipe(**fields)
        trained = train_adapter(model, device, texts, recipe, adapter, " ".join(sys.argv), say)
    torch._dynamo.reset()
    result = {
        "settings": settings,
        "trained": trained,
        **evaluate(model, adapter, Path(folder), device, per_set, max_response),
    }
    Path(out).write_text(json.dumps(result, indent=1))
    say(f"{Path(out).stem} {json.dumps(result)}")


main()
