"""What a forward in SGLang reads: its tokens, and where in SGLang's KV pool their keys go and what they see.

SGLang keeps, for every request, a row of slots of the pool, ``req_to_token``; the slots behind the cached tokens are
set aside for the widest forward there is. So the host sends rows and places, and the device looks up the slots.
"""

from dataclasses import dataclass

import numpy as np
import torch
from sglang.srt.speculative.spec_info import SpecInput, SpecInputType
from torch import Tensor

from recguide.engine.batches import Batch, Fill, Frame
from recguide.engine.inputs import Inputs, Shape
from recguide.engine.pages import PagedCache
from recguide.engine.requests import Live
from recguide.engine.sglang_requests import SglangLive
from recguide.kernels.layouts import Rows
from recguide.sim.rounds import Ints

WASTE_SLOT = 0
"""Which SGLang's pools set aside for tokens that are nobody's."""


class PooledInputs(Inputs):
    """The array of one shape; ``req_to_token`` is SGLang's, int32 ``[places, slots]``."""

    def __init__(self, shape: Shape, device: torch.device, req_to_token: Tensor, page_size: int) -> None:
        super().__init__(shape, device)
        self.req_to_token, self.page_size = req_to_token, page_size

    def sizes(self, shape: Shape) -> dict[str, int]:
        """As of any forward, with places of requests and of their tokens instead of a page table and slots."""
        own = {"owner": shape.tokens, "place": shape.tokens, "pool": shape.requests}
        known = super().sizes(shape)
        return {**{name: size for name, size in known.items() if name not in ("slots", "table")}, **own}

    def _put_frame(self, frame: Frame, fill: Fill | None) -> None:
        """What stays as it is, and whose each token is."""
        super()._put_frame(frame, fill)
        self._set("owner", frame.owner, 0)

    def _put_pages(self, batch: Batch, cache: PagedCache, lens: Ints, place: Ints) -> None:
        """The row of each request, and where in it each token is."""
        self._set("place", place, -1)
        self._set("pool", np.array([pool_of(live) for live in batch.lives]), 0)

    @property
    def slots(self) -> Tensor:
        """Int64 ``[tokens]``: where keys go."""
        place = self["place"].long()
        rows = self["pool"].long()[self["owner"].long()]
        return torch.where(place >= 0, self.req_to_token[rows, place.clamp(min=0)].long(), WASTE_SLOT)

    @property
    def rows(self) -> Rows:
        """What row attention reads; the pages of the table are SGLang's."""
        first = self.req_to_token[:, : self.shape.pages * self.page_size : self.page_size]
        table = first[self["pool"].long()]
        return Rows(self["indptr"], self["prefix"], table // self.page_size, self["visible"])


def pool_of(live: Live) -> int:
    """The row of ``req_to_token`` that is a request's."""
    assert isinstance(live, SglangLive)
    return live.pool


@dataclass
class BlockForward(SpecInput):
    """What attention and the draft adapter are told of a forward, as SGLang's ``ForwardBatch.spec_info``.

    Everything lies on the device and stays where it is from one forward of a shape to the next.
    """

    rows: Rows
    """In pages of SGLang's page size. Tail token i of a request lies at place prefix + i of its page table."""
    gate: Tensor
    """Bool [tokens] Which tokens are drafts."""
    draft: str
    """Which tokens are: "all", "some" or "none"; the same for every forward of a shape."""
    positions: Tensor
    """Int64 [tokens]"""

    def __post_init__(self) -> None:
        # plugins cannot add a kind; this one is a verify whose layout nobody else looks at
        super().__init__(SpecInputType.NGRAM_VERIFY)


class Carried(SpecInput):
    """What SGLang carries from round to round: nothing, for the requests themselves know where they stand."""

    def __init__(self) -> None:
        super().__init__(SpecInputType.EAGLE_DRAFT)
        self.num_tokens_per_req = self.num_tokens_for_logprob_per_req = 1

    def filter_batch(self, new_indices: Tensor, new_indices_cpu: list[int] | None = None) -> None:
        """Requests leave the batch."""

    def merge_batch(self, other: "Carried") -> None:
        """Requests join it."""
