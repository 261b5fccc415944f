"""Block sizes that requests ask for themselves, and streams that are left early."""

import asyncio

import pytest
from engines import GRID, POLICIES, steps_of
from tiny import tiny_model

from recguide.engine.api import generate
from recguide.engine.requests import Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.streaming import AsyncEngine
from recguide.sim.batching import BATCHINGS
from recguide.sim.log import PREFILL_STEP
from recguide.traces.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")
ASKED = [[4, 5, 6], [8, 10], [5, 1, 5, 1], [9]]


@pytest.mark.parametrize("batching", ["bucket", "pad", "ragged"])
@pytest.mark.parametrize("policy", ["fixed:8", "certain", "window", "allocation"])
def test_a_request_has_the_block_size_it_asks_for_and_the_same_output(policy, batching) -> None:
    model = tiny_model(3, 0)
    plain = Engine(model.decoder, POLICIES["ar"], EngineConfig(GRID))
    wanted = [answer.tokens for answer in generate(plain, ASKED, Wish(24, eos_ids=()))]
    engine = Engine(model.decoder, POLICIES[policy], EngineConfig(GRID, batching=BATCHINGS[batching]))
    wishes = [Wish(24, eos_ids=(), block_size=size) for size in (None, 1, 4, 2)]
    lives = [engine.add(prompt, wish) for prompt, wish in zip(ASKED, wishes, strict=True)]
    sizes = {live.number: set() for live in lives}
    while engine.in_flight:
        for change in engine.step():
            sizes[change.live.number].add(change.block_size)
        engine.check()
    assert [tuple(live.tokens) for live in lives] == wanted
    assert [sizes[live.number] - {0} for live in lives[1:]] == [{1}, {4}, {2}]
    assert policy != "fixed:8" or sizes[lives[0].number] - {0} == {8}


def test_a_request_alone_has_nothing_but_its_own_block_size() -> None:
    engine = Engine(tiny_model(3, 0).decoder, POLICIES["fixed:8"], EngineConfig(GRID))
    engine.add([4, 5], Wish(20, eos_ids=(), block_size=2))
    engine.drain()
    assert {step.block_size for step in steps_of(engine)} == {PREFILL_STEP, 2}


@pytest.mark.parametrize(
    ("policy", "size", "words"),
    [
        ("fixed:8", 16, "block_size: found 16, allowed: 1, 2, 4, 8"),
        ("fixed:8", 0, "block_size: found 0"),
        ("overlap", 4, "no choice of block sizes"),
        ("tidar", 1, "no choice of block sizes"),
        ("regime", 4, "no choice of block sizes"),
    ],
)
def test_a_block_size_that_the_engine_cannot_give_is_refused(policy, size, words) -> None:
    engine = Engine(tiny_model(3, 0).decoder, POLICIES[policy], EngineConfig(GRID))
    with pytest.raises(InputError, match=words):
        engine.add([4], Wish(4, block_size=size))
    assert engine.in_flight == 0


def test_whoever_leaves_before_the_engine_knows_of_the_request_ends_it_all_the_same() -> None:
    engine = Engine(tiny_model(3, 0).decoder, POLICIES["fixed:4"], EngineConfig(GRID))

    async def leave():
        serving = AsyncEngine(engine)
        # the engine is not started yet, so that it learns of both at once
        task = asyncio.create_task(anext(serving.stream([4, 5], Wish(80, eos_ids=()))))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with serving:
            pass

    asyncio.run(leave())
    assert engine.log.totals.finished == {"cancelled": 1}
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages
