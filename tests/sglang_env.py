"""SGLang's engine on the CPU, with a small trained model: what its processes need, and prompts for it.

The kernels are torch's and sgl-kernel is the one in `sglang_cpu`: what is tested is our plugin inside of SGLang's
scheduler, caches and sampler. `make test-sglang` makes the environment and runs the tests in it.
"""

import importlib.util
import itertools
import os
import random
from pathlib import Path
from typing import Any

HERE = Path(__file__).with_name("sglang_cpu")
TOY = HERE / "model"
"""Trained by `sglang_cpu/train_model.py`. Token 0 pads, 1 and 2 begin and end, 3 is the mask, and 64 symbols follow."""
PRESENT = importlib.util.find_spec("sglang") is not None and importlib.util.find_spec("sgl_kernel") is not None
ENGINE_ARGS: dict[str, Any] = {
    "model_path": str(TOY),
    "skip_tokenizer_init": True,
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "dtype": "float32",
    "disable_cuda_graph": True,
    "mem_fraction_static": 0.1,
    "max_total_tokens": 4096,
    "max_running_requests": 8,
    "log_level": "error",
    "random_seed": 0,
}


_STARTED = itertools.count()


def own_port() -> int:
    """Where the processes of an engine meet: of no other worker of these tests, nor one that systems give away.

    SGLang looks for a port that is free and binds it later, when somebody else may have it.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return 20000 + 500 * worker + next(_STARTED)


def environment() -> dict[str, str]:
    """The variables of a process that runs SGLang here."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts as the model was trained on: patterns that repeat, half of them moving up by one symbol each time."""
    draw = random.Random(seed)
    return [_text(draw, draw.randrange(14, 30)) for _ in range(count)]


def _text(draw: random.Random, length: int) -> list[int]:
    pattern = [draw.randrange(64) for _ in range(draw.randrange(3, 8))]
    move = draw.randrange(2)
    return [4 + (pattern[i % len(pattern)] + move * (i // len(pattern))) % 64 for i in range(length)]
