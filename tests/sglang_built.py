"""Makes a class of models in the way that SGLang does, and tells what is left beside it: `sglang_built.py CLASS`."""

import gc
import json
import socket
import sys

import torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.models.ministral3 import Ministral3ForCausalLM
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang_env import ENGINE_ARGS

from recguide.engine.sglang_models import Ministral3SelfSpeculator

CLASSES = {each.__name__: each for each in (Ministral3ForCausalLM, Ministral3SelfSpeculator)}


def alive() -> int:
    """Weights that are there, whoever holds them."""
    return sum(each.numel() for each in gc.get_objects() if isinstance(each, torch.nn.Parameter))


def main() -> None:
    arguments = ServerArgs(**ENGINE_ARGS)
    set_global_server_args_for_scheduler(arguments)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    init_distributed_environment(1, 0, where, 0, "gloo")
    initialize_model_parallel()
    config = ModelConfig.from_server_args(arguments)
    initialize_dp_attention(arguments, config)
    gc.disable()
    before = alive()
    model = CLASSES[sys.argv[1]](config.hf_config)
    own, layers = sum(each.numel() for each in model.parameters()), model.model.layers
    told = {
        "own": own,
        "alive": alive() - before,
        "layers": len(layers),
        "config": model.model.config.num_hidden_layers,
    }
    print(json.dumps(told))


main()
