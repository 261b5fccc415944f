"""How long a model's products take at every size, timed in a process of its own.

In the process that serves, this would make serving slower: behind the thousands of kernels that are recorded here, each
kernel of a forward's CUDA graph begins 0.3 to 0.6 us later on an H200, which was 3% of a forward of NLD-8B and 10% of
SmolLM2's (docs/measured.md).
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from recguide.engine.clocks import wall_seconds
from recguide.engine.graphs import recorded, run_aside

PASSES = 7
"""Over all sizes, behind one that counts for nothing."""
BEYOND_CACHE = 256 * 2**20
"""Bytes of weights that no GPU keeps in its cache from one run to the next, as it does not in a forward."""
CHILD = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from recguide.engine.product_times import answer
answer()"""
"""It finds modules where this process does, and not in the folder that it is started in."""
ANSWER = "products take "
"""What stands before the answer, for libraries print lines of their own."""
LONGEST_S = 300
"""Seconds that the other process may take."""
Samples = list[list[float]]
"""Seconds of every size, in every pass."""


def passes_aside(work: Sequence[Sequence[Tensor]], sizes: Sequence[int]) -> list[Samples]:
    """:func:`product_passes` of weights like each of these, from another process.

    Where that fails, for lack of memory or as the GPU takes one process alone, it is done here, and stderr says so.
    """
    device, dtype = work[0][0].device, str(work[0][0].dtype).removeprefix("torch.")
    shapes = [[list(weight.shape) for weight in weights] for weights in work]
    asked = json.dumps({"device": str(device), "dtype": dtype, "shapes": shapes, "sizes": list(sizes)})
    try:
        return _asked_aside(asked)
    except (OSError, RuntimeError, ValueError) as error:
        typer.echo(f"warning: products are timed in this process, whose forwards are slower by it: {error}", err=True)
    found = [product_passes(weights, sizes) for weights in work]
    torch.cuda.empty_cache()
    return found


def _asked_aside(asked: str) -> list[Samples]:
    command = [sys.executable or "python", "-P", "-c", CHILD, json.dumps(sys.path)]
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, errors="replace",
                              timeout=LONGEST_S, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer for {LONGEST_S} s") from None
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    found: list[Samples] = json.JSONDecoder().raw_decode(done.stdout.rpartition(ANSWER)[2])[0]
    return found


def answer() -> None:
    """The other process: reads what is asked from stdin, and prints seconds."""
    asked: dict[str, Any] = json.load(sys.stdin)
    device, dtype = torch.device(asked["device"]), getattr(torch, asked["dtype"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    found = [product_passes(_drawn(shapes, device, dtype), asked["sizes"]) for shapes in asked["shapes"]]
    print(ANSWER + json.dumps(found), flush=True)


def _drawn(shapes: Sequence[Sequence[int]], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Weights, not of zeros: products run faster on those."""
    return [torch.randn(*shape, device=device, dtype=dtype) * shape[1] ** -0.5 for shape in shapes]


def beyond_cache(layers: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The weights of the first layers: of one, where it is too large to stay in a cache, else of more."""
    bytes_of = [sum(weight.nbytes for weight in layer) for layer in layers]
    many = 1 + sum(total < BEYOND_CACHE for total in accumulate(bytes_of))
    return [weight for layer in layers[:many] for weight in layer]


def product_seconds(weights: Sequence[Tensor], sizes: Sequence[int], passes: int = PASSES) -> list[float]:
    """Median seconds of :func:`product_passes`, for every size."""
    return medians(product_passes(weights, sizes, passes))


def medians(samples: Samples) -> list[float]:
    """Of every size, over the passes."""
    return [float(seconds) for seconds in np.median(samples, 0)]


@torch.no_grad()
def product_passes(weights: Sequence[Tensor], sizes: Sequence[int], passes: int = PASSES) -> Samples:
    """Seconds, in each of some passes, of a product of so many rows with each of the weights, for every size.

    A pass has every size once, so a drift of the clock meets all alike. On a GPU products are CUDA graphs.
    """
    device, dtype = weights[0].device, weights[0].dtype
    generator = torch.Generator(device).manual_seed(0)
    widths = {weight.shape[1] for weight in weights}
    # drawn, not zero: products run faster on zeros
    inputs = {
        width: torch.randn(max(sizes), width, generator=generator, device=device).to(dtype) for width in sorted(widths)
    }
    work = [_products(weights, inputs, size) for size in sizes]
    timed = partial(_device_pass, _replays(work)) if device.type == "cuda" else partial(_wall_pass, work)
    return [timed() for _ in range(1 + passes)][1:]


def _products(weights: Sequence[Tensor], inputs: Mapping[int, Tensor], size: int) -> Callable[[], None]:
    def run() -> None:
        for weight in weights:
            F.linear(inputs[weight.shape[1]][:size], weight)

    return run


def _replays(work: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
    """The same as CUDA graphs. The largest comes first, for all others fit into its memory."""
    memory, largest_first = torch.cuda.graph_pool_handle(), work[::-1]

    def all_of_it() -> None:
        for run in largest_first:
            run()

    run_aside(all_of_it)
    return [recorded(run, memory).replay for run in largest_first][::-1]


def _device_pass(replays: Sequence[Callable[[], None]]) -> list[float]:
    """Seconds of each by the device's clock, one right behind the other.

    The largest comes first: while it runs, the host gets ahead of the device, and stays there.
    """
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(replays) + 1)]
    events[0].record()
    for replay, event in zip(replays[::-1], events[1:], strict=True):
        replay()
        event.record()
    events[-1].synchronize()
    return [before.elapsed_time(after) * 1e-3 for before, after in pairwise(events)][::-1]


def _wall_pass(work: Sequence[Callable[[], None]]) -> list[float]:
    return [wall_seconds(run) for run in work]
