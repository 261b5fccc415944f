"""Sizes that forwards are filled up to here: a size whose products are slower than a larger one's moves to that one.

Timed at start-up, from the model's own products; on a CPU nothing is timed, and nothing moves.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from recguide.engine.clocks import wall_seconds
from recguide.engine.environment import gpu_name
from recguide.engine.graphs import recorded, run_aside
from recguide.engine.model import Decoder, Layer
from recguide.sim.costs import EIGHTHS, FILL, MOVED, read_profile, resolve_profile
from recguide.sim.sizes import NOBODY, Moved, filled_up, moved_in, moved_sizes, moved_text, sizes_up_to

LARGEST = 2048
"""Size that is timed; larger ones stay what they are."""
PASSES = 7
"""Over all sizes, behind one that counts for nothing."""
BEYOND_CACHE = 256 * 2**20
"""Bytes of weights that no GPU keeps in its cache from one run to the next, as it does not in a forward."""
MANY = 16
"""Products with the same head, at most: the time of a small one is too short to be told apart from noise."""
SCORES = "fill_moved_scores"
"""What files call sizes of scores that move; those of tokens have the name that profiles know."""


@dataclass(frozen=True, slots=True, eq=False)
class FillSizes:
    """What forwards are filled up to: their tokens, and the scores that are asked of them."""

    moved_tokens: Moved = field(default_factory=dict)
    moved_scores: Moved = field(default_factory=dict)

    def of_tokens(self, count: int) -> int:
        """The size of a forward of so many tokens."""
        return filled_up(count, self.moved_tokens)

    def of_scores(self, count: int) -> int:
        """The number of scores of one that is asked for so many."""
        return filled_up(count, self.moved_scores)

    def told(self) -> dict[str, str]:
        """What files say of them."""
        return {FILL: EIGHTHS, MOVED: moved_text(self.moved_tokens), SCORES: moved_text(self.moved_scores)}


PLAIN = FillSizes()
"""Nothing moves."""


def fill_sizes(layers: Sequence[Sequence[Tensor]], head: Tensor) -> FillSizes:
    """Those of a model with these weights on a GPU, from timing them, which takes about a second."""
    sizes = sizes_up_to(LARGEST)
    work = beyond_cache(layers), beyond_cache([[head]] * MANY)
    found = FillSizes(*(moved_sizes(sizes, product_seconds(weights, sizes)) for weights in work))
    torch.cuda.empty_cache()
    return found


def profiled_sizes(profile: str | None, model: str, dtype: str, device: torch.device) -> FillSizes | None:
    """Those that a profile was measured with, by name or path; None where there is none of this model and machine.

    ``dtype`` is as options name it. Whoever serves what a profile foretells runs the forwards that it is of. One of
    something else is named on stderr.
    """
    if profile is None:
        return None
    path = resolve_profile(profile)
    header = read_profile(path).header
    here = {"model": model, "dtype": dtype, "gpu": gpu_name(device), "torch": str(torch.__version__)}
    if other := [name for name in here if header[name] != here[name]]:
        _warn(path, header, here, other)
    if MOVED not in header or other:
        return None
    tokens, scores = (moved_in(header.get(name, NOBODY), f"{path}: header: {name}") for name in (MOVED, SCORES))
    return FillSizes(tokens, scores)


def _warn(path: Path, header: Mapping[str, str], here: Mapping[str, str], other: Sequence[str]) -> None:
    """A policy that looks at costs serves by them all the same, which is slower and no more than that."""
    found = "; ".join(f"{name}: found {header[name]}, but here is {here[name]}" for name in other)
    typer.echo(f"warning: {path}: {found}", err=True)


def layer_weights(decoder: Decoder) -> list[list[Tensor]]:
    """The weights ``[out, in]`` of each layer's products."""
    return [list(_weights(layer)) for layer in decoder.layers]


def _weights(layer: torch.nn.Module) -> Iterator[Tensor]:
    assert isinstance(layer, Layer)
    for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
        yield linear.weight


def beyond_cache(layers: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The weights of the first layers: of one, where it is too large to stay in a cache, else of more."""
    bytes_of = [sum(weight.nbytes for weight in layer) for layer in layers]
    many = 1 + sum(total < BEYOND_CACHE for total in accumulate(bytes_of))
    return [weight for layer in layers[:many] for weight in layer]


@torch.no_grad()
def product_seconds(weights: Sequence[Tensor], sizes: Sequence[int], passes: int = PASSES) -> list[float]:
    """Median seconds, over some passes, of a product of so many rows with each of the weights, for every size.

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
    samples = [timed() for _ in range(1 + passes)]
    return [float(seconds) for seconds in np.median(samples[1:], 0)]


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
