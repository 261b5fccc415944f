"""The engine as a function and as streams."""

import asyncio
from itertools import pairwise

import pytest
import torch
from engines import GRID, POLICIES
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model

from recguide.engine.api import generate
from recguide.engine.decode import autoregressive
from recguide.engine.detokenize import TextStream
from recguide.engine.loading import load_model
from recguide.engine.requests import Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.streaming import AsyncEngine
from recguide.sim.memory import Limits
from recguide.sim.overlap import Overlap
from recguide.sim.policies import fixed
from recguide.traces.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")

ASKED = [[4, 5, 6], [8, 10], [5, 1, 5, 1], [9], [4] * 9]


@pytest.fixture(scope="module")
def small(tiny_folder):
    return load_model(str(tiny_folder), "cpu", torch.float32)


@settings(max_examples=40)
@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_text_in_bits_is_the_text_as_a_whole(model, text, cuts) -> None:
    ids = model.tokenizer.encode(text)
    stream = TextStream(model.tokenizer)
    bounds = sorted({0, *(min(cut, len(ids)) for cut in cuts), len(ids)})
    bits = [stream.push(ids[a:b]) for a, b in pairwise(bounds)]
    assert "".join(bits) + stream.finish() == model.tokenizer.decode(ids)


@settings(max_examples=40)
@given(text=st.text("ab c", max_size=30), stop=st.text("ab c", min_size=1, max_size=4), step=st.integers(1, 3))
def test_text_ends_before_the_first_stop_string_and_shows_nothing_of_it(model, text, stop, step) -> None:
    ids = model.tokenizer.encode(text)
    whole = model.tokenizer.decode(ids)
    stream = TextStream(model.tokenizer, [stop, ""])
    shown = "".join(stream.push(ids[at : at + step]) for at in range(0, len(ids), step))
    assert whole.startswith(shown)
    shown += stream.finish()
    assert stream.stopped == (stop in whole)
    assert shown == whole.partition(stop)[0]


def test_generate_gives_the_text_of_its_tokens_and_why_it_ended(small) -> None:
    prompts = [small.tokenizer.encode(text) for text in ("one two", "three")]
    engine = Engine(small.decoder, fixed(4), EngineConfig(GRID))
    answers = generate(engine, prompts, Wish(12), small.tokenizer)
    wanted = autoregressive(small.decoder, prompts, 12)
    assert [answer.tokens for answer in answers] == [one.tokens for one in wanted]
    assert [answer.text for answer in answers] == [small.tokenizer.decode(one.tokens) for one in wanted]
    assert [answer.finish_reason for answer in answers] == [one.finish_reason for one in wanted]


def test_generate_stops_at_a_stop_string_and_gives_back_all_pages(small) -> None:
    prompt = small.tokenizer.encode("one two")
    engine = Engine(small.decoder, fixed(4), EngineConfig(GRID))
    (whole,) = generate(engine, [prompt], Wish(30, eos_ids=()), small.tokenizer)
    stop = whole.text[10:13]
    (cut,) = generate(engine, [prompt], Wish(30, eos_ids=()), small.tokenizer, [stop])
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    engine.check()
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages


def test_generate_refuses_before_anything_runs() -> None:
    engine = Engine(tiny_model(0, 0).decoder, fixed(4), EngineConfig(GRID))
    for prompts, wishes, stop, words in (
        ([[4], []], Wish(4), (), "prompt: 0 tokens"),
        ([[4], [5]], [Wish(4)], (), "wishes: found 1 for 2 prompts"),
        ([[4]], Wish(4), ("x",), "no tokenizer"),
    ):
        with pytest.raises(InputError, match=words):
            generate(engine, prompts, wishes, None, stop)
        assert engine.in_flight == 0


async def told(serving, prompt, wish):
    tokens, reason = [], None
    async for delta in serving.stream(prompt, wish):
        assert delta.tokens
        assert reason is None
        tokens += delta.tokens
        reason = delta.finish_reason
    return tokens, reason


