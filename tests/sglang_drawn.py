"""Draws the weights of a model as SGLang does, and tells what was merged: `sglang_drawn.py FOLDER CONFIG`."""

import json
import socket
import sys

from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.model_loader.loader import DummyModelLoader
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang_env import ENGINE_ARGS


def main() -> None:
    load_plugins()
    told = {"speculative_algorithm": "RECGUIDE", "speculative_adaptive_config": sys.argv[2], "load_format": "dummy"}
    arguments = ServerArgs(**{**ENGINE_ARGS, "model_path": sys.argv[1], **told})
    set_global_server_args_for_scheduler(arguments)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    init_distributed_environment(1, 0, where, 0, "gloo")
    initialize_model_parallel()
    config = ModelConfig.from_server_args(arguments)
    initialize_dp_attention(arguments, config)
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
