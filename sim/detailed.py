"""One run in the form of `vllm bench serve --save-detailed`, for whatever reads such files, `--arrivals` included."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recguide.sim.levels import Level
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.rounds import Ints
from recguide.traces.documents import write_text

SUBFOLDER = "detailed"


def detailed(run: Replay, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Its figures, and lists with an entry for each request, in the order of sending; times are in seconds."""
    order = np.argsort(run.emission_request, kind="stable")
    request, step = run.emission_request[order], run.emission_step[order]
    tokens, sizes = run.emission_tokens[order], run.emission_block_size[order]
    times = (run.steps["start_s"] + run.steps["seconds"])[step]
    bounds = np.flatnonzero(np.diff(request)) + 1
    return {
        **figures,
        "start_times": run.sent_s.tolist(),
        "input_lens": run.prompt_tokens.tolist(),
        "output_lens": run.output_tokens.tolist(),
        "ttfts": (run.first_token_s - run.sent_s).tolist(),
        "itls": [np.diff(part).tolist() for part in np.split(times, bounds)],
        "errors": [""] * len(run.request),
        "per_step_accepted": _rounds(tokens - 1, sizes, bounds),
        "per_step_drafted": _rounds(sizes - 1, sizes, bounds),
    }


def _rounds(values: Ints, sizes: Ints, bounds: Ints) -> list[list[int]]:
    """Values of the rounds of each request, prefills left out."""
    decoding = np.split(sizes != PREFILL_STEP, bounds)
    return [part[keep].tolist() for part, keep in zip(np.split(values, bounds), decoding, strict=True)]


def write_detailed(folder: Path, policy: str, level: Level, run: Replay, figures: Mapping[str, Any]) -> None:
    """Write it as strict JSON into the folder's subfolder; the file appears whole or not at all."""
    (folder / SUBFOLDER).mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "_", policy)
    text = json.dumps(detailed(run, {"policy": policy, **figures}), allow_nan=False)
    write_text(folder / SUBFOLDER / f"{name}-{level.suffix}.json", text + "\n")
