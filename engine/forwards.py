"""One forward over what several requests bring, padding-free, over paged keys (paper, section 5.3).

Everything that a forward reads is one array of integers, made on the host and sent in one copy, lengths among it. What
a forward found stays on the device until `read` asks for it: a verify takes the tokens of its draft from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.host import Stopwatch
from recguide.engine.model import Attention, Decoder
from recguide.engine.pages import PagedCache
from recguide.engine.planning import Piece
from recguide.engine.sampling import perturbed
from recguide.kernels.layouts import Rows, tail_slots
from recguide.kernels.logit_statistics import (
    LogitStatistics,
    barred_ids,
    logit_statistics,
    logit_statistics_reference,
)
from recguide.kernels.row_attention import row_attention, row_attention_reference
from recguide.kernels.row_plan import RowPlan, tile_for
from recguide.sim.rounds import Ints

Fill = tuple[Ints, Ints]
"""Which tokens of a forward take which scores' best tokens of the forward before."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one forward reads, on the device."""

    ids: Tensor  # int64 [1, tokens]
    positions: Tensor  # int64 [1, tokens]
    gate: Tensor  # bool [1, tokens, 1]
    any_draft: bool
    scored: Tensor  # int64 [scores]
    rows: Rows
    fill: tuple[Tensor, Tensor] | None
    sampling: tuple[Tensor, Tensor, Tensor] | None  # temperature, seed and position of each score


class Scores(NamedTuple):
    """What the distributions at the scored tokens prefer; arrays of as many entries."""

    first: Ints
    """-1 where there is no distribution, because logits are NaN."""
    second: Ints
    second_no_eos: Ints
    margin: NDArray[np.uint8]
    """Steps of 1/256, as traces have them."""
    p1: NDArray[np.uint8]
    entropy: NDArray[np.float32]

    def part(self, first: int, end: int) -> "Scores":
        """Some of the scores."""
        at = slice(first, end)
        ids = self.first[at], self.second[at], self.second_no_eos[at]
        return Scores(*ids, self.margin[at], self.p1[at], self.entropy[at])


