"""How hard each token of a text is to foresee: the hidden part of a synthetic text, and the scores of drafts on it.

A text is easy and hard in stretches, so that acceptance lengths of adjacent rounds go together (paper, section 4.2).
A draft token is wrong where a standard normal score falls below a threshold that its hazard gives. Part of the score
belongs to the text's token, whoever drafts it, and part to the draft.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Array = NDArray[np.float32]
MOST = 32
"""The longest draft, in tokens."""
SAME_PREFIX = 0.85
"""Correlation of the drafts' parts of both views at a position. Assumed, near that of the recorded SmolLM2 traces."""


@dataclass(frozen=True, slots=True)
class Dynamics:
    """What all texts have in common; rates and hazards are per token."""

    leave_easy: float
    leave_hard: float
    easy_hazard: float
    hard_hazard: float
    """Of a wrong draft token far from the seed."""
    first: float
    """Of the first token behind the seed, as a share of that."""
    rise: float
    """Tokens over which it rises to that."""
    request_sd: float
    """Of the logarithm of a request's hazards."""
    stretch_sd: float
    """Of that of a hard stretch."""
    shared: float
    """Variance of a score that belongs to the text's token."""
    own: float
    """Variance that belongs to the draft's block size, so that a longer block is not quite a shorter one and more."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """One synthetic text; arrays are [tokens], ``MOST`` of them behind its end."""

    log_hazard: Array
    trouble: Array
    """The text's part of scores: the lower, the harder for everyone."""


def text_of(rng: np.random.Generator, tokens: int, ease: float, contrast: float, dynamics: Dynamics) -> Text:
    """A text whose hazards are divided by exp(``ease``), and hard stretches left exp(``contrast``) times as often."""
    count = tokens + MOST
    easy, stretch = _stretches(rng, count, contrast, dynamics)
    base = np.log([dynamics.hard_hazard, dynamics.easy_hazard])[easy.astype(np.int64)]
    own = rng.standard_normal() * dynamics.request_sd
    hard = rng.standard_normal(count)[stretch] * dynamics.stretch_sd * ~easy
    log_hazard = base - ease + own + hard
    return Text(log_hazard.astype(np.float32), rng.standard_normal(count, dtype=np.float32))


def _stretches(
    rng: np.random.Generator, count: int, contrast: float, dynamics: Dynamics
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """[tokens] Whether each token is in an easy stretch, and the number of its stretch."""
    rates = np.array([dynamics.leave_hard * np.exp(contrast), dynamics.leave_easy])
    starts_easy = rng.random() < rates[0] / rates.sum()
    kinds = (np.arange(count) + starts_easy) % 2
    lengths = rng.geometric(np.minimum(rates[kinds], 1.0))
    stretch = np.repeat(np.arange(count), np.minimum(lengths, count))[:count]
    return kinds[stretch].astype(bool), stretch


def thresholds(text: Text, positions: int, dynamics: Dynamics, times: float = 1.0) -> Array:
    """[positions, MOST] Scores below which draft token i at position p, which is scored against token p+i, is wrong.

    ``times`` multiplies all hazards.
    """
    rise = 1 - (1 - dynamics.first) * np.exp(-np.arange(MOST) / dynamics.rise)
    hazard = np.exp(windows(text.log_hazard, positions)) * np.float32(times) * rise.astype(np.float32)
    found: Array = ndtri(np.clip(hazard, 1e-6, 0.95)).astype(np.float32)
    return found


def scores(rng: np.random.Generator, text: Text, positions: int, dynamics: Dynamics) -> tuple[Array, Array]:
    """Scores of the two views, seeded and continuation, [positions, MOST] each, the block size's part left out.

    Both draft from the same known tokens, so that most of a draft's part is common to them.
    """
    shape = (positions, MOST)
    seeded, other = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    continuation = np.float32(SAME_PREFIX) * seeded + np.float32((1 - SAME_PREFIX**2) ** 0.5) * other
    whole = np.sqrt(np.float32(dynamics.shared)) * windows(text.trouble, positions)
    left = np.sqrt(np.float32(1 - dynamics.shared - dynamics.own))
    return whole + left * seeded, whole + left * continuation


def windows(values: Array, positions: int) -> Array:
    """[positions, MOST] The values from each position on."""
    found: Array = np.lib.stride_tricks.sliding_window_view(values, MOST)[:positions]
    return found
