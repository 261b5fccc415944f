"""Fits sim/paper/parameters.json to the published statistics again, from the values that it holds.

python scripts/fit_paper.py [--requests 64] [--turns 2]

A turn finds the dynamics of texts (8B), then what differs between benchmarks and models. At the end come the noise of
the entropy, second candidates of tokens that were not risky, and the host's time of a request. docs/reproduce.md says
what is assumed instead.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from recguide.sim.costs import constant_costs
from recguide.sim.paper.acceptance import PARAMETERS, REQUESTS, Parameters, parsed, synthetic_trace
from recguide.sim.paper.calibration import calibrated, sure_ratio, with_sure_seconds
from recguide.sim.paper.dynamics_fit import MODEL, refitted, seen_through
from recguide.sim.paper.host import inferred_more_ms
from recguide.sim.paper.published import BENCHMARKS, MODELS
from recguide.sim.paper.subjects import Subject, only
from recguide.traces.documents import write_json


def main() -> None:
    """Write the file whole, rounded to four digits behind the point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--output", type=Path, default=PARAMETERS)
    options = parser.parse_args()
    document = json.loads(PARAMETERS.read_text(encoding="utf-8"))
    models = {model: parsed(document, model) for model in MODELS}
    subject = empty_subject(models[MODEL])
    for turn in range(options.turns):
        print("turn", turn + 1, flush=True)
        dynamics = refitted(models[MODEL], subject, options.requests).dynamics
        for model, known in models.items():
            print(model, flush=True)
            models[model] = calibrated(model, replace(known, dynamics=dynamics), options.requests)
    noise = seen_through(models[MODEL], subject, options.requests)
    ratio = sure_ratio(MODEL, models[MODEL], options.requests)
    found = {model: with_sure_seconds(replace(known, entropy_noise=noise), ratio) for model, known in models.items()}
    write_json(options.output, told(found, {model: more_ms(model, found[model], options.requests) for model in MODELS}))


def empty_subject(parameters: Parameters) -> Subject:
    """8B without requests: fits put theirs in."""
    nothing = synthetic_trace(MODEL, parameters, requests=0)
    costs = constant_costs(draft=1.0, verify=1.0, host=0.0)
    return Subject(MODEL, MODEL, nothing, nothing, costs, costs)


def more_ms(model: str, parameters: Parameters, requests: int) -> float:
    """The host's time of each further request, at these parameters."""
    trace = synthetic_trace(model, parameters, requests)
    return inferred_more_ms(model, {name: only(trace, [name]) for name in BENCHMARKS})


def told(models: Mapping[str, Parameters], more: Mapping[str, float]) -> dict[str, Any]:
    """The document; dynamics with five digits behind the point, everything else with four."""
    first = models[MODEL]
    document: dict[str, Any] = {
        "dynamics": {name: round(value, 5) for name, value in asdict(first.dynamics).items()},
        "entropy_noise": round(first.entropy_noise, 4),
    }
    for model, its in models.items():
        confidence = {category: rounded(asdict(each)) for category, each in its.confidence.items()}
        mine = {"adapter": round(its.adapter, 4), "host_more_ms": round(more[model], 4)}
        document[model] = {**mine, "ease": rounded(its.ease), "confidence": confidence}
    return document


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """The same with four digits behind the point."""
    return {name: round(value, 4) for name, value in values.items()}


if __name__ == "__main__":
    main()
