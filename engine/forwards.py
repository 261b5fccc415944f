"""One forward over what several requests bring, padding-free, over paged keys (paper, section 5.3).

On a GPU a shape that comes back is captured as a CUDA graph, which reads everything from one array. What a forward
found stays on the device until `Forwards.read` asks for it: a verify takes the tokens of its draft from there.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from recguide.engine.batches import Fill, batch_of
from recguide.engine.clocks import Stopwatch
from recguide.engine.fused import fused_hidden, turns_at
from recguide.engine.graphs import Recording
from recguide.engine.inputs import Inputs, Shape, power_of_2, shape_of
from recguide.engine.model import Decoder, Draft
from recguide.engine.pages import PagedCache
from recguide.engine.planning import Piece
from recguide.engine.sampling import perturbed
from recguide.engine.scores import Scores
from recguide.kernels.logit_statistics import (
    LogitStatistics,
    barred_ids,
    logit_statistics,
    logit_statistics_reference,
)
from recguide.kernels.logit_tiling import Scratch, scratch_for
from recguide.kernels.row_attention import row_attention, row_attention_reference
from recguide.kernels.row_plan import RowPlan, Tile, tile_for

CAPTURE_AFTER = 2
"""Forwards of a shape that run without a graph before it gets one."""
MAX_CAPTURED = 4096
"""Tokens of the largest forward that gets one; what is larger keeps the GPU busy by itself."""
CUTS: tuple[int, ...] = ()
"""Layers behind whose attention a graph ends and the next one begins. None: on an H200 the host launches a graph of 400
kernels in 25 us, and steps of graphs that were cut took 0.2 to 0.3 ms longer."""
FIRST_SCORES = 2 * MAX_CAPTURED
"""Scores that there is room for from the start: more than any forward with a graph has."""


class Forwards:
    """Runs forwards of one model over one cache.

    ``rounded`` makes shapes few, and ``graphs`` captures those that come back; both are for GPUs. ``most_pages`` are
    those of the longest request, scratch included.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: PagedCache,
        graphs: bool = True,
        rounded: bool | None = None,
        most_pages: int = 16,
    ) -> None:
        self.decoder, self.cache, self.device = decoder, cache, decoder.device
        self.cuda = self.device.type == "cuda"
        self.graphs = graphs and self.cuda
        self.rounded = self.cuda if rounded is None else rounded
        self.most_pages = most_pages
        self.capture_after = CAPTURE_AFTER
        self.barred = barred_ids(decoder.config.mask_id, decoder.config.eos_ids, self.device)
        self.watch = Stopwatch(self.device)
        """Seconds of forwards by the device's clock."""
        self._waited_s = 0.0
        self._results: dict[bool, Tensor] = {}
        """[6, scores] By whether the forward takes tokens of the one before it: outside of what graphs use again."""
        self._inputs: dict[Shape, Inputs] = {}
        self._plans: dict[tuple[int, int, Tile], RowPlan] = {}
        self._parts: dict[Tile, tuple[Tensor, Tensor]] = {}
        self._scratch: dict[int, Scratch] = {}
        self._captured: dict[Shape, Recording] = {}
        self._cut: Callable[[], None] | None = None
        self._seen: Counter[Shape] = Counter()
        self._memory = torch.cuda.graph_pool_handle() if self.graphs else None

    @torch.no_grad()
    def run(self, pieces: Sequence[Piece], fill: Fill | None = None, *, graph: bool = True) -> Tensor:
        """Run the pieces together; gives the statistics of their scores, one below the other, ``[6, scores]``.

        They are overwritten by the next forward that has, or has not, a ``fill``, which takes tokens from the last one
        that had none. Without ``graph`` none is used or made: for shapes that hardly ever come back.
        """
        batch = batch_of(pieces)
        exact = shape_of(batch, self.cache.page_size, fill is not None)
        if exact.pages > self.most_pages:
            self._grow(exact.pages)
        shape = exact.rounded(self.most_pages) if self.rounded else exact
        inputs = self.inputs(shape)
        inputs.put(batch, self.cache, fill)
        result = self._result(shape)
        self.watch.run(lambda: self._launch(inputs, graph))
        return result[:, : exact.scores]

    def read(self, *statistics: Tensor) -> Scores:
        """Fetch what forwards found, one below the other, which waits for the device."""
        whole = statistics[0] if len(statistics) == 1 else torch.cat(statistics, 1)
        started = time.perf_counter()
        if self.cuda and not whole.numel():
            # nothing is fetched, and yet whoever asks for times counts on the device having finished
            torch.cuda.synchronize(self.device)
        first, second, second_no_eos, p1, margin, entropy = whole.cpu().numpy().copy()
        self._waited_s += time.perf_counter() - started
        ids = first.astype(np.int64), second.astype(np.int64), second_no_eos.astype(np.int64)
        return Scores(*ids, _steps(margin), _steps(p1), entropy)

    def spent(self) -> tuple[float, float]:
        """Seconds of forwards, and those that the host waited for them, since the last asking; after a ``read``.

        On a CPU the host does the forwards itself, which is waiting for them.
        """
        forward_s, waited_s = self.watch.take(), self._waited_s
        self._waited_s = 0.0
        return forward_s, waited_s if self.watch.on_gpu else forward_s

    def inputs(self, shape: Shape) -> Inputs:
        """The array that forwards of a shape read."""
        if shape not in self._inputs:
            if not self.rounded:
                # shapes are many, and nobody needs the array of the last one
                self._inputs.clear()
            self._inputs[shape] = Inputs(shape, self.device)
        return self._inputs[shape]

    def _result(self, shape: Shape) -> Tensor:
        held = self._results.get(shape.filled)
        if held is None or held.shape[1] < shape.scores:
            self._forget_graphs()
            size = max(shape.scores, 2 * held.shape[1] if held is not None else FIRST_SCORES)
            self._results[shape.filled] = torch.zeros(len(LogitStatistics._fields), size, device=self.device)
        return self._results[shape.filled]

    def _grow(self, pages: int) -> None:
        """Be ready for requests that are longer than announced."""
        self.most_pages = pages
        self.__dict__.pop("turns", None)
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        """Graphs know where results lie. Memory whose graphs are all gone takes no more of them."""
        self._captured.clear()
        self._memory = torch.cuda.graph_pool_handle() if self.graphs else None

    def _launch(self, inputs: Inputs, graph: bool) -> None:
        shape = inputs.shape
        if not (self.graphs and graph) or shape.tokens > MAX_CAPTURED:
            self._compute(inputs)
            return
        if shape not in self._captured:
            self._seen[shape] += 1
            self._compute(inputs)
            if self._seen[shape] >= self.capture_after:
                self._captured[shape] = self._capture(inputs)
            return
        self._captured[shape].replay()

    def _capture(self, inputs: Inputs) -> Recording:
        """What has just run, so that all kernels are there."""

        def work(cut: Callable[[], None]) -> None:
            self._cut = cut
            try:
                self._compute(inputs)
            finally:
                self._cut = None

        return Recording(work, self._memory)

    def _compute(self, inputs: Inputs) -> None:
        """Everything that a forward does on the device; it asks the host for nothing."""
        shape = inputs.shape
        hidden = self.hidden(inputs, {"all": True, "none": False, "some": inputs["gate"].bool()[None, :, None]})
        if shape.scores:
            found = self._statistics(hidden[0].index_select(0, inputs["scored"]), inputs)
            self._results[shape.filled][:, : shape.scores].copy_(found)

    def hidden(self, inputs: Inputs, draft: dict[str, Draft]) -> Tensor:
        """Hidden states ``[1, tokens, hidden]``; ``draft`` says for each kind of forward which tokens are drafts."""
        ids = inputs["ids"]
        if inputs.shape.filled:
            source = inputs["source"].long()
            # what is no token is fed as some token, and is known to be wrong when it is read
            before = self._results[False][0, source.clamp(min=0)].int().clamp(min=0)
            ids = torch.where(source >= 0, before, ids)
        run = self._fused if self.cuda else self._plain
        return run(inputs, ids[None], inputs["slots"].long(), draft[inputs.shape.draft])

    def _plain(self, inputs: Inputs, ids: Tensor, slots: Tensor, draft: Draft) -> Tensor:
        cache, rows = self.cache, inputs.rows

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(layer, slots, k[0], v[0])
            out = row_attention_reference(q[0], cache.keys[layer], cache.values[layer], rows)[0]
            # tokens that fill the shape up have no request, and their NaN is nobody's
            return out.to(q.dtype).transpose(0, 1)[None]

        return self.decoder.run(ids, inputs["positions"].long()[None], attention, draft)

    def _fused(self, inputs: Inputs, ids: Tensor, slots: Tensor, draft: Draft) -> Tensor:
        cache, rows, positions = self.cache, inputs.rows, inputs["positions"]
        plan = self._plan(inputs.shape)
        plan.update(rows)

        def attention(layer: int, q: Tensor) -> Tensor:
            # tokens that fill the shape up get no attention, and whatever they hold is nobody's
            out = row_attention(q[0], cache.keys[layer], cache.values[layer], rows, plan).flatten(1)[None]
            if self._cut is not None and layer in CUTS:
                self._cut()
            return out

        where = ids, positions[None], slots, (cache.keys, cache.values)
        q_cos, q_sin, k_cos, k_sin = self.turns.index_select(1, positions)
        return fused_hidden(self.decoder, *where, attention, draft, ((q_cos, q_sin), (k_cos, k_sin)))

    @cached_property
    def turns(self) -> Tensor:
        """``[4, positions, dim / 2]`` What rotates queries and keys at every position that there may be."""
        most = self.most_pages * self.cache.page_size
        tables = turns_at(self.decoder, torch.arange(most, device=self.device)[None])
        return torch.stack([part for table in tables for part in table])

    def _plan(self, shape: Shape) -> RowPlan:
        """A plan for such forwards. Results in parts are large, and plans of the same tile share theirs."""
        config = self.decoder.config
        heads = (config.num_heads, config.num_kv_heads)
        group = config.num_heads // config.num_kv_heads
        tile = tile_for(-(-shape.tokens // shape.requests) * group, config.head_dim, self.decoder.dtype)
        key = shape.requests, power_of_2(shape.tokens), tile
        if key not in self._plans:
            plan = RowPlan(*key[:2], heads, config.head_dim, self.device, tile)
            plan.partial, plan.partial_lse = self._parts.setdefault(tile, (plan.partial, plan.partial_lse))
            self._plans[key] = plan
        return self._plans[key]

    def _statistics(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        logits = F.linear(hidden, self.decoder.head)
        found = self._found(logits)
        if inputs.shape.sampled:
            # what is sure and what is picked depends on the noise; how uncertain the model is does not
            noise = inputs["heat"].view(torch.float32), inputs["seeds"].long(), inputs["about"].long()
            found = self._found(perturbed(logits.float(), *noise))._replace(entropy=found.entropy)
        # token ids are exact in fp32
        return torch.stack([column.float() for column in found])

    def _found(self, logits: Tensor) -> LogitStatistics:
        if not self.cuda:
            return logit_statistics_reference(logits.float(), self.barred)
        count = len(logits)
        if count not in self._scratch:
            self._scratch[count] = scratch_for(count, logits.shape[1], self.device)
        return logit_statistics(logits, self.barred, self._scratch[count])


def _steps(share: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Shares in steps of 1/256, as traces have them; NaN is 0."""
    steps: NDArray[np.uint8] = np.fmin(np.fmax(share * 256, 0), 255).astype(np.uint8)
    return steps
