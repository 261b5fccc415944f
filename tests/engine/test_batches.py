"""What the engine does for many requests at once, against the same done one by one."""

from itertools import groupby

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TINY

from recguide.engine.batches import Runs, batch_of, draft_batch, fill_of, verify_batch
from recguide.engine.linear_rounds import Blocks, changes_of, parts_of, rounds_of
from recguide.engine.outcomes import Change, accepted, apply, tell_roster
from recguide.engine.pages import HeldPages, PagedCache, PagePool
from recguide.engine.planning import draft_piece, prompt_piece, verify_piece, verifying
from recguide.engine.requests import Live, Roster, Wish
from recguide.engine.scores import blank
from recguide.engine.ways import DRAFT_BROKEN, VERIFY_BROKEN
from recguide.kernels.layouts import branch, causal, packed, rows
from recguide.sim.history import PAPER
from recguide.traces.errors import InputError

PAGES = 60


def runs_of(sizes, filled) -> Runs:
    return tuple((*pair, len(list(run))) for pair, run in groupby(zip(sizes, filled, strict=True)))


def live_of(number=0, prompt=3, tokens=(5,), left=9, eos=()):
    return Live(number, [4] * prompt, Wish(99), frozenset(eos), left, tokens=list(tokens))


@settings(max_examples=60)
@given(size=st.integers(1, 6), count=st.integers(1, 5) | st.just(9), data=st.data())
def test_acceptance_of_many_is_that_of_each(size, count, data) -> None:
    token = st.integers(0, 3)
    drafted = np.array(data.draw(st.lists(token, min_size=count * (size - 1), max_size=count * (size - 1))), np.int64)
    verified = np.array(data.draw(st.lists(token, min_size=count * size, max_size=count * size)), np.int64)
    drafted, verified = drafted.reshape(count, size - 1), verified.reshape(count, size)
    kinds = st.sampled_from([(), (0,), (1, 2)])
    lives = [live_of(left=data.draw(st.integers(1, 7)), eos=data.draw(kinds)) for _ in range(count)]
    took = accepted(lives, drafted, verified)
    for row, live in enumerate(lives):
        whole = next((i for i in range(size - 1) if drafted[row, i] != verified[row, i]), size - 1) + 1
        ends = [i for i in range(whole) if verified[row, i] in live.eos_ids]
        # what is drafted behind the end counts as a mismatch, whose correction is the next token
        accept_len = min(whole, ends[0] + 2) if ends else whole
        emitted = min(accept_len, live.tokens_left, *(at + 1 for at in ends[:1]))
        goes_on = emitted < live.tokens_left and not (ends and ends[0] < emitted)
        found = took.accept_len[row], took.emitted[row], took.lives[row], took.token[row]
        assert found == (accept_len, emitted, goes_on, verified[row, accept_len - 1])


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12), seed=st.integers(0, 999))
def test_acceptance_of_several_sizes_is_that_of_each(sizes, seed) -> None:
    rng, most = np.random.default_rng(seed), max(sizes)
    verified = rng.integers(0, 3, (len(sizes), most))
    drafted = np.where(rng.random((len(sizes), most - 1)) < 0.8, verified[:, :-1], 0)
    lives = [live_of(left=int(rng.integers(1, 7)), eos=[(), (0,), (1, 2)][int(rng.integers(3))]) for _ in sizes]
    took = accepted(lives, drafted, verified, sizes=np.array(sizes))
    for row, (live, size) in enumerate(zip(lives, sizes, strict=True)):
        own = accepted([live], drafted[row : row + 1, : size - 1], verified[row : row + 1, :size])
        assert [values[row] for values in took] == [values[0] for values in own]


@settings(max_examples=40)
@given(steps=st.lists(st.lists(st.integers(1, 6), min_size=10, max_size=10), min_size=1, max_size=8))
def test_pages_of_many_requests_change_together(steps) -> None:
    pool, held = PagePool(PAGES), [HeldPages() for _ in range(10)]
    for pages in held:
        pool.resize(pages, 1)
    for counts in steps:
        before = [pages.ids.tolist() for pages in held]
        pool.resize_all(held, np.array(counts))
        assert [len(pages) for pages in held] == counts
        # a request keeps what it goes on holding
        for pages, had, count in zip(held, before, counts, strict=True):
            assert pages.ids.tolist()[: len(had)] == had[:count]
        pool.check(held)
    with pytest.raises(RuntimeError, match="are free"):
        pool.resize_all(held, np.full(10, 7))
    for pages in held:
        pool.resize(pages, 0)
    assert pool.num_free == PAGES


def test_page_tables_have_own_pages_and_scratch_behind_them() -> None:
    pool, held = PagePool(PAGES), [HeldPages() for _ in range(20)]
    for number, pages in enumerate(held):
        pool.resize(pages, 1 + number % 4)
    cache = PagedCache(TINY, PAGES, 4, 20, 12, torch.device("cpu"), torch.float32)
    table = np.full((32, 8), -1, np.int32)
    counts = np.array([len(pages) + number % 3 for number, pages in enumerate(held)])
    cache.fill_table(table, pool, np.array([pages.row for pages in held]), counts)
    for row, pages, count, spare in zip(table, held, counts.tolist(), cache.scratch.tolist(), strict=False):
        assert row[:count].tolist() == [*pages.ids.tolist(), *spare][:count]
    pool.resize(held[0], 0)
    with_nothing = np.zeros((1, 8), np.int32)
    cache.fill_table(with_nothing, None, np.array([-1]), np.array([2]))
    assert with_nothing[0, :2].tolist() == cache.scratch[0, :2].tolist()


def test_keys_that_no_memory_holds_are_refused_with_their_size() -> None:
    # more than any address space has
    with pytest.raises(InputError, match=r"found \d{16} tokens, \d+\.\d GiB .* allowed: what the memory of cpu has"):
        PagedCache(TINY, 2**20, 2**30, 1, 4, torch.device("cpu"), torch.float32)
    # what is wrong otherwise is no lack of memory
    with pytest.raises(RuntimeError, match="negative"):
        PagedCache(TINY, -99, 4, 1, 4, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("sizes", [[4] * 3, [1, 4, 8], [4, 8, 8], [1, 1, 4], [1, 1, 1]])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("shift", [0, 1])
def test_batches_are_what_pieces_of_each_request_are(sizes, padding, shift) -> None:
    lives = [live_of(number, 3 + number, (5, 6 + number)) for number in range(3)]
    cached, seeds = np.array([live.cached for live in lives]), np.array([live.tokens[-1] for live in lives])
    filled = [max(sizes)] * 3 if padding else sizes
    rounds, runs = list(zip(lives, sizes, filled, strict=True)), runs_of(sizes, filled)
    drafts = [draft_piece(live, size, fill, 3, shift) for live, size, fill in rounds if fill > 1]
    if drafts:
        assert_same(draft_batch(lives, cached, seeds, runs, (3, shift)), drafts)
    verifies = [verify_piece(live, size, fill, 3) for live, size, fill in rounds]
    assert_same(verify_batch(lives, cached, seeds, runs, 3), verifies)


@pytest.mark.parametrize("sizes", [[4] * 3, [1, 4, 8, 8], [1, 1, 4], [1, 1, 1]])
@pytest.mark.parametrize("padding", [False, True])
def test_a_verify_is_filled_with_the_draft_of_each_request(sizes, padding) -> None:
    filled = [max(sizes)] * len(sizes) if padding else sizes
    wanted, token, score = [], 0, 0
    for size, fill in zip(sizes, filled, strict=True):
        wanted += [(token + n, score + n) for n in range(1, size)]
        token, score = token + fill, score + (size if size > 1 else 0)
    assert list(zip(*(at.tolist() for at in fill_of(runs_of(sizes, filled))), strict=True)) == wanted


def test_a_broken_request_among_several_sizes_fails_alone_and_in_its_place() -> None:
    chosen, found = np.array([4, 1, 8, 4]), blank(4 + 4 + 8 + 17)
    lives, order = [live_of(number) for number in range(4)], np.argsort(chosen, kind="stable")
    taken = [lives[place] for place in order.tolist()]
    where = np.array([live.cached for live in taken]), np.array([len(live.tokens) for live in taken]), order
    blocks = Blocks(taken, runs_of(chosen[order].tolist(), chosen[order].tolist()), chosen, order, *where, False)
    # the last draft token of the last request of size 4, and the token of the AR step
    found.first[7] = found.first[16] = -1
    parts = [
        part._replace(told=(None if part.draft_at is None else found.at(part.draft_at), found.at(part.verify_at)))
        for part in parts_of(blocks, np.array([live.tokens[-1] for live in taken]))
    ]
    changes = changes_of(rounds_of(blocks, parts), found)
    assert [change.live for change in changes] == lives
    assert [change.error for change in changes] == [None, VERIFY_BROKEN, None, DRAFT_BROKEN]
    assert [(change.block_size, len(change.tokens)) for change in changes] == [(4, 4), (0, 0), (8, 8), (0, 0)]
    assert [change.verified.made(change.place).cached for change in changes if change.verified] == [3, 3]


def assert_same(batch, pieces) -> None:
    wanted = batch_of(pieces)
    for name in ("lens", "counts", "starts", "owner", "tokens", "scored", "predicts"):
        assert np.array_equal(getattr(batch.frame, name), getattr(wanted.frame, name)), name
    assert batch.ids.tolist() == wanted.ids.tolist()
    for found, piece in zip(batch, pieces, strict=True):
        assert (found.live, found.cached) == (piece.live, piece.cached)
        assert np.array_equal(found.ids, piece.ids)
    assert len(batch[1:]) == len(pieces) - 1


@pytest.mark.parametrize("leaves", [(), (3,), (7, 2, 8), (8,)])
@pytest.mark.parametrize("behind", [4, 16])
@pytest.mark.parametrize("shift", [0, 1])
def test_rounds_with_branches_are_rows_of_one_tail(leaves, behind, shift) -> None:
    layout, tail = verifying(8, leaves, shift, behind), rows(8, leaves, branch_size=behind)
    count = len(tail)
    assert layout.tokens.tolist() == [packed(tail), list(tail.positions), [0] * 8 + [1] * (count - 8), [*range(count)]]
    for number, leave in enumerate(leaves):
        scored, predicts = layout.scores[:, 8 + number * behind :][:, :behind]
        assert predicts.tolist() == [*range(leave, leave + behind)]
        places = np.maximum(np.arange(behind) - shift, 0)
        assert scored.tolist() == (8 + number * behind + places).tolist()
    assert layout.sizes == (count, count - 8, layout.scores.shape[1])


def test_a_roster_follows_its_requests_and_says_when_it_does_not() -> None:
    roster = Roster()
    for number in range(4):
        roster.append(live_of(number, 3 + number))
    gone = roster[1]
    roster.leave([gone])
    for live, count in zip(roster, (2, 0, 3), strict=True):
        live.tokens += [7] * count
        if count:
            live.block_size, live.accept_len, live.ran = 4, count, 1
    roster.moved(None, np.array([2, 0, 3]), np.array([4, 0, 4]), 1)
    roster.check()
    roster[0].tokens += [7]
    roster[0].block_size, roster[0].accept_len, roster[0].ran = 8, 1, 2
    roster.moved(np.array([0]), np.array([1]), np.array([8]), 2)
    roster.check()
    roster[2].tokens.append(9)
    with pytest.raises(RuntimeError, match="running requests"):
        roster.check()


def test_a_roster_keeps_the_figures_that_each_request_would_keep() -> None:
    roster, alone = Roster(), [live_of(number, left=99) for number in range(3)]
    roster.extend(live_of(number, left=99) for number in range(3))

    def told(lives):
        return [Change(live, 4, n, [7] * n, [0.3 * place + live.number for place in range(n)]) for live, n in lives]

    for places, emitted in (
        (None, (2, 4, 1)),
        (np.array([0, 2]), (3, 1)),
        (None, (1, 0, 2)),
        (np.array([1, 2]), (0, 4)),
    ):
        chosen = range(3) if places is None else places.tolist()
        tell_roster(roster, places, told([(roster[i], n) for i, n in zip(chosen, emitted, strict=True)]), PAPER)
        apply(told([(alone[i], n) for i, n in zip(chosen, emitted, strict=True)]), PAPER)
        for live, other in zip(roster, alone, strict=True):
            np.testing.assert_array_equal(live.figures, other.figures)
    kept = [live.figures.copy() for live in roster]
    roster.leave([roster[1]])
    np.testing.assert_array_equal(roster.figures, np.stack([kept[0], kept[2]], 1))


@given(count=st.integers(1, 70), more=st.integers(0, 2), masks=st.sampled_from([0, 4, 16]), shift=st.integers(0, 1))
def test_a_prompt_is_causal_and_its_last_token_is_scored(count: int, more: int, masks: int, shift: int) -> None:
    piece = prompt_piece(live_of(prompt=3 + count + more, tokens=()), 3, count, masks, 9, shift)
    drafts = 0 if more else masks
    tail = causal(count) + branch(count, count, drafts)
    gate = [False] * count + [True] * drafts
    assert piece.layout.tokens.tolist() == [packed(tail), list(tail.positions), gate, list(range(count + drafts))]
    scored = [] if more else [count - 1, *(count + max(place - shift, 0) for place in range(drafts))]
    assert piece.layout.scores.tolist() == [scored, [] if more else [count, *range(count, count + drafts)]]
    assert piece.layout.sizes == (count + drafts, drafts, len(scored))
    assert list(piece.ids) == [4] * count + [9] * drafts
