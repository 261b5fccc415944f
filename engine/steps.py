"""One-token steps of a fixed number of requests, by CUDA graph replay where there is a GPU."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.attention import causal_mask
from recguide.engine.graphs import captured
from recguide.engine.model import Decoder, KVCache

# keys are read up to a multiple of this: a graph has one shape, so each multiple that is reached needs one of its own
SPAN_STEP = 256
# requests whose prompts are read together
PREFILL_ROWS = 128


class StepDecoder:
    """One-token decoding of a fixed number of requests, a CUDA graph a step where there is a GPU.

    ``temperature`` 0 is greedy. Finished requests run on; their extra tokens are for the caller to cut.
    """

    def __init__(self, decoder: Decoder, num_requests: int, capacity: int, temperature: float = 0.0) -> None:
        self.decoder, self.capacity, self.temperature = decoder, capacity, temperature
        self.cache = KVCache(decoder.config, num_requests, capacity, decoder.device, decoder.dtype)
        self.last = torch.zeros(num_requests, dtype=torch.long, device=decoder.device)
        self.positions = torch.zeros_like(self.last)
        self.longest = 0
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.memory = torch.cuda.graph_pool_handle() if self.last.is_cuda else None

    @torch.no_grad()
    def run(self, ids: Tensor, lengths: Tensor, num_tokens: int) -> Tensor:
        """Prompts ``[N, T]`` of ``lengths`` ``[N]`` in, up to ``num_tokens`` tokens of each out, ``[N, tokens]``.

        There are fewer when every request has ended before.
        """
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

    def prefill(self, ids: Tensor, lengths: Tensor) -> None:
        """Read prompts ``ids`` ``[N, T]`` of ``lengths`` ``[N]`` and pick each request's first token."""
        num_tokens = ids.shape[1]
        slots = torch.arange(num_tokens, device=ids.device)
        for first in range(0, len(ids), PREFILL_ROWS):
            rows = slice(first, min(first + PREFILL_ROWS, len(ids)))
            at = slots.expand(rows.stop - rows.start, -1)
            mask = causal_mask(torch.zeros_like(lengths[rows]), num_tokens, num_tokens)
            hidden = self.decoder.hidden(ids[rows], at, mask, self.cache.rows(rows), at)
            last = hidden[torch.arange(len(at), device=ids.device), lengths[rows] - 1]
            self.last[rows] = self.pick(self.decoder.logits(last))
        self.positions.copy_(lengths)
        self.longest = int(lengths.max())

    def advance(self) -> None:
        """Feed the last tokens: every request goes on by one position, its newest token is in ``last``."""
        self.longest += 1
        span = min(self.capacity, -(-self.longest // SPAN_STEP) * SPAN_STEP)
        if self.memory is None:
            self.step(span)
            return
        if span not in self.graphs:
            self.graphs[span] = self._captured(span)
        self.graphs[span].replay()

    def step(self, span: int) -> None:
        """One position, with keys read from the first ``span`` slots."""
        slots = self.positions[:, None]
        mask = causal_mask(self.positions, 1, span)
        hidden = self.decoder.hidden(self.last[:, None], slots, mask, self.cache, slots)
        self.last.copy_(self.pick(self.decoder.logits(hidden[:, 0])))
        self.positions += 1

    def pick(self, logits: Tensor) -> Tensor:
        """The next token from logits ``[N, V]``, never the mask token."""
        logits[:, self.decoder.config.mask_id] = float("-inf")
        if self.temperature > 0:
            # Gumbel-max, since torch.multinomial cannot be captured in a graph
            noise = torch.rand_like(logits).clamp_(1e-9, 1 - 1e-7)
            logits = logits / self.temperature - torch.log(-torch.log(noise))
        return logits.argmax(-1)

    def _captured(self, span: int) -> torch.cuda.CUDAGraph:
        last, positions = self.last.clone(), self.positions.clone()
        graph = captured(lambda: self.step(span), self.memory)
        self.last.copy_(last)
        self.positions.copy_(positions)
        return graph


def pad(prompts: Sequence[Sequence[int]], width: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Prompts as rows ``[N, width]`` padded with zeros on the right, and their lengths."""
    rows = np.zeros((len(prompts), width), np.int64)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    return rows, np.array([len(prompt) for prompt in prompts], np.int32)
