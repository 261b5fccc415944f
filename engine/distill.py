"""Self-distillation data: what a model answers greedily, to given prompts and to prompts it wrote itself.

An adapter has to agree with its own verifier, not with a data set, so it trains on the model's own greedy text
(DFlash, https://github.com/z-lab/dflash, regenerates its responses for the same reason).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from recguide.engine.steps import StepDecoder, pad


@dataclass(frozen=True, slots=True)
class Corpus:
    """Prompts with their greedy responses: row i of ``tokens`` ``[N, L]`` is a prompt, its response, then padding."""

    tokens: NDArray[np.int32]
    prompt_lens: NDArray[np.int32]
    response_lens: NDArray[np.int32]


def response_lengths(tokens: NDArray[np.int64], eos_ids: Sequence[int]) -> NDArray[np.int32]:
    """Tokens up to and with the first end-of-sequence token in each row of ``tokens`` ``[N, T]``, else T."""
    ended = np.isin(tokens, eos_ids)
    lengths: NDArray[np.int32] = np.where(ended.any(1), ended.argmax(1) + 1, tokens.shape[1]).astype(np.int32)
    return lengths


def distil(
    steps: StepDecoder,
    prompts: Sequence[Sequence[int]],
    max_prompt: int,
    max_response: int,
    keep_going: Callable[[int], bool],
) -> Corpus:
    """Greedy responses of up to ``max_response`` tokens, batch by batch while ``keep_going(rows so far)``.

    Prompts longer than ``max_prompt`` must have been left out; the last batch is filled up with the first prompts.
    """
    size = len(steps.last)
    device = steps.last.device
    rows: list[NDArray[np.int32]] = []
    prompt_lens: list[NDArray[np.int32]] = []
    for first in range(0, len(prompts), size):
        if not keep_going(first):
            break
        batch = list(prompts[first : first + size])
        wanted = len(batch)
        ids, lengths = pad(batch + [prompts[0]] * (size - wanted), max_prompt)
        out = steps.run(torch.from_numpy(ids).to(device), torch.from_numpy(lengths).long().to(device), max_response)
        rows.append(_join(ids, lengths, out.cpu().numpy(), max_response)[:wanted])
        prompt_lens.append(lengths[:wanted])
    tokens, lens = np.concatenate(rows), np.concatenate(prompt_lens)
    return Corpus(tokens, lens, _lens_after(tokens, lens, max_response, steps.decoder.config.eos_ids))


def _join(
    ids: NDArray[np.int64], lengths: NDArray[np.int32], out: NDArray[np.int64], max_response: int
) -> NDArray[np.int32]:
    joined = np.zeros((len(ids), ids.shape[1] + max_response), np.int32)
    joined[:, : ids.shape[1]] = ids
    columns = lengths[:, None] + np.arange(out.shape[1])
    np.put_along_axis(joined, columns, out.astype(np.int32), 1)
    return joined


def _lens_after(
    tokens: NDArray[np.int32], prompt_lens: NDArray[np.int32], max_response: int, eos_ids: Sequence[int]
) -> NDArray[np.int32]:
    columns = prompt_lens[:, None] + np.arange(max_response)
    return response_lengths(np.take_along_axis(tokens, columns, 1).astype(np.int64), eos_ids)


def invent_prompts(
    steps: StepDecoder, openings: Sequence[Sequence[int]], max_new: int, closing: Sequence[int], count: int
) -> list[list[int]]:
    """Prompts a model writes itself: it goes on from ``openings`` (a user header and perhaps a first few words).

    ``closing`` (end of turn, assistant header) is put behind what it wrote up to its end-of-turn token; turns that do
    not end within ``max_new`` tokens are left out. Needs a ``steps`` with a temperature.
    """
    eos = steps.decoder.config.eos_ids
    width = max(map(len, openings))
    found: list[list[int]] = []
    for start in range(0, 40 * len(steps.last), len(steps.last)):
        if len(found) >= count:
            break
        batch = [list(openings[(start + row) % len(openings)]) for row in range(len(steps.last))]
        ids, lengths = pad(batch, width)
        device = steps.last.device
        out = steps.run(torch.from_numpy(ids).to(device), torch.from_numpy(lengths).long().to(device), max_new)
        for opening, written in zip(batch, out.cpu().numpy().tolist(), strict=True):
            end = next((at for at, token in enumerate(written) if token in eos), None)
            if end is not None and len(opening) + end >= 12:
                found.append([*opening, *written[:end], *closing])
    return found[:count]