@pytest.mark.parametrize("name", ["fixed:4", "overlap", "tidar"])
def test_streams_bring_the_answers_and_nothing_else(name) -> None:
    model = tiny_model(3, 0)
    engine = Engine(model.decoder, POLICIES[name], EngineConfig(GRID, Limits(max_running=3, page_size=8, kv_pages=14)))

    async def ask():
        async with AsyncEngine(engine) as serving:
            return await asyncio.gather(*(told(serving, prompt, Wish(20)) for prompt in ASKED))

    wanted = autoregressive(model.decoder, ASKED, 20)
    assert asyncio.run(ask()) == [(list(one.tokens), one.finish_reason) for one in wanted]
    engine.check()
    assert engine.scheduler.pool.num_free == 14


def test_a_stream_that_is_closed_gives_back_its_pages_and_the_others_go_on() -> None:
    model = tiny_model(3, 0)
    engine = Engine(model.decoder, Overlap(4), EngineConfig(GRID))

    async def ask():
        async with AsyncEngine(engine) as serving:
            others = [asyncio.create_task(told(serving, prompt, Wish(60, eos_ids=()))) for prompt in ASKED]
            stream = serving.stream([4, 4], Wish(80, eos_ids=()))
            await anext(stream)
            await stream.aclose()
            task = asyncio.create_task(told(serving, [6, 6], Wish(80, eos_ids=())))
            await asyncio.sleep(0.05)
            task.cancel()
            return await asyncio.gather(*others)

    assert [len(tokens) for tokens, _ in asyncio.run(ask())] == [60] * 5
    assert engine.in_flight == 0
    assert engine.log.totals.finished["length"] == 5
    assert engine.log.totals.finished["cancelled"] in (1, 2)
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages


def test_streamed_text_ends_at_a_stop_string(small) -> None:
    prompt = small.tokenizer.encode("one two")
    engine = Engine(small.decoder, fixed(4), EngineConfig(GRID))
    (whole,) = generate(engine, [prompt], Wish(30, eos_ids=()), small.tokenizer)
    stop = whole.text[10:13]

    async def ask():
        async with AsyncEngine(engine) as serving:
            wish = Wish(30, eos_ids=())
            return [delta async for delta in serving.stream_text(small.tokenizer, prompt, wish, [stop])]

    deltas = asyncio.run(ask())
    assert "".join(delta.text for delta in deltas) == whole.text[: whole.text.index(stop)]
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["stop"]
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages


def test_whoever_asks_for_what_cannot_be_served_hears_of_it_alone() -> None:
    model = tiny_model(3, 0)
    engine = Engine(model.decoder, fixed(4), EngineConfig(GRID))

    async def ask():
        async with AsyncEngine(engine) as serving:
            good = asyncio.create_task(told(serving, [4, 5], Wish(10)))
            with pytest.raises(InputError, match="max_new_tokens: found 0"):
                await told(serving, [4], Wish(0))
            return await good

    tokens, _ = asyncio.run(ask())
    assert tokens == list(autoregressive(model.decoder, [[4, 5]], 10)[0].tokens)


def test_an_engine_that_fails_tells_everyone_who_waits_and_everyone_after() -> None:
    def broken(seen):
        raise ArithmeticError("a policy's own fault")

    engine = Engine(tiny_model(3, 0).decoder, broken, EngineConfig(GRID))

    async def ask():
        async with AsyncEngine(engine) as serving:
            asked = [told(serving, prompt, Wish(10, eos_ids=())) for prompt in ASKED]
            found = await asyncio.gather(*asked, return_exceptions=True)
            found += await asyncio.gather(told(serving, [4], Wish(4)), return_exceptions=True)
        found += await asyncio.gather(told(serving, [4], Wish(4)), return_exceptions=True)
        return found

    assert all(isinstance(each, ArithmeticError) for each in asyncio.run(ask()))
