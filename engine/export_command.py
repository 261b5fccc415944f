"""`recguide export`: a model as a Hugging Face directory."""

import json
from pathlib import Path
from typing import Annotated

import typer

from recguide.traces.checks import require


def export(
    model: Annotated[str, typer.Argument(help="smollm2-135m, a named shape with random weights, or a directory")],
    output: Annotated[Path, typer.Argument(help="the directory to write")],
) -> None:
    """Write a model that this package knows by name as a directory that SGLang, vLLM and transformers load.

    A shape gets no weights: servers draw them where they are told to (`--load-format dummy`). Adapters are files of
    their own. Data: one JSON line with what was written, on stdout.
    """
    require(output.parent.is_dir(), "OUTPUT", str(output), "a path in a folder that is there")
    import torch

    from recguide.engine.export import export as write
    from recguide.engine.export import export_shape
    from recguide.engine.loading import load_model
    from recguide.engine.shapes import SHAPES

    if model in SHAPES:
        export_shape(SHAPES[model], output)
        typer.echo(json.dumps({"model": model, "path": str(output), "weights_sha256": None}))
        return
    loaded = load_model(model, "cpu", torch.float32)
    write(loaded, output)
    typer.echo(json.dumps({"model": model, "path": str(output), "weights_sha256": loaded.weights_sha256}))
