"""The serving engine against one-token decoding, and its pages."""

import pytest
from engines import GRID, POLICIES, engine_of, loads, prompts, serve
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TINY, tiny_model

from recguide.engine.adapters import merge_drafts
from recguide.engine.decode import autoregressive
from recguide.engine.pages import HeldPages, PagePool
from recguide.engine.requests import Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.shapes import add_random_draft_adapter
from recguide.sim.batching import BATCHINGS
from recguide.sim.memory import Limits
from recguide.sim.overlap import Overlap
from recguide.sim.policies import fixed
from recguide.traces.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")


def answers(model, asked, max_new, max_context):
    return [list(one.tokens) for one in autoregressive(model.decoder, asked, max_new, max_context=max_context)]


@settings(max_examples=30)
@given(seed=st.integers(0, 50), shift=st.integers(0, 1), asked=prompts, load=loads(), merged=st.booleans())
def test_greedy_output_is_that_of_one_token_decoding(seed, shift, asked, load, merged) -> None:
    model = tiny_model(seed, shift)
    if merged:
        add_random_draft_adapter(model.decoder, 4)
        merge_drafts(model.decoder)
    engine = engine_of(model, load)
    lives, _ = serve(engine, asked, load)
    assert [live.tokens for live in lives] == answers(model, asked, load.max_new, load.max_context)
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages


@settings(max_examples=12)
@given(
    seed=st.integers(0, 50),
    asked=prompts,
    load=loads(),
    limits=st.lists(st.integers(1, 30), min_size=6, max_size=6),
    comings=st.lists(st.integers(0, 8), min_size=6, max_size=6),
    goings=st.lists(st.one_of(st.none(), st.integers(0, 12)), min_size=6, max_size=6),
)
def test_requests_come_and_go_at_any_step_and_nobody_else_notices(seed, asked, load, limits, comings, goings) -> None:
    model = tiny_model(seed, 0)
    engine = engine_of(model, load)
    lives = {}
    for step in range(500):
        for row, prompt in enumerate(asked):
            if comings[row] == step:
                lives[row] = engine.add(prompt, Wish(limits[row]))
            if goings[row] is not None and row in lives and comings[row] + goings[row] == step:
                ended = lives[row].finish_reason
                assert engine.cancel(lives[row]) == (ended is None)
        engine.check()
        if engine.in_flight:
            engine.step()
            engine.check()
        elif len(lives) == len(asked):
            break
    for row, whole in enumerate(answers(model, asked, 30, load.max_context)):
        live = lives[row]
        if live.finish_reason == "cancelled":
            assert live.tokens == whole[: len(live.tokens)]
        else:
            assert live.tokens == whole[: limits[row]]
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages


@settings(max_examples=6)
@given(seed=st.integers(0, 50), shift=st.integers(0, 1), asked=prompts, load=loads(("fixed:8", "overlap", "tidar")))
def test_what_is_accepted_of_a_request_does_not_depend_on_the_others(seed, shift, asked, load) -> None:
    model = tiny_model(seed, shift)
    _, together = serve(engine_of(model, load), asked, load)
    for row, prompt in enumerate(asked):
        _, alone = serve(engine_of(model, load), [prompt], load)
        # a request that lost its pages starts anew, with a draft of its own
        if load.limits.kv_pages is None:
            assert rounds_of(together, row) == rounds_of(alone, 0)


def rounds_of(run, number):
    changes = [change for _, change in run.stories[number].rounds]
    return [(change.block_size, change.accept_len, change.outcome) for change in changes]


@pytest.mark.parametrize("name", POLICIES)
def test_logits_of_nan_end_that_request_and_no_other(name) -> None:
    model = tiny_model(3, 0)
    asked = [[4, 5, 6], [8, 10], [5, 1, 5, 1], [9]]
    wanted = answers(model, asked, 24, 96)
    used = {TINY.mask_id, *(token for text in (*asked, *wanted) for token in text)}
    poison = min(set(range(TINY.vocab_size)) - used)
    model.decoder.embed_tokens[poison] = float("nan")
    engine = Engine(model.decoder, POLICIES[name], EngineConfig(GRID, Limits(max_running=8, page_size=8)))
    lives = [engine.add(prompt, Wish(24)) for prompt in asked]
    bad = engine.add([4, poison, 5], Wish(24))
    while engine.in_flight:
        engine.step()
        engine.check()
    assert bad.finish_reason == "error"
    assert bad.error is not None
    assert "NaN" in bad.error
    drafted = [live for live in lives if live.finish_reason == "error"]
    # a draft may try the poisoned token, and verifying that ends its own request alone
    assert all(poison not in live.tokens for live in lives)
    assert [live.tokens for live in lives if live not in drafted] == [
        want for live, want in zip(lives, wanted, strict=True) if live not in drafted
    ]
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages


