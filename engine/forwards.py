"""One forward over what several requests bring, padding-free, over paged keys (paper, section 5.3).

On a GPU a shape that comes back is captured as a CUDA graph, which reads everything from one array. What a forward
found stays on the device until `Forwards.read` asks for it: a verify takes the tokens of its draft from there.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from recguide.engine.batches import Batch, Fill, batch_of
from recguide.engine.clocks import Stopwatch
from recguide.engine.fused import fused_hidden, turns_at
from recguide.engine.graphs import recorded
from recguide.engine.inputs import Inputs, Shape, shape_of
from recguide.engine.model import Decoder, Draft
from recguide.engine.pages import PagedCache
from recguide.engine.planning import Piece
from recguide.engine.row_plans import RowPlans
from recguide.engine.sampling import perturbed
from recguide.engine.scores import Scores, scores_of
from recguide.engine.sizes import PLAIN, FillSizes
from recguide.kernels.logit_statistics import (
    LogitStatistics,
    barred_ids,
    logit_statistics,
    logit_statistics_reference,
)
from recguide.kernels.logit_tiling import Scratch, scratch_for
from recguide.kernels.packed_statistics import packed_statistics, packed_statistics_reference
from recguide.kernels.row_attention import row_attention, row_attention_reference

CAPTURE_AFTER = 2
"""Forwards of a shape that run without a graph before it gets one."""
MAX_CAPTURED = 4096
"""Tokens of the largest forward that gets one; what is larger keeps the GPU busy by itself."""
MOST_SHAPES = 512
"""Shapes that are kept with their graphs, beside those that were prepared: those that ran last."""
FIRST_SCORES = 2 * MAX_CAPTURED
"""Drafted tokens that there is room for from the start: more than any forward with a graph has."""


class Forwards:
    """Runs forwards of one model over one cache.

    ``rounded`` makes shapes few, of ``sizes``, and ``graphs`` captures those that come back; both are for
    GPUs. ``most_pages`` are those of the longest request, scratch included.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: PagedCache,
        graphs: bool = True,
        rounded: bool | None = None,
        most_pages: int = 16,
        sizes: FillSizes = PLAIN,
    ) -> None:
        self.decoder, self.cache, self.device = decoder, cache, decoder.device
        self.cuda = self.device.type == "cuda"
        self.graphs = graphs and self.cuda
        self.rounded = self.cuda if rounded is None else rounded
        self.most_pages, self.sizes = most_pages, sizes
        self.capture_after, self.most_shapes = CAPTURE_AFTER, MOST_SHAPES
        self.barred = barred_ids(decoder.config.mask_id, decoder.config.eos_ids, self.device)
        self.watch = Stopwatch(self.device)
        """Seconds of forwards by the device's clock."""
        self._waited_s = 0.0
        self._best = torch.zeros(FIRST_SCORES, dtype=torch.int32, device=self.device)
        """[scores] The best tokens of the last draft: outside of what graphs use again."""
        self._inputs: OrderedDict[Shape, Inputs] = OrderedDict()
        """Those that ran last stand last."""
        self._last: Inputs | None = None
        self._scratch: dict[int, Scratch] = {}
        self._memory = torch.cuda.graph_pool_handle() if self.graphs else None

    def run(self, pieces: Sequence[Piece], fill: Fill | None = None, *, graph: bool = True) -> Tensor:
        """Run the pieces together; gives where the statistics of their scores will be, for :meth:`read` to read.

        That is until the next forward of the same shape. A ``fill`` takes tokens from the last forward that drafted and
        had none. Without ``graph`` none is used or made: for shapes that hardly ever come back.
        """
        batch = batch_of(pieces)
        shape = self.shape_for(batch, fill is not None)
        if shape.scores > len(self._best) and self._keeps(shape):
            self._enlarge(shape.scores)
        inputs = self.inputs(shape)
        self._inputs.move_to_end(shape)
        inputs.put(batch, self.cache, fill)
        self.watch.run(lambda: self._launch(inputs, graph))
        inputs.launched()
        self._last = inputs
        return inputs.found[:, : len(batch.frame.scored)]

    def shape_for(self, batch: Batch, filled: bool = False) -> Shape:
        """What the forward of a batch is filled up to."""
        exact = shape_of(batch, self.cache.page_size, filled)
        if exact.pages > self.most_pages:
            self._grow(exact.pages)
        return exact.rounded(self.most_pages, self.sizes) if self.rounded else exact

    def read(self, *statistics: Tensor) -> Scores:
        """Fetch what forwards found, one below the other, which waits for the device."""
        started = time.perf_counter()
        if self._last is not None:
            self._last.wait()
        parts = [part.cpu().numpy() for part in statistics]
        self._waited_s += time.perf_counter() - started
        return scores_of(parts[0] if len(parts) == 1 else np.concatenate(parts, 1))

    def spent(self) -> tuple[float, float]:
        """Seconds of forwards, and those that the host waited for them, since the last asking; after a ``read``.

        On a CPU the host does the forwards itself, which is waiting for them.
        """
        forward_s, waited_s = self.watch.take(), self._waited_s
        self._waited_s = 0.0
        return forward_s, waited_s if self.watch.on_gpu else forward_s

    def inputs(self, shape: Shape) -> Inputs:
        """The array that forwards of a shape read."""
        inputs = self._inputs.get(shape)
        if inputs is None:
            passing = [known for known in self._inputs.values() if not known.prepared]
            for known in passing[: len(passing) + 1 - self.most_shapes]:
                self._drop(known)
            inputs = self._inputs[shape] = self._new_inputs(shape)
        return inputs

    def _new_inputs(self, shape: Shape) -> Inputs:
        return Inputs(shape, self.device)

    def _drop(self, inputs: Inputs) -> None:
        """Forget a shape, once the device has done with it."""
        inputs.wait()
        del self._inputs[inputs.shape]
        if inputs.graph is not None and not self.captured:
            self._forget_graphs()

    def told(self) -> dict[str, str]:
        """What files say of how forwards were filled up; nothing where they were not."""
        return self.sizes.told() if self.rounded else {}

    @property
    def captured(self) -> list[torch.cuda.CUDAGraph]:
        """The graphs that there are; those that ran last stand last."""
        return [inputs.graph for inputs in self._inputs.values() if inputs.graph is not None]

    @staticmethod
    def _keeps(shape: Shape) -> bool:
        """Whether a forward of this shape is a draft that others take tokens from."""
        return shape.draft != "none" and not shape.filled

    def _enlarge(self, scores: int) -> None:
        """Have room for more drafted tokens."""
        self._forget_graphs()
        self._best = torch.zeros(2 * scores, dtype=torch.int32, device=self.device)

    def _grow(self, pages: int) -> None:
        """Be ready for requests that are longer than announced."""
        self.most_pages = pages
        self.__dict__.pop("turns", None)
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        """Graphs know where drafted tokens lie. Memory whose graphs are all gone takes no more of them."""
        for inputs in self._inputs.values():
            inputs.wait()
            inputs.graph, inputs.prepared = None, False
        self._memory = torch.cuda.graph_pool_handle() if self.graphs else None

    def _launch(self, inputs: Inputs, graph: bool) -> None:
        if graph and inputs.graph is not None:
            inputs.graph.replay()
            return
        self._compute(inputs)
        if self.graphs and graph and inputs.shape.tokens <= MAX_CAPTURED:
            inputs.runs += 1
            if inputs.runs >= self.capture_after:
                inputs.graph, inputs.prepared = self._capture(inputs), self.capture_after < CAPTURE_AFTER
                if inputs.prepared:
                    # the first launch brings a graph to the device, 0.6 to 1 ms, and nobody waits now
                    inputs.graph.replay()

    def _capture(self, inputs: Inputs) -> torch.cuda.CUDAGraph:
        """What has just run, so that all kernels are there."""
        return recorded(lambda: self._compute(inputs), self._memory)

    @torch.no_grad()
    def _compute(self, inputs: Inputs) -> None:
        """Everything that a forward does on the device, its way there and back; it asks the host for nothing."""
        inputs.send()
        shape = inputs.shape
        hidden = self.hidden(inputs, {"all": True, "none": False, "some": inputs["gate"].bool()[None, :, None]})
        if shape.scores:
            found = self._statistics(hidden[0].index_select(0, inputs["scored"]), inputs)
            inputs.found.copy_(found, non_blocking=True)

    def hidden(self, inputs: Inputs, draft: dict[str, Draft]) -> Tensor:
        """Hidden states ``[1, tokens, hidden]``; ``draft`` says for each kind of forward which tokens are drafts."""
        run = self._fused if self.cuda else self._plain
        return run(inputs, self._tokens(inputs)[None], inputs["slots"].long(), draft[inputs.shape.draft])

    def _tokens(self, inputs: Inputs) -> Tensor:
        """Int32 ``[tokens]``: as they were sent, or the best ones of the draft before."""
        ids = inputs["ids"]
        if not inputs.shape.filled:
            return ids
        source = inputs["source"]
        # what is no token is fed as some token, and is known to be wrong when it is read
        before = self._best[source.clamp(min=0)].clamp(min=0)
        return torch.where(source >= 0, before, ids)

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
        plan = self.plans.plan(rows)
        plan.update(rows)

        def attention(layer: int, q: Tensor) -> Tensor:
            # tokens that fill the shape up get no attention, and whatever they hold is nobody's
            return row_attention(q[0], cache.keys[layer], cache.values[layer], rows, plan).flatten(1)[None]

        where = ids, positions[None], slots, (cache.keys, cache.values)
        q_cos, q_sin, k_cos, k_sin = self.turns.index_select(1, positions)
        return fused_hidden(self.decoder, *where, attention, draft, ((q_cos, q_sin), (k_cos, k_sin)))

    @cached_property
    def turns(self) -> Tensor:
        """``[4, positions, dim / 2]`` What rotates queries and keys at every position that there may be."""
        most = self.most_pages * self.cache.page_size
        tables = turns_at(self.decoder, torch.arange(most, device=self.device)[None])
        return torch.stack([part for table in tables for part in table])

    @cached_property
    def plans(self) -> RowPlans:
        """Those of row attention."""
        config = self.decoder.config
        heads = config.num_heads, config.num_kv_heads
        return RowPlans(heads, config.head_dim, self.decoder.dtype, self.device)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[scores, vocabulary]``."""
        return F.linear(hidden, self.decoder.head)

    def _statistics(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        logits = self._logits(hidden)
        noise = None
        if inputs.shape.sampled:
            noise = inputs["heat"].view(torch.float32), inputs["seeds"].long(), inputs["about"].long()
        return self._packed(self._picked(logits, noise), self._best if self._keeps(inputs.shape) else None)

    def _picked(self, logits: Tensor, noise: tuple[Tensor, Tensor, Tensor] | None) -> LogitStatistics:
        """Statistics of logits under the noise of temperatures: as :func:`perturbed` takes it, None where none is."""
        found = self._found(logits)
        if noise is None:
            return found
        # what is sure and what is picked depends on the noise; how uncertain the model is does not
        return self._found(perturbed(logits.float(), *noise))._replace(entropy=found.entropy)

    def _packed(self, found: LogitStatistics, best: Tensor | None = None) -> Tensor:
        return (packed_statistics if self.cuda else packed_statistics_reference)(found, best)

    def _found(self, logits: Tensor) -> LogitStatistics:
        if not self.cuda:
            return logit_statistics_reference(logits.float(), self.barred)
        count = len(logits)
        if count not in self._scratch:
            self._scratch[count] = scratch_for(count, logits.shape[1], self.device)
        return logit_statistics(logits, self.barred, self._scratch[count])
