"""Rotary embedding as Llama-family checkpoints ask for it: plain, YaRN or Llama 3's, and scaled queries."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (https://arxiv.org/abs/2309.00071, section 3.2): slow frequencies are divided by ``factor``, fast ones kept.

    Fast is what turns ``beta_fast`` times or more within ``original_context`` tokens, slow what turns ``beta_slow``
    times or less; in between the share of both goes linearly with the index of the frequency. ``truncate`` widens that
    range to whole indices. Rotated queries and keys are multiplied by ``attention_factor`` alike.
    """

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class Llama3:
    """The scaling of Llama 3.1: wavelengths above ``original_context / low_freq_factor`` grow by ``factor``.

    Those below ``original_context / high_freq_factor`` stay, and in between the two are mixed.
    """

    factor: float
    original_context: int
    low_freq_factor: float
    high_freq_factor: float


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """Llama 4's: the query at position p is multiplied by ``1 + beta * ln(1 + floor(p / period))`` (1 below period)."""

    beta: float
    period: int


RopeScaling = Yarn | Llama3
Table = tuple[Tensor, Tensor]
"""Cosines and sines, ``[N, T, 1, head_dim / 2]`` each."""


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Radians per position of each pair of a head, ``[head_dim / 2]`` in fp32 on the CPU, the fastest first."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    plain = 1.0 / theta**exponents
    if isinstance(scaling, Yarn):
        kept = yarn_kept(head_dim, theta, scaling)
        return plain / scaling.factor * (1 - kept) + plain * kept
    return plain if scaling is None else _llama3(plain, scaling)


def yarn_kept(head_dim: int, theta: float, yarn: Yarn) -> Tensor:
    """How much of each frequency YaRN keeps, ``[head_dim / 2]``: 1 for the fast ones, 0 for the slow ones."""

    def index_of(turns: float) -> float:
        # where theta**(-2 i / head_dim) * original_context = 2 pi turns
        return head_dim * math.log(yarn.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = index_of(yarn.beta_fast), index_of(yarn.beta_slow)
    if yarn.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    # a range of no width is a step
    width = last - first or 0.001
    return 1 - ((torch.arange(head_dim // 2, dtype=torch.float32, device="cpu") - first) / width).clamp(0, 1)


def _llama3(plain: Tensor, scaling: Llama3) -> Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    # turns within the original context: slow below low, fast above high
    turns = scaling.original_context / (2 * math.pi / plain)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / scaling.factor + kept * plain


def rotary_table(positions: Tensor, frequencies: Tensor, factor: float = 1.0) -> Table:
    """The table at ``positions`` ``[N, T]`` in fp32, multiplied by ``factor``."""
    angles = positions.float()[..., None, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)


def scaled(table: Table, positions: Tensor, scaling: QueryScaling | None) -> Table:
    """The table that rotates queries, and scales them where the model asks for it."""
    if scaling is None:
        return table
    periods = torch.floor(positions.float() / scaling.period)
    scale = (1 + scaling.beta * torch.log(1 + periods))[..., None, None]
    return table[0] * scale, table[1] * scale


def rotate(x: Tensor, table: Table) -> Tensor:
    """Apply the half-split rotary embedding to ``x`` ``[N, T, heads, head_dim]``."""
    cos, sin = table
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
