"""Draws the weights of a model as SGLang does, and tells what was merged: `sglang_drawn.py FOLDER CONFIG`."""

import json
import sys

from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_loader.loader import DummyModelLoader
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs
from sglang_alone import alone
from sglang_env import ENGINE_ARGS


def main() -> None:
    load_plugins()
    told = {"speculative_algorithm": "RECGUIDE", "speculative_adaptive_config": sys.argv[2], "load_format": "dummy"}
    arguments = ServerArgs(**{**ENGINE_ARGS, "model_path": sys.argv[1], **told})
    config = alone(arguments)
    loader = DummyModelLoader(LoadConfig(load_format="dummy"))
    model = loader.load_model(model_config=config, device_config=DeviceConfig("cpu")).model
    updates = {name: model.updates[name.replace(".", "_")] for name in model.cuts if name.endswith(".out")}
    merged = {name: update for name, update in updates.items() if update.merged is not None}
    weights = {name: model.projection(name).weight for name in merged}
    differences = [(each.merged - weights[name] - each.b @ each.a).abs().max().item() for name, each in merged.items()]
    found = {
        "updates": len(updates),
        "merged": len(merged),
        "furthest": max(differences, default=0.0),
        "changed": any(bool((each.merged != weights[name]).any()) for name, each in merged.items()),
    }
    print(json.dumps(found))


main()
