"""Pages are held by one request each or free, and who gets which does not depend on the machine."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.kernels import round_state as rs
from recguide.kernels.page_tables import (
    PageTables,
    make_page_tables,
    page_slots,
    settle_pages,
    settle_pages_reference,
)

PAGE, MOST, PAGES, REQUESTS = 4, 5, 14, 4
lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), min_size=REQUESTS, max_size=REQUESTS)


class Play:
    """Pages of four requests on one device, moved by one of the two ways."""

    def __init__(self, device: torch.device | str, settle) -> None:
        rules = rs.RoundRules(2, 3, 100)
        self.requests = rs.make_requests(REQUESTS, rules, 8, 8, device)
        self.forward = rs.make_forward(REQUESTS, rules, device)
        self.pages = make_page_tables(REQUESTS, MOST, PAGES, device)
        self.settle = settle

    def step(self, wanted: list[tuple[int, int]]) -> None:
        self.forward.prefix_lens.copy_(torch.tensor([prefix for prefix, _ in wanted]))
        self.forward.num_tokens.copy_(torch.tensor([tokens for _, tokens in wanted]))
        self.requests.state[:, rs.FINISH], self.requests.state[:, rs.PHASE] = rs.RUNNING, rs.VERIFY
        self.settle(self.pages, self.requests, self.forward, PAGE)

    def seen(self) -> list[list[int]]:
        columns = [getattr(self.pages, field.name) for field in fields(PageTables) if field.name != "free"]
        stack = self.pages.free[: int(self.pages.num_free)]
        columns += [stack, self.requests.state, self.forward.num_tokens]
        return [column.tolist() for column in columns]


@settings(max_examples=60)
@given(steps=st.lists(lengths, min_size=1, max_size=6))
def test_every_page_is_held_once_or_free_and_requests_hold_what_they_fill(steps):
    play = Play("cpu", settle_pages_reference)
    for wanted in steps:
        play.step(wanted)
        held = play.pages.held.tolist()
        rows = [row[:count] for row, count in zip(play.pages.table.tolist(), held, strict=True)]
        free = play.pages.free[: int(play.pages.num_free)].tolist()
        assert sorted([*free, *(page for row in rows for page in row)]) == list(range(1, PAGES))
        assert all(not any(row[count:]) for row, count in zip(play.pages.table.tolist(), held, strict=True))
        finish = play.requests.state[:, rs.FINISH].tolist()
        for row, (prefix, tokens) in enumerate(wanted):
            if finish[row] == rs.STARVED:
                assert play.forward.num_tokens[row] == 0
                assert play.requests.state[row, rs.PHASE] == rs.DONE
            else:
                assert held[row] == (-(-(prefix + tokens) // PAGE) if tokens else 0)
        if sum(-(-(prefix + tokens) // PAGE) for prefix, tokens in wanted if tokens) < PAGES:
            assert rs.STARVED not in finish


def test_the_kernel_does_what_the_reference_does(device):
    generator = torch.Generator().manual_seed(0)
    plain, kernel = Play("cpu", settle_pages_reference), Play(device, settle_pages)
    for _ in range(30):
        prefixes = torch.randint(0, 13, (REQUESTS,), generator=generator).tolist()
        tokens = (torch.randint(0, 9, (REQUESTS,), generator=generator) * torch.tensor([1, 1, 0, 1])).tolist()
        for play in (plain, kernel):
            play.step(list(zip(prefixes, tokens, strict=True)))
        assert kernel.seen() == plain.seen()


def test_who_comes_too_late_starves_and_gives_its_pages_back_the_next_time():
    play = Play("cpu", settle_pages_reference)
    play.step([(12, 8), (12, 8), (0, 4), (0, 0)])
    assert play.pages.held.tolist() == [5, 5, 1, 0]
    play.step([(12, 8), (12, 8), (8, 8), (0, 1)])
    finish = play.requests.state[:, rs.FINISH].tolist()
    assert finish == [rs.RUNNING, rs.RUNNING, rs.STARVED, rs.STARVED]
    assert play.pages.held.tolist() == [5, 5, 1, 0]
    play.step([(12, 8), (12, 8), (8, 0), (0, 1)])
    assert play.pages.held.tolist() == [5, 5, 0, 1]


def test_slots_behind_the_pages_of_a_request_are_on_page_0():
    play = Play("cpu", settle_pages_reference)
    play.step([(3, 2), (0, 0), (0, 0), (0, 0)])
    first, second = play.pages.table[0, :2].tolist()
    found = page_slots(play.pages, torch.tensor([[3, 4, 8, 99]] * REQUESTS), PAGE)
    assert found[:4].tolist() == [first * PAGE + 3, second * PAGE, 0, 3]
    assert found[4:8].tolist() == [3, 0, 0, 3]


def test_a_request_longer_than_its_table_is_refused():
    with pytest.raises(ValueError, match="wants 6 pages; allowed: up to 5"):
        Play("cpu", settle_pages_reference).step([(20, 1), (0, 0), (0, 0), (0, 0)])
