"""From scores of drafts to what a dense trace holds: match bits, second candidates, margins, confidence, entropy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from recguide.sim.paper.latent import MOST, Array, Text
from recguide.sim.paper.published import AFTER_REJECTION
from recguide.traces.dense import Drafts

RISKY = 128
"""Steps of 1/256 below which a margin is risky at the paper's delta."""
KEPT = (AFTER_REJECTION[4] / AFTER_REJECTION[1]) ** (1 / 3)
"""By which the share of right tokens falls from one place behind a rejection to the next."""
SECOND_SHARE = (0.2, 0.5)
"""Of what a margin leaves, p1's share: drawn between these, at which mean confidences are near the published ones."""
ENTROPY_SLOPE, ENTROPY_TROUBLE = 0.4, 0.3
"""Logarithms: of the verifier's entropy in nats over the hazard, and over a token's trouble. Assumed."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """How well drafts of one category know their own doubt."""

    bias: float
    """Of the normal quantile of a margin over the distance of its score from the threshold."""
    noise: float
    """Its standard deviation."""
    doubt: float
    """Standard deviation of what all margins of a draft have in common besides."""
    second: float
    """Share of wrong, risky draft tokens whose second candidate is right."""
    second_sure: float
    """The same of those that were not risky."""
    contrast: float
    """How much more often, as a logarithm, its texts leave hard stretches."""
    continuation_miss: float
    """Share of continuations whose first token is wrong for other reasons than its score."""


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Random numbers of one view, common to its block sizes; [positions, MOST] where nothing else is said."""

    doubt: Array
    """[positions]"""
    noise: Array
    after: Array
    """Uniform: how far tokens behind a wrong one are right all the same; a draft has one for all of them."""
    second: Array
    split: Array


def draws_of(rng: np.random.Generator, positions: int) -> Draws:
    """Fresh ones."""
    shape = (positions, MOST)
    normal = (rng.standard_normal(size, dtype=np.float32) for size in (positions, shape))
    return Draws(*normal, *(rng.random(shape, dtype=np.float32) for _ in range(3)))


def drafts_of(
    score: Array, threshold: Array, doubtful: Array, draws: Draws, confidence: Confidence, view: str, num_tokens: int
) -> Drafts:
    """The drafts of a view with so many draft tokens; all arrays are [positions, MOST].

    ``doubtful`` are the thresholds behind a first token that is itself in doubt and not yet known: in continuations.
    """
    part = slice(0, num_tokens)
    excess = (score - threshold)[:, part]
    unseen = np.float32(confidence.noise) * draws.noise[:, part] + np.float32(confidence.doubt) * draws.doubt[:, None]
    if view == "continuation":
        unsure = np.float32(confidence.bias) + excess[:, :1] + unseen[:, :1] < 0
        excess[:, 1:] -= np.where(unsure, (doubtful - threshold)[:, part][:, 1:], np.float32(0.0))
    right = _after_a_wrong_one(excess >= 0, draws.after[:, :1])
    behind = np.cumsum(excess < 0, axis=1) - (excess < 0) > 0
    # behind a wrong token the draft is on another text, and as unsure as chance has it
    felt = np.where(behind, np.float32(0.0), excess)
    margin = ndtr(np.float32(confidence.bias) + felt + unseen)
    steps = _steps(margin)
    share = np.where(steps < RISKY, confidence.second, confidence.second_sure)
    second = ~right & (draws.second[:, part] < share)
    if view == "continuation":
        right[:, 0] &= draws.split[:, 0] >= confidence.continuation_miss
        second[:, 0] &= ~right[:, 0]
    low, high = np.float32(SECOND_SHARE[0]), np.float32(SECOND_SHARE[1] - SECOND_SHARE[0])
    p1 = _steps(margin + (1 - margin) * (low + high * draws.split[:, part]))
    bits = packed(second)
    return Drafts(packed(right), bits, bits.copy(), steps, np.maximum(p1, steps) if view == "seeded" else None)


def _after_a_wrong_one(right: NDArray[np.bool_], chance: Array) -> NDArray[np.bool_]:
    """The same up to each first wrong token; behind it the published shares are right, whatever the score."""
    wrong = ~right
    first = np.where(wrong.any(axis=1), wrong.argmax(axis=1), right.shape[1])
    behind = np.arange(right.shape[1]) - first[:, None]
    share = AFTER_REJECTION[1] / 100 * KEPT ** np.maximum(behind - 1, 0)
    found: NDArray[np.bool_] = np.where(behind < 1, right, chance < share)
    return found


def packed(bits: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """[positions] Bit i of each mask is column i."""
    places = np.uint32(1) << np.arange(bits.shape[1], dtype=np.uint32)
    found: NDArray[np.uint32] = np.where(bits, places, np.uint32(0)).sum(axis=1, dtype=np.uint32)
    return found


def entropy_of(rng: np.random.Generator, text: Text, positions: int, noise: float) -> Array:
    """[positions] The verifier's entropy in nats: higher where drafts err, as far as ``noise`` lets it be seen."""
    log = np.float32(ENTROPY_SLOPE) * text.log_hazard - np.float32(ENTROPY_TROUBLE) * text.trouble
    log = log[:positions] + np.float32(noise) * rng.standard_normal(positions, dtype=np.float32)
    found: Array = np.exp(np.minimum(log, np.float32(2.0))).astype(np.float32)
    return found


def _steps(probability: Array) -> NDArray[np.uint8]:
    return np.minimum(255, np.floor(256 * probability)).astype(np.uint8)