class Forwards:
    """Runs forwards of one model over one cache."""

    def __init__(self, decoder: Decoder, cache: PagedCache) -> None:
        self.decoder, self.cache, self.device = decoder, cache, decoder.device
        self.barred = barred_ids(decoder.config.mask_id, decoder.config.eos_ids, self.device)
        self.watch = Stopwatch(self.device)
        """Seconds of forwards by the device's clock."""
        self._plans: dict[tuple[int, int], RowPlan] = {}

    @torch.no_grad()
    def run(self, pieces: Sequence[Piece], fill: Fill | None = None, before: Tensor | None = None) -> Tensor:
        """Run the pieces together; gives the statistics of their scores, one below the other, ``[6, scores]``.

        ``before`` are the statistics of the forward whose tokens ``fill`` takes.
        """
        batch = self.batch(pieces, fill)
        found: list[Tensor] = []
        self.watch.run(lambda: found.append(self._run(batch, before)))
        return found[0]

    def _run(self, batch: Batch, before: Tensor | None) -> Tensor:
        ids = batch.ids
        if batch.fill is not None:
            assert before is not None
            into, source = batch.fill
            # what is no token is fed as some token, and is known to be wrong when it is read
            ids = ids.clone()
            ids[0, into] = before[0, source].long().clamp(min=0)
        draft = batch.gate if batch.any_draft else False
        hidden = self.decoder.run(ids, batch.positions, self.attention(batch.rows), draft)
        return self._statistics(hidden[0, batch.scored], batch)

    def batch(self, pieces: Sequence[Piece], fill: Fill | None) -> Batch:
        """Send what the pieces say."""
        layouts = [piece.layout for piece in pieces]
        lens, cached = [len(layout) for layout in layouts], [piece.cached for piece in pieces]
        ends = [0, *accumulate(lens)]
        totals = [before + length for before, length in zip(cached, lens, strict=True)]
        table = self.cache.table([piece.live.pages for piece in pieces], totals)
        gate = np.concatenate([layout.gate for layout in layouts])
        scores = [len(layout.scored) for layout in layouts]
        about = np.concatenate([layout.predicts for layout in layouts]) + np.repeat(cached, scores)
        sampled = any(piece.live.wish.temperature for piece in pieces)
        parts = [
            np.concatenate([np.asarray(piece.ids, np.int64) for piece in pieces]),
            np.concatenate([layout.positions for layout in layouts]) + np.repeat(cached, lens),
            gate,
            np.concatenate([layout.scored for layout in layouts]) + np.repeat(ends[:-1], scores),
            np.concatenate([layout.visible for layout in layouts]),
            np.array(ends),
            np.array(cached),
            table.ravel(),
            *(fill or ()),
            *((np.repeat([piece.live.wish.seed for piece in pieces], scores), about) if sampled else ()),
        ]
        sent = self._sent(parts)
        ids, positions, gates, scored, visible, indptr, prefix, pages = sent[:8]
        rows = Rows(indptr.int(), prefix.int(), pages.int().view(table.shape), visible.int())
        filled = (sent[8], sent[9]) if fill else None
        sampling = None
        if sampled:
            heat = np.repeat([piece.live.wish.temperature for piece in pieces], scores).astype(np.float32)
            sampling = (torch.from_numpy(heat).to(self.device), sent[-2], sent[-1])
        gates = gates.bool()[None, :, None]
        return Batch(ids[None], positions[None], gates, bool(gate.any()), scored, rows, filled, sampling)

    def _sent(self, parts: Sequence[NDArray[np.integer | np.bool_]]) -> tuple[Tensor, ...]:
        """Arrays of integers on the device, in one copy."""
        whole = torch.from_numpy(np.concatenate(parts).astype(np.int64, copy=False))
        if self.device.type == "cuda":
            whole = whole.pin_memory().to(self.device, non_blocking=True)
        sent: tuple[Tensor, ...] = whole.split([len(part) for part in parts])
        return sent

    def attention(self, rows: Rows) -> Attention:
        """Attention of these rows, which writes their keys and values first."""
        cache = self.cache
        slots = tail_slots(rows, cache.page_size)
        plan = self._plan(rows) if self.device.type == "cuda" else None

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(layer, slots, k[0], v[0])
            keys, values = cache.keys[layer], cache.values[layer]
            if plan is not None:
                out = row_attention(q[0], keys, values, rows, plan)
            else:
                out = row_attention_reference(q[0], keys, values, rows)[0].to(q.dtype)
            return out.transpose(0, 1)[None]

        return attention

    def _plan(self, rows: Rows) -> RowPlan:
        config = self.decoder.config
        tokens = rows.visible.shape[0]
        shape = (_power_of_2(rows.num_requests), _power_of_2(tokens))
        if shape not in self._plans:
            group = config.num_heads // config.num_kv_heads
            tile = tile_for(-(-tokens // rows.num_requests) * group, config.head_dim, self.decoder.dtype)
            heads = (config.num_heads, config.num_kv_heads)
            self._plans[shape] = RowPlan(*shape, heads, config.head_dim, self.device, tile)
        plan = self._plans[shape]
        plan.update(rows)
        return plan

    def _statistics(self, hidden: Tensor, batch: Batch) -> Tensor:
        if not len(hidden):
            return torch.zeros(len(LogitStatistics._fields), 0, device=self.device)
        logits = self.decoder.logits(hidden)
        found = self._found(logits)
        if batch.sampling is not None:
            # what is sure and what is picked depends on the noise; how uncertain the model is does not
            found = self._found(perturbed(logits, *batch.sampling))._replace(entropy=found.entropy)
        # token ids are exact in fp32
        return torch.stack([column.float() for column in found])

    def _found(self, logits: Tensor) -> LogitStatistics:
        made = logit_statistics if self.device.type == "cuda" else logit_statistics_reference
        return made(logits, self.barred)


def read(statistics: Tensor) -> Scores:
    """Fetch what forwards found, which waits for the device."""
    first, second, second_no_eos, p1, margin, entropy = statistics.cpu().numpy()
    ids = first.astype(np.int64), second.astype(np.int64), second_no_eos.astype(np.int64)
    return Scores(*ids, _steps(margin), _steps(p1), entropy)


def _steps(share: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Shares in steps of 1/256, as traces have them; NaN is 0."""
    steps: NDArray[np.uint8] = np.clip(np.floor(np.nan_to_num(share) * 256), 0, 255).astype(np.uint8)
    return steps


def _power_of_2(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
