"""Forwards through the kernels of a GPU, in Triton's interpreter where there is none."""

from dataclasses import replace

import pytest
import torch
from engines import GRID, POLICIES
from tiny import TINY, tiny_model

from recguide.engine.decode import autoregressive
from recguide.engine.inputs import Shape
from recguide.engine.requests import Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.shapes import random_decoder
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
