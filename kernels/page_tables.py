"""KV pages of requests, handed out and taken back on the device between two rounds.

Page 0 is nobody's: tables are padded with it, so that tokens which a forward does not need have somewhere to go.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from recguide.kernels.round_state import DONE, FINISH, PHASE, STARVED, Forward, Requests


@dataclass(frozen=True, slots=True)
class PageTables:
    """Who holds which page; every page but 0 is held by one request or free."""

    table: Tensor
    """int32 [N, most pages of a request] A request's pages in order, then zeros."""
    held: Tensor
    """int32 [N] How many of them."""
    free: Tensor
    """int32 [pages] A stack of free pages, of which the first ``num_free`` count."""
    num_free: Tensor
    """int32 [1]"""


def make_page_tables(num_requests: int, most_pages: int, num_pages: int, device: torch.device | str) -> PageTables:
    """``num_pages`` pages, page 0 among them, of which nobody holds any."""
    table = torch.zeros(num_requests, most_pages, dtype=torch.int32, device=device)
    free = torch.arange(num_pages - 1, -1, -1, dtype=torch.int32, device=device)
    return PageTables(table, torch.zeros_like(table[:, 0]), free, torch.full_like(free[:1], num_pages - 1))


def settle_pages_reference(pages: PageTables, requests: Requests, forward: Forward, page_size: int) -> None:
    """Let each request hold the pages that its next forward fills; a finished one gives back all that it holds.

    First everybody gives back, then requests take, in their order. From the first on for which there is not enough,
    those that want more end with ``STARVED`` and keep their pages for one more call: whoever runs them may go on with
    their tokens elsewhere. ValueError for one that wants more pages than its table has room for.
    """
    state, tokens = requests.state, forward.num_tokens
    wanted = torch.where(tokens > 0, (forward.prefix_lens + tokens + page_size - 1) // page_size, 0)
    if int(wanted.max()) > pages.table.shape[1]:
        raise ValueError(f"a request wants {int(wanted.max())} pages; allowed: up to {pages.table.shape[1]}")
    available = int(pages.num_free)
    for row, (want, have) in enumerate(zip(wanted.tolist(), pages.held.tolist(), strict=True)):
        for place in range(want, have):
            pages.free[available] = pages.table[row, place]
            pages.table[row, place] = 0
            available += 1
    left, enough = available, True
    for row, (want, have) in enumerate(zip(wanted.tolist(), pages.held.tolist(), strict=True)):
        enough = enough and max(0, want - have) <= left
        if want > have and not enough:
            state[row, FINISH], state[row, PHASE], tokens[row] = STARVED, DONE, 0
            continue
        for place in range(have, want):
            left -= 1
            pages.table[row, place] = pages.free[left]
        pages.held[row] = want
    pages.num_free.fill_(left)


_FINISH, _PHASE, _STARVED, _DONE = map(tl.constexpr, (FINISH, PHASE, STARVED, DONE))


@triton.jit
def _settle_kernel(
    table, held, free, num_free, state, num_tokens, prefix_lens, requests, table_stride, state_stride,
    PAGE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, WIDTH)
    inside = row < requests
    have = tl.load(held + row, mask=inside, other=0)
    tokens = tl.load(num_tokens + row, mask=inside, other=0)
    prefix = tl.load(prefix_lens + row, mask=inside, other=0)
    want = tl.where(tokens > 0, (prefix + tokens + PAGE - 1) // PAGE, 0)
    own = table + row * table_stride
    available = tl.load(num_free)
    back = tl.maximum(have - want, 0)
    first = available + tl.cumsum(back, 0) - back
    place = 0
    most = tl.max(back, 0)
    while place < most:
        moves = place < back
        page = tl.load(own + want + place, mask=moves, other=0)
        tl.store(free + first + place, page, mask=moves)
        tl.store(own + want + place, page * 0, mask=moves)
        place += 1
    available += tl.sum(back, 0)
    # what some threads have given back, others take
    tl.debug_barrier()
    more = tl.maximum(want - have, 0)
    taken = tl.cumsum(more, 0)
    short = (more > 0) & (taken > available)
    more = tl.where(short, 0, more)
    last = available - (taken - more)
    place = 0
    most = tl.max(more, 0)
    while place < most:
        moves = place < more
        page = tl.load(free + last - 1 - place, mask=moves, other=0)
        tl.store(own + have + place, page, mask=moves)
        place += 1
    tl.store(held + row, tl.where(short, have, want), mask=inside)
    tl.store(num_free, available - tl.sum(more, 0))
    tl.store(num_tokens + row, have * 0, mask=short)
    tl.store(state + row * state_stride + _FINISH, have * 0 + _STARVED, mask=short)
    tl.store(state + row * state_stride + _PHASE, have * 0 + _DONE, mask=short)


def settle_pages(pages: PageTables, requests: Requests, forward: Forward, page_size: int) -> None:
    """:func:`settle_pages_reference` in one launch of one program; nobody checks the room in tables."""
    _settle_kernel[(1,)](
        pages.table, pages.held, pages.free, pages.num_free, requests.state, forward.num_tokens, forward.prefix_lens,
        len(pages.held), pages.table.stride(0), requests.state.stride(0),
        PAGE=page_size, WIDTH=triton.next_power_of_2(len(pages.held)),
    )  # fmt: skip


def page_slots(pages: PageTables, slots: Tensor, page_size: int) -> Tensor:
    """Where requests' own slots ``[N, T]`` are: page * page_size + place in the page, int64 ``[N * T]``."""
    index = (slots // page_size).clamp(max=pages.table.shape[1] - 1)
    return (pages.table.long().gather(1, index) * page_size + slots % page_size).flatten()
