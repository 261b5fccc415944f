"""Sizes that forwards are filled up to here: a size whose products are slower than a larger one's moves to that one.

Timed at start-up, from products of the model's shapes; on a CPU nothing is timed, and nothing moves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import typer
from torch import Tensor

from recguide.engine.adapters import drafts_merged
from recguide.engine.environment import gpu_name
from recguide.engine.model import Decoder, Layer
from recguide.engine.product_times import Samples, beyond_cache, medians, passes_aside
from recguide.sim.costs import APART, DRAFTS, EIGHTHS, FILL, MERGED, MOVED, read_profile, resolve_profile
from recguide.sim.sizes import NOBODY, Moved, filled_up, moved_in, moved_sizes, moved_text, sizes_up_to

LARGEST = 2048
"""Size that is timed; larger ones stay what they are."""
MANY = 16
"""Products with the same head, at most: the time of a small one is too short to be told apart from noise."""
SCORES = "fill_moved_scores"
"""What files call sizes of scores that move; those of tokens have the name that profiles know."""


@dataclass(frozen=True, slots=True, eq=False)
class FillSizes:
    """What forwards are filled up to: their tokens, and the scores that are asked of them."""

    moved_tokens: Moved = field(default_factory=dict)
    moved_scores: Moved = field(default_factory=dict)
    products_s: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """By tokens of a forward that scores all of them, the seconds of its products, pass by pass; nothing untimed."""

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
    """Those of a model with weights of these shapes on a GPU, timed in a process of its own, which takes seconds."""
    sizes, work = sizes_up_to(LARGEST), [beyond_cache(layers), beyond_cache([[head]] * MANY)]
    found = passes_aside(work, sizes)
    tokens, scores = (moved_sizes(sizes, medians(samples)) for samples in found)
    moved = FillSizes(tokens, scores)
    shares = [portion([weight for layer in layers for weight in layer], work[0]), portion([head], work[1])]
    return replace(moved, products_s=whole_products(moved, sizes, found, shares))


def portion(whole: Sequence[Tensor], timed: Sequence[Tensor]) -> float:
    """What all these weights are of those that were timed, which are of the same shapes."""
    return sum(weight.numel() for weight in whole) / sum(weight.numel() for weight in timed)


def whole_products(
    moved: FillSizes, sizes: Sequence[int], found: Sequence[Samples], portions: Sequence[float]
) -> dict[int, list[float]]:
    """Seconds of all products of a forward by its size, which is filled up as ``moved`` says; in every pass.

    ``found`` are of layers and of heads, with every one of the sizes, and the portions what is run of those.
    """
    layers, heads = (np.array(samples) * share for samples, share in zip(found, portions, strict=True))
    at = {size: index for index, size in enumerate(sizes)}
    return {
        size: (layers[:, at[moved.of_tokens(size)]] + heads[:, at[moved.of_scores(size)]]).tolist() for size in sizes
    }


def profiled_sizes(profile: str | None, decoder: Decoder, dtype: str) -> FillSizes | None:
    """Those that a profile was measured with, by name or path; None where there is none of this model and machine.

    ``dtype`` is as options name it. Whoever serves what a profile foretells runs the forwards that it is of. One of
    something else is named on stderr.
    """
    if profile is None:
        return None
    path = resolve_profile(profile)
    header = {DRAFTS: APART, **read_profile(path).header}
    model, gpu = decoder.config.name, gpu_name(decoder.device)
    here = {"model": model, "dtype": dtype, "gpu": gpu, "torch": str(torch.__version__)}
    here |= {DRAFTS: MERGED if drafts_merged(decoder) else APART}
    if other := [name for name in here if header[name] != here[name]]:
        _warn(path, header, here, other)
    # drafts of either kind have the same sizes
    if MOVED not in header or {*other} - {DRAFTS}:
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
