"""Rounds without the host: forward, statistics, acceptance and the next forward's inputs, replayed as CUDA graphs.

Every forward carries each request's next need, a draft or a verification with its branches, as the device itself has
laid it out. So nobody asks which it is: a graph holds as many forwards as one likes, two for a round of plain linear
self-speculation, and the host looks at how far requests are once in many launches, one look late. On the CPU the same
step runs as it is, in torch.

Attention is torch's under a mask or, with ``rows``, `kernels/row_attention.py`: keys lie in pages either way, and what
the device lays out (visible tokens, prefix lengths) is what that kernel reads.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.engine.attention import attend, attend_folded, mask_bias
from recguide.engine.decode import BLOCK_SIZES, Generation, Round
from recguide.engine.device_cache import PAGE_SIZE, DeviceCache
from recguide.engine.device_reports import Outputs, Report
from recguide.engine.fused import FusedAttention, fused_hidden
from recguide.engine.graphs import captured
from recguide.engine.model import Attention, Decoder, Draft
from recguide.kernels import round_state as rs
from recguide.kernels.accept import advance, advance_reference, start
from recguide.kernels.layouts import Rows
from recguide.kernels.logit_statistics import barred_ids, logit_statistics, logit_statistics_reference
from recguide.kernels.logit_tiling import scratch_for
from recguide.kernels.row_attention import row_attention
from recguide.kernels.row_plan import RowPlan, tile_for
from recguide.sim.overlap import Overlap

# masks span a multiple of this: each is a graph of its own
SPAN_STEP = 256
FINISH_REASONS = {rs.ENDED: "eos", rs.LIMITED: "length"}


def round_rules(decoder: Decoder, rules: Overlap, max_context: int, block_sizes: Sequence[int]) -> rs.RoundRules:
    """Overlap for the device; without corrections and continuation it is linear self-speculation in lockstep.

    ``block_sizes`` are those that a round at the context limit may have.
    """
    return rs.RoundRules(
        rules.block_size,
        decoder.config.mask_id,
        max_context,
        tuple(sorted(size for size in block_sizes if 2 <= size < rules.block_size)),
        rules.corrections,
        rules.continuation,
        int(rules.delta * 256),
        rules.eos == "barred",
        rules.recursive,
        decoder.config.draft_shift,
        lockstep=not rules.corrections and rules.continuation == "never",
    )


class DeviceRounds:
    """Rounds of a fixed number of requests, ``forwards`` of them a launch."""

    def __init__(
        self,
        decoder: Decoder,
        num_requests: int,
        capacity: int,
        rules: rs.RoundRules,
        *,
        forwards: int | None = None,
        launches: int = 8,
        rows: bool = False,
        fused: bool = True,
        pages: int | None = None,
    ) -> None:
        """``capacity`` is in tokens of a request; the host looks once in ``launches``. ``fused`` matters on a GPU.

        ``forwards`` defaults to 4 there, since between two graphs the device idles longer than within one, and to 2 on
        a CPU. With ``pages`` requests share so many pages of 16 tokens; else each has what it may need.
        """
        forwards = forwards or (4 if decoder.device.type == "cuda" else 2)
        if rules.lockstep and forwards % 2:
            raise ValueError(f"forwards is {forwards}; allowed: even, a draft and a verification each")
        self.decoder, self.rules, self.forwards, self.launches = decoder, rules, forwards, launches
        device, self.cuda = decoder.device, decoder.device.type == "cuda"
        self.rows, self.fused = rows and self.cuda, fused and self.cuda
        each = forwards * launches
        self.requests = rs.make_requests(num_requests, rules, each * rules.block_size + 1, each, device)
        self.forward = rs.make_forward(num_requests, rules, device)
        self.eos, self.sizes = rs.eos_tensor(decoder.config.eos_ids, device), rs.sizes_tensor(rules, device)
        self.barred = barred_ids(decoder.config.mask_id, decoder.config.eos_ids, device)
        self.scratch = scratch_for(num_requests * rules.num_tokens, decoder.config.vocab_size, device)
        # the last forward may write a whole one behind the last token
        self.cache = DeviceCache(decoder, num_requests, capacity + rules.num_tokens, pages)
        self.capacity = self.cache.most * PAGE_SIZE
        if self.rows:
            self._make_rows(num_requests)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.memory = torch.cuda.graph_pool_handle() if self.cuda else None

    def _make_rows(self, num_requests: int) -> None:
        config, tokens = self.decoder.config, self.rules.num_tokens
        ends = tokens * torch.arange(num_requests + 1, dtype=torch.int32, device=self.decoder.device)
        table, visible = self.cache.tables.table, self.forward.visible.flatten()
        self.row_args = Rows(ends, self.forward.prefix_lens, table, visible)
        tile = tile_for(tokens * config.num_heads // config.num_kv_heads, config.head_dim, self.decoder.dtype)
        heads = (config.num_heads, config.num_kv_heads)
        self.plan = RowPlan(num_requests, num_requests * tokens, heads, config.head_dim, ends.device, tile)

    @torch.no_grad()
    def run(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[Generation]:
        """The greedy output of every prompt, as :func:`decode.linear_self_speculation` gives it, rounds included.

        RuntimeError where the verifier gives NaN or pages run out. ``outputs`` keeps rounds with their outcome flags.
        """
        self.begin(prompts, max_new_tokens)
        self.outputs = Outputs(len(prompts))
        reports, last = [Report.room_for(self.requests) for _ in range(2)], None
        longest, count = max(map(len, prompts)), 0
        while True:
            report = reports[count % 2]
            for _ in range(self.launches):
                longest += self.most_tokens
                self.launch(longest)
            report.take(self.requests)
            # one report late: the device works on while the host reads
            if last is not None:
                state = self._read(last)
                longest = int(state[:, rs.CACHED].max()) + self.launches * self.most_tokens
                if (state[:, rs.PHASE] == rs.DONE).all():
                    break
            last, count = report, count + 1
        return self._generations(self._read(report))

    @property
    def most_tokens(self) -> int:
        """The most tokens that a launch can give a request."""
        return self.forwards * self.rules.block_size // (2 if self.rules.lockstep else 1)

    def _read(self, report: Report) -> NDArray[np.int32]:
        state = report.wait()
        self.outputs.drain(report, state)
        return state

    def _generations(self, state: NDArray[np.int32]) -> list[Generation]:
        for finish, why in ((rs.BROKEN, "the verifier's logits hold NaN"), (rs.STARVED, "no KV pages were left")):
            found = np.flatnonzero(state[:, rs.FINISH] == finish).tolist()
            if found:
                raise RuntimeError(f"requests {found}: {why}")
        return [
            Generation(tuple(tokens), FINISH_REASONS[int(finish)], tuple(Round(*entry[:3]) for entry in rounds))
            for tokens, finish, rounds in zip(
                self.outputs.tokens, state[:, rs.FINISH], self.outputs.rounds, strict=True
            )
        ]

    @torch.no_grad()
    def begin(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        """Cache the prompts and start every request behind its first token."""
        first, apart = self.cache.read_prompts(self.decoder, prompts)
        lens = torch.tensor([len(prompt) for prompt in prompts], device=first.device)
        limits = (self.rules.max_context - lens).clamp(max=max_new_tokens)
        start(self.requests, self.forward, lens, limits, first, self.eos, self.sizes, self.rules)
        self.cache.settle(self.requests, self.forward)
        self.cache.take_prompts(apart)

    def launch(self, longest: int) -> None:
        """Some forwards of requests that have up to ``longest`` tokens behind them, without waiting."""
        step = self.capacity if self.rows else SPAN_STEP
        span = min(self.capacity, -(-(longest + self.rules.num_tokens) // step) * step)
        if not self.cuda:
            self.steps(span)
            return
        if span not in self.graphs:
            self.graphs[span] = self._captured(span)
        self.graphs[span].replay()

    @torch.no_grad()
    def steps(self, span: int) -> None:
        """The forwards of a launch; in lockstep drafts and verifications alternate, else each token knows."""
        for count in range(self.forwards):
            self.step(span, count % 2 == 0 if self.rules.lockstep else self.forward.gate)

    def step(self, span: int, draft: Draft) -> None:
        """One forward, and what follows from it."""
        logits = self.decoder.logits(self._hidden(span, draft).flatten(0, 1))
        if self.cuda:
            found = logit_statistics(logits, self.barred, self.scratch)
        else:
            found = logit_statistics_reference(logits, self.barred)
        then = advance if self.cuda else advance_reference
        then(self.requests, self.forward, found, self.eos, self.sizes, self.rules)
        self.cache.settle(self.requests, self.forward)

    def _hidden(self, span: int, draft: Draft) -> Tensor:
        forward, slots = self.forward, self.cache.slots(self.forward)
        if not self.fused:
            return self.decoder.run(forward.ids, forward.positions, self._attention(slots, span), draft)
        attention = self._row_attention() if self.rows else self._masked_attention(span)
        pages = (self.cache.keys, self.cache.values)
        return fused_hidden(self.decoder, forward.ids, forward.positions, slots, pages, attention, draft)

    def _attention(self, slots: Tensor, span: int) -> Attention:
        bias = mask_bias(rs.tail_mask(self.forward, span), self.decoder.dtype)

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.cache.write(layer, slots, k.flatten(0, 1), v.flatten(0, 1))
            return attend(q.transpose(1, 2), *self.cache.read(layer, span), bias)

        return attention

    def _masked_attention(self, span: int) -> FusedAttention:
        config = self.decoder.config
        bias = mask_bias(rs.tail_mask(self.forward, span), self.decoder.dtype)
        bias = bias.repeat(1, 1, config.num_heads // config.num_kv_heads, 1)

        def attention(layer: int, q: Tensor) -> Tensor:
            attended = attend_folded(q.transpose(1, 2), *self.cache.read(layer, span), bias)
            return attended.transpose(1, 2).flatten(2)

        return attention

    def _row_attention(self) -> FusedAttention:
        self.plan.update(self.row_args)

        def attention(layer: int, q: Tensor) -> Tensor:
            keys, values = self.cache.keys[layer], self.cache.values[layer]
            return row_attention(q.flatten(0, 1), keys, values, self.row_args, self.plan).view(*q.shape[:2], -1)

        return attention

    def _captured(self, span: int) -> torch.cuda.CUDAGraph:
        kept = [(column, column.clone()) for column in self._columns()]
        # nobody goes on in the run before, so no page changes hands
        self.requests.state[:, rs.FINISH], self.requests.state[:, rs.PHASE] = rs.LIMITED, rs.DONE
        graph = captured(lambda: self.steps(span), self.memory)
        for column, before in kept:
            column.copy_(before)
        return graph

    def _columns(self) -> list[Tensor]:
        parts = (self.requests, self.forward, self.cache.tables)
        return [getattr(part, name) for part in parts for name in part.__slots__]


def device_self_speculation(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    rules: Overlap,
    max_new_tokens: int,
    *,
    max_context: int | None = None,
    block_sizes: Sequence[int] = BLOCK_SIZES,
    launches: int = 8,
    rows: bool = False,
    fused: bool = True,
    pages: int | None = None,
) -> list[Generation]:
    """What :func:`decode.linear_self_speculation` gives, in rounds that need no host; options as in DeviceRounds."""
    limit = decoder.config.max_context if max_context is None else max_context
    capacity = max(min(len(prompt) + max_new_tokens, limit) for prompt in prompts)
    made = round_rules(decoder, rules, limit, block_sizes)
    runner = DeviceRounds(decoder, len(prompts), capacity, made, launches=launches, rows=rows, fused=fused, pages=pages)
    return runner.run(prompts, max_new_tokens)
