"""The best tokens of a distribution and how sure it is of them, a slice of the vocabulary's scores at a time."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from recguide.engine.model import Decoder

# scores held at once: 256 MB of fp32, of which a softmax makes a few copies
MAX_SCORES = 2**26


class Candidates(NamedTuple):
    """What the distributions at some positions prefer, MASK removed first; all fields have the positions' shape."""

    first: Tensor
    second: Tensor
    second_no_eos: Tensor
    """The best token that is neither ``first`` nor an EOS."""
    p1: Tensor
    p2: Tensor
    """Probabilities of ``first`` and ``second``."""


def candidates(decoder: Decoder, hidden: Tensor) -> Candidates:
    """Candidates behind hidden states ``[..., hidden]``, from fp32 scores."""
    parts = [_best_of(scores, decoder.config.eos_ids) for scores in _scores(decoder, hidden)]
    columns = (torch.cat(column) for column in zip(*parts, strict=True))
    return Candidates(*(column.view(hidden.shape[:-1]) for column in columns))


def entropies(decoder: Decoder, hidden: Tensor) -> Tensor:
    """Entropy in nats, ``[...]``, of the distributions behind hidden states ``[..., hidden]``."""
    parts = [torch.special.entr(scores.softmax(-1)).sum(-1) for scores in _scores(decoder, hidden)]
    return torch.cat(parts).view(hidden.shape[:-1])


def _scores(decoder: Decoder, hidden: Tensor) -> Iterator[Tensor]:
    """Scores ``[some, vocab]`` of one slice of positions after the other, MASK barred."""
    for part in torch.split(hidden.flatten(0, -2), max(1, MAX_SCORES // decoder.config.vocab_size)):
        scores = decoder.logits(part)
        scores[:, decoder.config.mask_id] = float("-inf")
        yield scores


def _best_of(scores: Tensor, eos_ids: tuple[int, ...]) -> Candidates:
    """The candidates of scores ``[M, vocab]``, which are overwritten: each best token is barred for the next."""
    log_total = scores.logsumexp(-1)
    best, first = scores.max(-1)
    scores.scatter_(1, first[:, None], float("-inf"))
    runner_up, second = scores.max(-1)
    for token in eos_ids:
        # one by one: a list of indices would be copied to the device, and waited for
        scores[:, token] = float("-inf")
    return Candidates(first, second, scores.argmax(-1), (best - log_total).exp(), (runner_up - log_total).exp())
