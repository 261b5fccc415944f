"""Known texts read again in forwards of several shapes: how far logits depend on the shape, and on the precision.

In exact arithmetic a text's logits are what they are, however many requests and tokens a forward has. In bf16 sums are
rounded differently from shape to shape, so that a token may win here by as little as it loses there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.attention import causal_mask
from recguide.engine.model import Decoder, KVCache
from recguide.engine.steps import pad

MOST_FORWARDS = 300
"""Of one reading; it is of as many of the texts, the first ones, as so many forwards read."""
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt, and the output whose logits are of interest."""

    prompt: Sequence[int]
    output: Sequence[int]


class Shape(NamedTuple):
    """Of forwards: so many requests, with so many tokens each. Prompts are read whole."""

    requests: int
    tokens: int


Reader = Callable[[Sequence[Text], int], list[Tensor]]
"""Hidden states ``[output tokens, hidden]`` that pick each text's output, so many tokens of each text a forward."""


class Reading:
    """Texts as they are read in one shape; ``decoder`` makes logits of hidden states."""

    def __init__(self, decoder: Decoder, reader: Reader, texts: Sequence[Text], shape: Shape) -> None:
        self.decoder, self.shape = decoder, shape
        self.hidden = [hidden for group in _groups(texts, shape) for hidden in reader(group, shape.tokens)]

    def __len__(self) -> int:
        return len(self.hidden)

    def gaps(self, row: int, places: Sequence[int], ours: Sequence[int], others: Sequence[int]) -> Floats:
        """By how much the logits of ``ours`` are above those of ``others``, at these places of a text's output."""
        device = self.decoder.device
        logits = self.decoder.logits(self.hidden[row][torch.tensor(places, device=device)])
        pairs = torch.tensor([ours, others], device=device).T
        mine, theirs = logits.gather(1, pairs).unbind(1)
        gaps: Floats = (mine - theirs).cpu().numpy()
        return gaps

    def runners_up(self, row: int, tokens: Sequence[int]) -> list[int]:
        """The best token beside each token of a text's output, never the mask token."""
        logits = self.decoder.logits(self.hidden[row])
        logits[:, self.decoder.config.mask_id] = float("-inf")
        own = torch.tensor(tokens, device=logits.device)[:, None]
        best: list[int] = logits.scatter(1, own, float("-inf")).argmax(-1).tolist()
        return best


def _groups(texts: Sequence[Text], shape: Shape) -> Iterator[Sequence[Text]]:
    left = MOST_FORWARDS
    for first in range(0, len(texts), shape.requests):
        group = texts[first : first + shape.requests]
        left -= 1 + _steps(group, shape.tokens)
        if left < 0 and first:
            return
        yield group


def _steps(texts: Sequence[Text], tokens: int) -> int:
    return -(-(max(len(text.output) for text in texts) - 1) // tokens)


@torch.no_grad()
def reread(decoder: Decoder, texts: Sequence[Text], tokens: int) -> list[Tensor]:
    """A :data:`Reader` without an engine."""
    device, steps = decoder.device, _steps(texts, tokens)
    width = max(len(text.prompt) for text in texts)
    prompts, lengths = pad([text.prompt for text in texts], width)
    outputs, _ = pad([text.output[: steps * tokens] for text in texts], max(1, steps * tokens))
    read, starts = torch.from_numpy(prompts).to(device), torch.from_numpy(lengths).long().to(device)
    known = torch.from_numpy(outputs).to(device)
    capacity = width + steps * tokens
    cache = KVCache(decoder.config, len(texts), capacity, device, decoder.dtype)
    slots = torch.arange(width, device=device).expand(len(texts), -1)
    mask = causal_mask(torch.zeros_like(starts), width, width)
    hidden = decoder.hidden(read, slots, mask, cache, slots)
    parts = [hidden.gather(1, (starts - 1)[:, None, None].expand(-1, -1, hidden.shape[-1]))]
    for first in range(0, steps * tokens, tokens):
        cached = starts + first
        slots = cached[:, None] + torch.arange(tokens, device=device)
        span = int(lengths.max()) + first + tokens
        mask = causal_mask(cached, tokens, span)
        parts.append(decoder.hidden(known[:, first : first + tokens], slots, mask, cache, slots))
    found = torch.cat(parts, 1)
    return [found[row, : len(text.output)].clone() for row, text in enumerate(texts)]


class Ruler:
    """Gaps between logits of a reference's texts, and the noise that they have.

    ``readings`` are in the served precision, of which the first one, as ``exact``, the one in fp32, is of all texts.
    """

    def __init__(self, texts: Sequence[Text], readings: Sequence[Reading], exact: Reading) -> None:
        self.texts, self.readings, self.exact = texts, readings, exact
        self.noise: list[Floats] = []
        self.exact_noise: list[Floats] = []
        for row in range(len(texts)):
            between, off = self._noise(row)
            self.noise.append(between)
            self.exact_noise.append(off)

    def gap(self, row: int, place: int, other: int) -> tuple[float, float]:
        """By how much the reference's token is above another: in whichever reading that is most, and in fp32.

        Above 0 where the reference's token is the better one.
        """
        asked = [place], [self.texts[row].output[place]], [other]
        found = [float(reading.gaps(row, *asked)[0]) for reading in self._of(row)]
        return max(found, key=abs), float(self.exact.gaps(row, *asked)[0])

    def _of(self, row: int) -> list[Reading]:
        return [reading for reading in self.readings if row < len(reading)]

    def _noise(self, row: int) -> tuple[Floats, Floats]:
        """[output tokens] How far apart the gaps of readings are, and how far from fp32's at most."""
        tokens = self.texts[row].output
        others = self.readings[0].runners_up(row, tokens)
        asked = range(len(tokens)), tokens, others
        found = np.stack([reading.gaps(row, *asked) for reading in self._of(row)])
        exact = self.exact.gaps(row, *asked)
        between = np.ptp(found, 0) if len(found) > 1 else np.full(len(tokens), np.nan, np.float32)
        return between, np.abs(found - exact).max(0)
