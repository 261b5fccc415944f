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
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from recguide.engine.bench_load import prompts_of
from recguide.engine.bench_outputs import read_outputs
from recguide.engine.environment import machine_of
from recguide.engine.loading import LoadedModel, open_model
from recguide.engine.matching import judged, told_of
from recguide.engine.rereading import Reading, Ruler, Shape, Text, reread
from recguide.traces.documents import write_json

SHAPES = Shape(8, 16), Shape(8, 1), Shape(1, 16), Shape(1, 1)
"""Of the readings: the served rounds' and plain decoding's, of many requests and of one."""


def ruler_of(model: LoadedModel, texts: Sequence[Text], shapes: Sequence[Shape] = SHAPES) -> Ruler:
    """The texts read by the model, and in fp32."""
    decoder, exact = model.decoder, copy.deepcopy(model.decoder).float()
    readings = [Reading(decoder, partial(reread, decoder), texts, shape) for shape in shapes]
    return Ruler(texts, readings, Reading(exact, partial(reread, exact), texts, shapes[0]))


def main() -> None:
    """Read the reference's texts, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("reference", type=Path)
    parser.add_argument("figures", nargs="+", type=Path)
    parser.add_argument("--adapter")
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--dataset-path", action="append", type=Path)
    load.add_argument("--random-input-len", type=int, help="of the random prompts of seed 0")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    model = open_model(given.model, given.adapter, given.device, given.dtype)
    prompts = prompts_of(model, given.dataset_path, given.random_input_len)
    reference, runs = read_outputs(given.reference), [read_outputs(path) for path in given.figures]
    for outputs in (reference, *runs):
        outputs.check(prompts, max(map(len, outputs.tokens)))
    created = datetime.now(UTC).isoformat(timespec="seconds")
    origin = {**model.named, "dtype": given.dtype, **machine_of(model.decoder.device)}
    origin |= {"command": shlex.join(["python", *sys.argv]), "created": created, "reference": dict(reference.about)}
    told = list(zip(reference.rows, reference.tokens, strict=True))
    with torch.no_grad():
        ruler = ruler_of(model, [Text(prompts[row], tokens) for row, tokens in told])
        places = {row: place for place, (row, _) in enumerate(told)}
        placed = [replace(outputs, rows=[places[row] for row in outputs.rows]) for outputs in runs]
        found = told_of(ruler, [judged(ruler, outputs) for outputs in placed])
    for run in found["runs"]:
        print(json.dumps({name: value for name, value in run.items() if name != "server"}))
    print(json.dumps({name: found[name] for name in ("noise", "noise_against_fp32")}))
    if given.output is not None:
        write_json(given.output, {**origin, **found})


if __name__ == "__main__":
    main()
