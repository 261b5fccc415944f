"""A process that is by itself all that SGLang serves with, for models that are made without an engine."""

import socket

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler


def alone(arguments: ServerArgs) -> ModelConfig:
    """Make this process one; gives the config of the model that the arguments name."""
    set_global_server_args_for_scheduler(arguments)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    init_distributed_environment(1, 0, where, 0, "gloo")
    initialize_model_parallel()
    config = ModelConfig.from_server_args(arguments)
    initialize_dp_attention(arguments, config)
    return config
