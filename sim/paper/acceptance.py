"""Synthetic dense traces of NLD-8B and 14B: no model was run, its published statistics are what they were fitted to.

docs/reproduce.md says what was fitted to what, and how well.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from recguide.sim.paper.confidence import Confidence, drafts_of, draws_of, entropy_of
from recguide.sim.paper.latent import Dynamics, scores, text_of, thresholds
from recguide.sim.paper.published import BENCHMARKS, MODELS, UNCONDITIONED_MATCHED
from recguide.traces.dense import VIEWS, DenseRequest, DenseTrace, Drafts, Provenance, num_draft_tokens
from recguide.traces.errors import InputError
from recguide.traces.files import read_trace, write_trace

GRID = (4, 8, 16, 32)
REQUESTS = 64
"""Of each benchmark."""
OUTPUT_TOKENS = (224, 480)
PROMPT_TOKENS = (60, 260)
"""Ranges to draw from: the paper does not publish lengths, and its forward times do not depend on them."""
DOUBT = UNCONDITIONED_MATCHED[0] / UNCONDITIONED_MATCHED[1]
"""By which hazards are higher behind a first token that is in doubt and not yet known."""
PARAMETERS = Path(__file__).with_name("parameters.json")
GENERATOR = ("acceptance", "confidence", "latent", "published")
"""Modules whose text decides what a trace holds."""
NOTE = "SYNTHETIC: fitted to published statistics of the model; no model was run"


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of one model."""

    dynamics: Dynamics
    entropy_noise: float
    adapter: float
    """By which, as a logarithm, hazards are higher where no adapter drafts."""
    ease: Mapping[str, float]
    """By benchmark."""
    confidence: Mapping[str, Confidence]
    """By category."""


def model_name(model: str) -> str:
    """Its name in traces, profiles and policy files."""
    return f"nld-{model}"


@cache
def parameters_of(model: str) -> Parameters:
    """The fitted ones of "8b" or "14b"."""
    if model not in MODELS:
        raise InputError(f"model: found {model!r}, allowed: {', '.join(MODELS)}")
    return parsed(json.loads(PARAMETERS.read_text(encoding="utf-8")), model)


def parsed(document: Mapping[str, Any], model: str) -> Parameters:
    """The parameters of a model out of the shipped document."""
    mine = document[model]
    confidence = {category: Confidence(**values) for category, values in mine["confidence"].items()}
    dynamics = Dynamics(**document["dynamics"])
    return Parameters(dynamics, document["entropy_noise"], mine["adapter"], mine["ease"], confidence)


def unadapted(parameters: Parameters) -> Parameters:
    """The same where drafts are made without the adapter."""
    return replace(parameters, ease={name: ease - parameters.adapter for name, ease in parameters.ease.items()})


def host_more_ms(model: str) -> float:
    """What each further request adds to the host's time of a round, as fitted (``recguide.sim.paper.host``)."""
    document = json.loads(PARAMETERS.read_text(encoding="utf-8"))
    return float(document[model]["host_more_ms"])


def synthetic_trace(
    model: str,
    parameters: Parameters,
    requests: int = REQUESTS,
    seed: int = 0,
    only: str | None = None,
    grid: Sequence[int] = GRID,
) -> DenseTrace:
    """The same for the same arguments; ``only`` names a benchmark or category, and ``grid`` fewer block sizes.

    What is left is as in the whole trace.
    """
    names = [name for name, category in BENCHMARKS.items() if only in (None, name, category)]
    made = [_request(model, name, number, seed, parameters, grid) for name in names for number in range(requests)]
    return DenseTrace(replace(_provenance(model, requests, seed), block_sizes=tuple(grid)), tuple(made))


def paper_trace(
    model: str, requests: int = REQUESTS, seed: int = 0, adapter: bool = True, grid: Sequence[int] = GRID
) -> DenseTrace:
    """The trace of the shipped parameters, kept in the cache folder ($RECGUIDE_CACHE) once it was made."""
    parameters = parameters_of(model) if adapter else unadapted(parameters_of(model))
    key = _key(parameters, requests, seed, grid)
    path = cache_folder() / "synthetic" / f"{model_name(model)}-{key}.parquet"
    if path.is_file():
        return read_trace(path)
    trace = synthetic_trace(model, parameters, requests, seed, grid=grid)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_trace(trace, path, compression_level=1)
    return trace


def cache_folder() -> Path:
    """Where made traces are kept: $RECGUIDE_CACHE, else ``recguide`` under the user's cache folder."""
    own = os.environ.get("RECGUIDE_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recguide"


def _key(parameters: Parameters, requests: int, seed: int, grid: Sequence[int]) -> str:
    """Of everything that decides what the trace holds, the generator's own text included."""
    code = b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in GENERATOR)
    told = json.dumps([asdict(parameters), requests, seed, list(grid), np.__version__], sort_keys=True).encode()
    return hashlib.sha256(code + told).hexdigest()[:16]


def _request(
    model: str, benchmark: str, number: int, seed: int, parameters: Parameters, grid: Sequence[int]
) -> DenseRequest:
    name = f"{model_name(model)}/{benchmark}/{number}"
    digest = hashlib.sha256(name.encode()).hexdigest()
    # lengths and dynamics are drawn apart, so that a request keeps its text whatever is fitted later
    rng = np.random.default_rng([seed, int(digest[:8], 16)])
    tokens = int(rng.integers(OUTPUT_TOKENS[0], OUTPUT_TOKENS[1] + 1))
    prompt = int(rng.integers(PROMPT_TOKENS[0], PROMPT_TOKENS[1] + 1))
    confidence, own_sd = parameters.confidence[BENCHMARKS[benchmark]], np.float32(parameters.dynamics.own**0.5)
    text = text_of(rng, tokens, parameters.ease[benchmark], confidence.contrast, parameters.dynamics)
    threshold, doubtful = (thresholds(text, tokens, parameters.dynamics, times) for times in (1.0, DOUBT))
    drafts: dict[tuple[str, int], Drafts] = {}
    for view, base in zip(VIEWS, scores(rng, text, tokens, parameters.dynamics), strict=True):
        draws = draws_of(rng, tokens)
        for size in GRID:
            score = base + own_sd * rng.standard_normal(base.shape, dtype=np.float32)
            if size in grid:
                count = num_draft_tokens(view, size)
                drafts[view, size] = drafts_of(score, threshold, doubtful, draws, confidence, view, count)
    entropy = entropy_of(rng, text, tokens, parameters.entropy_noise)
    return DenseRequest(name, benchmark, BENCHMARKS[benchmark], digest, prompt, tokens, "length", entropy, drafts)


def _provenance(model: str, requests: int, seed: int) -> Provenance:
    names = "\n".join(f"{model_name(model)}/{name}/{number}" for name in BENCHMARKS for number in range(requests))
    nothing = dict.fromkeys(("weights_sha256", "dtype", "engine_commit", "gpu", "driver", "torch"), "none")
    return Provenance(
        model=model_name(model),
        adapter_sha256=None,
        prompt_set_sha256=hashlib.sha256(names.encode()).hexdigest(),
        block_sizes=GRID,
        draft_shift=0,
        max_output_tokens=OUTPUT_TOKENS[1],
        max_context=10_240,
        command=f"recguide reproduce: {requests} requests a benchmark, seed {seed}",
        created="2026-11-30T00:00:00+00:00",
        dropped={},
        base_agreement=None,
        note=NOTE,
        **nothing,
    )
