"""Keys and values of requests whose rounds run without the host, in pages."""

from collections.abc import Sequence

import torch
from torch import Tensor

from recguide.engine.decode import prefill
from recguide.engine.model import Decoder, KVCache
from recguide.kernels.page_tables import (
    PageTables,
    make_page_tables,
    page_slots,
    settle_pages,
    settle_pages_reference,
)
from recguide.kernels.round_state import Forward, Requests

PAGE_SIZE = 16


class DeviceCache:
    """Pages that requests share, or as many for each as it may ever need, which then lie side by side.

    ``keys`` and ``values`` are ``[layers, pages, page_size, kv_heads, dim]``; page 0 takes what nobody needs.
    """

    def __init__(self, decoder: Decoder, num_requests: int, capacity: int, shared_pages: int | None) -> None:
        config, device = decoder.config, decoder.device
        self.most = -(-capacity // PAGE_SIZE)
        self.shared = shared_pages is not None
        count = num_requests * self.most + 1 if shared_pages is None else shared_pages
        shape = (config.num_layers, count, PAGE_SIZE, config.num_kv_heads, config.head_dim)
        self.keys, self.values = (torch.zeros(shape, device=device, dtype=decoder.dtype) for _ in range(2))
        self.tables: PageTables = make_page_tables(num_requests, self.most, count, device)
        if not self.shared:
            own = torch.arange(1, count, dtype=torch.int32, device=device).view(num_requests, -1)
            self.tables.table.copy_(own)

    def slots(self, forward: Forward) -> Tensor:
        """Where the keys of a forward's tokens go, int64 ``[N * T]``: page * page_size + place in the page."""
        return page_slots(self.tables, forward.slots, PAGE_SIZE)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put keys and values ``[tokens, kv_heads, dim]`` there."""
        self.keys[layer].flatten(0, 1)[slots] = keys
        self.values[layer].flatten(0, 1)[slots] = values

    def read(self, layer: int, span: int) -> tuple[Tensor, Tensor]:
        """``[N, kv_heads, span, dim]`` of the first slots of every request: views, or copies where pages are shared."""
        keys, values = (self._rows(part[layer])[:, :span].transpose(1, 2) for part in (self.keys, self.values))
        return keys, values

    def _rows(self, pages: Tensor) -> Tensor:
        table = self.tables.table
        held = pages[table.long()] if self.shared else pages[1:].unflatten(0, table.shape)
        return held.flatten(1, 2)

    def read_prompts(self, decoder: Decoder, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, KVCache]:
        """The first token of each output, and the prompts' keys, which have no pages yet."""
        longest = max(map(len, prompts))
        apart = KVCache(decoder.config, len(prompts), longest, decoder.device, decoder.dtype)
        return prefill(decoder, apart, prompts), apart

    def take_prompts(self, apart: KVCache) -> None:
        """Put the prompts' keys into the pages that requests have got by now."""
        _, rows, _, longest, _ = apart.keys.shape
        slots = torch.arange(longest, device=self.keys.device).expand(rows, -1)
        places = page_slots(self.tables, slots, PAGE_SIZE)
        for layer, (keys, values) in enumerate(zip(apart.keys, apart.values, strict=True)):
            self.write(layer, places, keys.transpose(1, 2).flatten(0, 1), values.transpose(1, 2).flatten(0, 1))

    def settle(self, requests: Requests, forward: Forward) -> None:
        """Let requests hold what their next forward fills, where they share pages."""
        if self.shared:
            settle = settle_pages if self.keys.is_cuda else settle_pages_reference
            settle(self.tables, requests, forward, PAGE_SIZE)
