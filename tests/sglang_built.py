"""Makes a class of models in the way that SGLang does, and tells what is left beside it: `sglang_built.py CLASS`."""

import gc
import json
import sys

import torch
from sglang.srt.models.ministral3 import Ministral3ForCausalLM
from sglang.srt.server_args import ServerArgs
from sglang_alone import alone
from sglang_env import ENGINE_ARGS

from recguide.engine.sglang_models import Ministral3SelfSpeculator

CLASSES = {each.__name__: each for each in (Ministral3ForCausalLM, Ministral3SelfSpeculator)}


def alive() -> int:
    """Weights that are there, whoever holds them."""
    return sum(each.numel() for each in gc.get_objects() if isinstance(each, torch.nn.Parameter))


def main() -> None:
    config = alone(ServerArgs(**ENGINE_ARGS))
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
