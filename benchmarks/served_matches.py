"""Outputs that SGLang served against those of its own decoding: where they part, and how close the two tokens were.

    python benchmarks/served_matches.py smollm2-135m campaign/sglang_ar-all-c1-r1.figures.json \
        campaign/fixed_16-*.figures.json --adapter smollm2-135m --dataset-path prompts.jsonl [--output matches.json]

The first file is the reference, the others are held against it. All must have served the same weights. Nothing is
decoded here: the reference's texts are read again by these weights, in the served precision in forwards of several
shapes and in fp32, and where an output first differs from them, both readings say by how much the reference's token is
above the other one. ``noise`` is by how much such gaps differ between the shapes on this machine, and
``noise_against_fp32`` between them and fp32, wherever no output parts. `recguide bench match --outputs` does the same
with a reference that our engine decodes.
"""

import argparse
import copy
import json
from collections.abc import Sequence
from dataclasses import astuple
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from recguide.engine.bench_outputs import Outputs, read_outputs
from recguide.engine.environment import command_line, machine_of
from recguide.engine.loading import LoadedModel, open_model
from recguide.engine.matching import Run, divergences, noise_of, row_of
from recguide.engine.rereading import Reading, Ruler, Shape, Text, reread
from recguide.traces.datasets import read_prompts
from recguide.traces.documents import write_json

SHAPES = Shape(8, 16), Shape(8, 1), Shape(1, 16), Shape(1, 1)
"""Of the readings: the served rounds' and plain decoding's, of many requests and of one."""


def ruler_of(model: LoadedModel, texts: Sequence[Text], shapes: Sequence[Shape] = SHAPES) -> Ruler:
    """The texts read by the model, and in fp32."""
    decoder, exact = model.decoder, copy.deepcopy(model.decoder).float()
    readings = [Reading(decoder, partial(reread, decoder), texts, shape) for shape in shapes]
    return Ruler(texts, readings, Reading(exact, partial(reread, exact), texts, shapes[0]))


def compared(ruler: Ruler, places: dict[int, int], runs: Sequence[Outputs]) -> dict[str, Any]:
    """What is told of runs; ``places`` has the number of each prompt's text."""
    found = []
    for outputs in runs:
        answers = sorted((places[row], tokens) for row, tokens in zip(outputs.rows, outputs.tokens, strict=True))
        parted = divergences(ruler, answers)
        count, tokens = len(answers), sum(len(told) for _, told in answers)
        about = outputs.policy, outputs.concurrency, count, outputs.seconds, tokens
        found.append(Run(*about, 0, parted, outputs.about))
    noise, exact = noise_of(ruler, {(each.request, each.position) for run in found for each in run.parted})
    return {
        "noise": noise,
        "noise_against_fp32": exact,
        "read_in": [{**reading.shape._asdict(), "texts": len(reading)} for reading in ruler.readings],
        "runs": [row_of(run, noise, exact) for run in found],
        "divergences": {
            f"{run.policy}@{run.concurrency}": [
                " ".join("-" if value is None else f"{value:.6g}" for value in astuple(each)) for each in run.parted
            ]
            for run in found
        },
    }


def main() -> None:
    """Read the reference's texts, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("reference", type=Path)
    parser.add_argument("figures", nargs="+", type=Path)
    parser.add_argument("--adapter")
    parser.add_argument("--dataset-path", action="append", type=Path, required=True)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    model = open_model(given.model, given.adapter, given.device, given.dtype)
    assert model.tokenizer is not None
    prompts = [model.tokenizer.encode_chat(prompt.text) for prompt in read_prompts(given.dataset_path)]
    reference, runs = read_outputs(given.reference), [read_outputs(path) for path in given.figures]
    for outputs in (reference, *runs):
        outputs.check(prompts, max(map(len, outputs.tokens)))
    created = datetime.now(UTC).isoformat(timespec="seconds")
    origin = {**model.named, "dtype": given.dtype, **machine_of(model.decoder.device)}
    origin |= {"command": command_line(), "created": created, "reference": dict(reference.about)}
    told = list(zip(reference.rows, reference.tokens, strict=True))
    with torch.no_grad():
        ruler = ruler_of(model, [Text(prompts[row], tokens) for row, tokens in told])
        found = compared(ruler, {row: place for place, (row, _) in enumerate(told)}, runs)
    for run in found["runs"]:
        print(json.dumps({name: value for name, value in run.items() if name != "server"}))
    print(json.dumps({name: found[name] for name in ("noise", "noise_against_fp32")}))
    if given.output is not None:
        write_json(given.output, {**origin, **found})


if __name__ == "__main__":
    main()
