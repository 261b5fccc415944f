"""Fits sim/paper/parameters.json to the published statistics again, from the dynamics that it holds.

python scripts/fit_paper.py [--requests 64]
"""

import argparse
import json
from dataclasses import asdict

from recguide.sim.paper.acceptance import PARAMETERS, REQUESTS, parsed
from recguide.sim.paper.calibration import calibrated
from recguide.sim.paper.published import MODELS
from recguide.traces.documents import write_json


def main() -> None:
    """Write the file whole, rounded to four digits behind the point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    requests = parser.parse_args().requests
    document = json.loads(PARAMETERS.read_text(encoding="utf-8"))
    for model in MODELS:
        print(model, flush=True)
        found = calibrated(model, parsed(document, model), requests)
        confidence = {category: rounded(asdict(each)) for category, each in found.confidence.items()}
        document["dynamics"] = {name: round(value, 5) for name, value in asdict(found.dynamics).items()}
        document[model] = {"ease": rounded(found.ease), "confidence": confidence}
    write_json(PARAMETERS, document)


def rounded(values: dict[str, float]) -> dict[str, float]:
    """The same with four digits behind the point."""
    return {name: round(value, 4) for name, value in values.items()}


if __name__ == "__main__":
    main()
