"""Self-distillation data: what a model answers greedily, to given prompts and to prompts it wrote itself.

An adapter has to agree with its own verifier, not with a data set, so it trains on the model's own greedy text
(DFlash, https://github.com/z-lab/dflash, regenerates its responses for the same reason).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.attention import causal_mask
from recguide.engine.model import Decoder, KVCache


@dataclass(frozen=True, slots=True)
class Corpus:
    """Prompts with their greedy responses: row i of ``tokens`` ``[N, L]`` is a prompt, its response, then padding."""

    tokens: NDArray[np.int32]
    prompt_lens: NDArray[np.int32]
    response_lens: NDArray[np.int32]


class StepDecoder:
    """One-token decoding of a fixed number of requests, a CUDA graph a step where there is a GPU.

    ``temperature`` 0 is greedy. Finished requests run on; their extra tokens are for the caller to cut.
    """

    def __init__(self, decoder: Decoder, num_requests: int, capacity: int, temperature: float = 0.0) -> None:
        self.decoder, self.capacity, self.temperature = decoder, capacity, temperature
        self.cache = KVCache(decoder.config, num_requests, capacity, decoder.device, decoder.dtype)
        self.last = torch.zeros(num_requests, dtype=torch.long, device=decoder.device)
        self.positions = torch.zeros_like(self.last)
        self.graph: torch.cuda.CUDAGraph | None = None

    def pick(self, logits: Tensor) -> Tensor:
        """The next token from logits ``[N, V]``, never the mask token."""
        logits[:, self.decoder.config.mask_id] = float("-inf")
        if self.temperature > 0:
            # Gumbel-max, since torch.multinomial cannot be captured in a graph
            noise = torch.rand_like(logits).clamp_(1e-9, 1 - 1e-7)
            logits = logits / self.temperature - torch.log(-torch.log(noise))
        return logits.argmax(-1)

    def step(self) -> None:
        """Feed the last tokens, advance every request by one position."""
        slots = self.positions[:, None]
        mask = causal_mask(self.positions, 1, self.capacity)
        hidden = self.decoder.hidden(self.last[:, None], slots, mask, self.cache, slots)
        self.last.copy_(self.pick(self.decoder.logits(hidden[:, 0])))
        self.positions += 1

    def advance(self) -> None:
        """:meth:`step`, replayed from a graph once one has been captured."""
        if self.last.is_cuda and self.graph is None:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self.step()

    def _capture(self) -> None:
        last, positions = self.last.clone(), self.positions.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()
        self.last.copy_(last)
        self.positions.copy_(positions)

    def prefill(self, ids: Tensor, lengths: Tensor, chunk: int = 128) -> None:
        """Read prompts ``ids`` ``[N, T]`` of ``lengths`` ``[N]`` and pick each request's first token."""
        num_tokens = ids.shape[1]
        slots = torch.arange(num_tokens, device=ids.device)
        for first in range(0, len(ids), chunk):
            rows = slice(first, min(first + chunk, len(ids)))
            part = self.cache.rows(rows)
            at = slots.expand(rows.stop - rows.start, -1)
            mask = causal_mask(torch.zeros_like(lengths[rows]), num_tokens, num_tokens)
            hidden = self.decoder.hidden(ids[rows], at, mask, part, at)
            last = hidden[torch.arange(len(at), device=ids.device), lengths[rows] - 1]
            self.last[rows] = self.pick(self.decoder.logits(last))
        self.positions.copy_(lengths)

    @torch.no_grad()
    def run(self, ids: Tensor, lengths: Tensor, num_tokens: int) -> Tensor:
        """Prompts in, up to ``num_tokens`` generated tokens out, ``[N, tokens]``; fewer when every request ended."""
        self.prefill(ids, lengths)
        picked = [self.last.clone()]
        eos = torch.tensor(self.decoder.config.eos_ids, device=ids.device)
        done = torch.isin(self.last, eos)
        for count in range(1, num_tokens):
            # asking the device is a sync, so ask seldom
            if count % 32 == 0 and bool(done.all()):
                break
            self.advance()
            picked.append(self.last.clone())
            done |= torch.isin(self.last, eos)
        return torch.stack(picked, 1)


def pad(prompts: Sequence[Sequence[int]], width: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Prompts as rows ``[N, width]`` padded with zeros on the right, and their lengths."""
    rows = np.zeros((len(prompts), width), np.int64)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    return rows, np.array([len(prompt) for prompt in prompts], np.int32)


def response_lengths(tokens: NDArray[np.int64], eos_ids: Sequence[int]) -> NDArray[np.int32]:
    """Tokens up to and with the first end-of-sequence token in each row of ``tokens`` ``[N, T]``, else T."""
    ended = np.isin(tokens, eos_ids)
    return np.where(ended.any(1), ended.argmax(1) + 1, tokens.shape[1]).astype(np.int32)


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
