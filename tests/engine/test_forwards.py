"""Forwards through the kernels of a GPU, in Triton's interpreter where there is none."""

from dataclasses import replace

import pytest
import torch
from engines import GRID, POLICIES
from tiny import TINY, tiny_model

from recguide.engine.decode import autoregressive
from recguide.engine.inputs import Shape
from recguide.engine.planning import prompt_piece
from recguide.engine.requests import Live, Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.shapes import add_random_draft_adapter, random_decoder
from recguide.sim.memory import Limits

pytestmark = pytest.mark.usefixtures("one_thread")
# kernels want heads of 64 numbers and products of 16
WIDE = replace(TINY, hidden_size=32, num_heads=2, num_kv_heads=1, head_dim=64, intermediate_size=32, num_layers=1)


def wide_decoder(seed):
    decoder = random_decoder(WIDE, "cpu", torch.float32, seed)
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            parameter.mul_(15)
    return decoder


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles for the GPU, and these tensors are the CPU's")
@pytest.mark.parametrize("name", ["fixed:4", "overlap"])
def test_kernels_give_what_torch_gives(name) -> None:
    decoder, asked = wide_decoder(2), [[4, 5, 6]]
    engine = Engine(decoder, POLICIES[name], EngineConfig(GRID, Limits(max_running=2, page_size=16), rounded=True))
    engine.forwards.cuda = True
    lives = [engine.add(prompt, Wish(3, eos_ids=())) for prompt in asked]
    sampled = engine.add([4, 4], Wish(2, 0.7, 3, ()))
    engine.drain()
    decoder.config = replace(decoder.config, eos_ids=())
    assert [live.tokens for live in lives] == [list(one.tokens) for one in autoregressive(decoder, asked, 3)]
    plain = Engine(decoder, POLICIES["ar"], EngineConfig(GRID, Limits(max_running=1)))
    wanted = plain.add([4, 4], Wish(2, 0.7, 3, ()))
    plain.drain()
    assert sampled.tokens == wanted.tokens


def test_rounded_shapes_have_room_and_are_few() -> None:
    rounded = set()
    for tokens in range(1, 2049):
        shape = Shape(min(tokens, 128), tokens, tokens, 1, "some", False, False)
        room = shape.rounded(40)
        assert all(have >= want for have, want in zip(room[:4], shape[:4], strict=True))
        assert room.tokens <= 1.125 * tokens
        assert room.rounded(40) == room
        rounded.add(room.tokens)
    assert len(rounded) < 80


@pytest.mark.parametrize("name", ["fixed:4", "overlap", "tidar", "regime"])
def test_preparing_serves_nobody_and_changes_nothing(name) -> None:
    model = tiny_model(3, 0)
    engine = Engine(model.decoder, POLICIES[name], EngineConfig(GRID, Limits(max_running=5, page_size=8), rounded=True))
    assert engine.prepare(range(1, 6)) >= 5
    assert engine.steps == engine.in_flight == 0
    live = engine.add([4, 5, 6], Wish(20))
    engine.drain()
    assert live.tokens == list(autoregressive(model.decoder, [[4, 5, 6]], 20)[0].tokens)
    engine.check()


def test_what_fills_a_shape_up_belongs_to_nobody_after_a_larger_forward_too() -> None:
    forwards = Engine(tiny_model(3, 0).decoder, POLICIES["ar"], EngineConfig(GRID, Limits(max_running=4))).forwards
    live = Live(0, [4, 5, 6, 7], Wish(1), frozenset(), 1)
    inputs = forwards.inputs(Shape(1, 4, 4, 1, "none", False, False))
    waste = forwards.cache.waste_page * forwards.cache.page_size
    for tokens in (2, 4, 3, 2, 1, 4, 1):
        inputs.put([prompt_piece(live, 0, tokens, 0, 0, 0)], forwards.cache, None)
        assert inputs._parts["slots"][tokens:].tolist() == [waste] * (4 - tokens)
        assert inputs._parts["visible"][tokens:].tolist() == [0] * (4 - tokens)


@pytest.mark.parametrize("name", POLICIES)
def test_outputs_are_the_same_in_shapes_that_are_rounded(name) -> None:
    made = random_decoder(replace(WIDE, hidden_size=128, vocab_size=64, num_layers=2), "cpu", torch.float32, 3)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.mul_(8)
    add_random_draft_adapter(made, 8)
    limits = Limits(max_running=4, page_size=16, kv_pages=14, prefill_chunk=7)
    engine = Engine(made, POLICIES[name], EngineConfig(GRID, limits, rounded=True))
    asked = [[4, 5, 6], [8, 10], [5, 1, 5, 1] * 6, [9], [30, 31, 32, 33, 34], [60] * 17]
    lives = [engine.add(prompt, Wish(40)) for prompt in asked]
    engine.drain()
    assert [live.tokens for live in lives] == [list(one.tokens) for one in autoregressive(made, asked, 40)]


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("name", ["fixed:4", "overlap", "tidar"])
def test_few_shapes_are_kept_and_the_output_is_the_same(name, rounded) -> None:
    model = tiny_model(3, 0)
    limits = Limits(max_running=5, page_size=8)
    engine = Engine(model.decoder, POLICIES[name], EngineConfig(GRID, limits, rounded=rounded))
    engine.forwards.most_shapes, most = 2, 0
    asked = [[4, 5, 6], [8, 10], [5, 1, 5, 1] * 6, [9], [1] * 17, [4, 4]]
    lives = [engine.add(prompt, Wish(20)) for prompt in asked]
    while engine.in_flight:
        engine.step()
        most = max(most, len(engine.forwards._inputs))
    assert most == 2
    assert [live.tokens for live in lives] == [list(one.tokens) for one in autoregressive(model.decoder, asked, 20)]


def test_the_shapes_that_ran_last_are_those_that_are_kept() -> None:
    forwards = Engine(tiny_model(3, 0).decoder, POLICIES["ar"], EngineConfig(GRID, Limits(max_running=4))).forwards
    forwards.most_shapes = 3
    live = Live(0, [4, 5], Wish(1), frozenset(), 1, tokens=[5])

    def run(tokens):
        forwards.run([prompt_piece(live, 0, tokens, 0, 0, 0)])
        return [shape.tokens for shape in forwards._inputs]

    assert [run(tokens) for tokens in (1, 2, 3)][-1] == [1, 2, 3]
    assert run(1) == [2, 3, 1]
    # prepared ones stay, whatever else runs
    forwards.inputs(next(iter(forwards._inputs))).prepared = True
    assert run(4) == [2, 3, 1, 4]
    assert run(5) == [2, 1, 4, 5]
    assert run(2) == [1, 4, 5, 2]