def test_each_request_ends_at_its_own_eos_tokens() -> None:
    model = tiny_model(3, 0)
    engine = Engine(model.decoder, fixed(4), EngineConfig(GRID))
    whole = engine.add([4, 5, 6], Wish(30, eos_ids=()))
    engine.drain()
    assert len(whole.tokens) == 30
    assert whole.finish_reason == "length"
    end = whole.tokens[7]
    short = engine.add([4, 5, 6], Wish(30, eos_ids=(end,)))
    engine.drain()
    assert short.tokens == whole.tokens[: whole.tokens.index(end) + 1]
    assert short.finish_reason == "eos"


@pytest.mark.parametrize(
    ("prompt", "wish", "words"),
    [
        ([], Wish(4), "prompt: 0 tokens, allowed: 1 to 31"),
        ([4] * 32, Wish(4), "prompt: 32 tokens, allowed: 1 to 31, for a context of 32"),
        ([4, 12], Wish(4), "prompt: token 12, allowed: 0 to 11"),
        ([4], Wish(0), "max_new_tokens: found 0"),
        ([4], Wish(4, temperature=-1.0), "temperature: found -1.0"),
        ([4], Wish(4, temperature=float("nan")), "temperature: found nan"),
        ([4], Wish(4, seed=-1), "seed: found -1"),
    ],
)
def test_what_cannot_be_served_is_refused(prompt, wish, words) -> None:
    # 4 pages of 8 tokens, so that no request has room for more than 32
    engine = Engine(tiny_model(0, 0).decoder, fixed(4), EngineConfig(GRID, Limits(1, None, 2, 8, 4)))
    with pytest.raises(InputError, match=words):
        engine.add(prompt, wish)
    assert engine.in_flight == 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EngineConfig(GRID, Limits()), "max_running: found none"),
        (EngineConfig((8, 4)), "block_sizes"),
        (EngineConfig(GRID, Limits(max_running=0)), "max_running: found 0"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(config, words) -> None:
    with pytest.raises(InputError, match=words):
        Engine(tiny_model(0, 0).decoder, fixed(4), config)


@pytest.mark.parametrize("policy", [fixed(16), Overlap(16)])
def test_a_block_size_outside_the_grid_is_refused(policy) -> None:
    def serve_one() -> None:
        engine = Engine(tiny_model(0, 0).decoder, policy, EngineConfig(GRID))
        engine.add([4], Wish(4))
        engine.drain()

    with pytest.raises(InputError, match=r"block size 16, allowed: (1, )?2, 4, 8"):
        serve_one()


def test_a_lost_page_and_one_held_twice_are_found() -> None:
    pool, pages, first, other = PagePool(4), HeldPages(), HeldPages(), HeldPages()
    pool.resize(pages, 3)
    pool.check([pages])
    first.push([0])
    other.push([0, 2])
    with pytest.raises(RuntimeError, match=r"\{1: 0\}"):
        pool.check([other])
    with pytest.raises(RuntimeError, match=r"\{0: 2\}"):
        pool.check([pages, first])
    with pytest.raises(RuntimeError, match="2 KV pages wanted, 1 of 4 are free"):
        pool.resize(pages, 5)


def test_a_prompt_longer_than_one_forward_takes_is_prefilled_in_pieces(monkeypatch) -> None:
    monkeypatch.setattr("recguide.engine.prefilling.PIECE", 7)
    model = tiny_model(5, 0)
    asked = [[4, 5, 6, 8] * 8, [9], [5, 1] * 10]
    for name in ("fixed:4", "tidar"):
        engine = Engine(model.decoder, POLICIES[name], EngineConfig(GRID, batching=BATCHINGS["bucket"]))
        lives = [engine.add(prompt, Wish(12)) for prompt in asked]
        engine.drain()
        assert [live.tokens for live in lives] == answers(model, asked, 12, 96)
