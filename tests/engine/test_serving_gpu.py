"""The engine on a GPU, kernels and CUDA graphs included, against one-token decoding there."""

import copy
from dataclasses import replace

import pytest
import torch
from engines import GRID, POLICIES
from tiny import TINY

from recguide.engine.adapters import merge_drafts
from recguide.engine.decode import autoregressive
from recguide.engine.planning import prompt_piece
from recguide.engine.product_times import product_seconds
from recguide.engine.requests import Live, Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.shapes import add_random_draft_adapter, random_decoder
from recguide.engine.sizes import PLAIN, FillSizes, fill_sizes, layer_weights
from recguide.sim.memory import Limits
from recguide.sim.sizes import LEAST_GAIN, sizes_up_to

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
# kernels want heads of 64 numbers
WIDE = replace(TINY, hidden_size=128, num_heads=4, num_kv_heads=2, head_dim=64, intermediate_size=128, vocab_size=64)
SIZES = [PLAIN, FillSizes({4: 6, 8: 10, 9: 11, 16: 22, 20: 22, 40: 48}, {2: 3, 4: 5, 12: 18, 16: 18})]
"""Given, for to time them for every engine takes long."""
ASKED = [[4, 5, 6], [8, 10], [5, 1, 5, 1] * 6, [9], [30, 31, 32, 33, 34], [60] * 17]


@pytest.fixture(scope="module")
def decoder():
    made = random_decoder(WIDE, "cuda", torch.float32, 3)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.mul_(8)
    add_random_draft_adapter(made, 8)
    return made


@pytest.fixture(scope="module")
def wanted(decoder):
    return [list(one.tokens) for one in autoregressive(decoder, ASKED, 40)]


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_greedy_output_is_that_of_one_token_decoding(decoder, wanted, name, eager, prepared) -> None:
    limits = Limits(max_running=4, page_size=16, kv_pages=14, prefill_chunk=7)
    engine = Engine(decoder, POLICIES[name], EngineConfig(GRID, limits, enforce_eager=eager, sizes=SIZES[prepared]))
    if prepared:
        engine.prepare([1, 2, 3, 4])
    assert engine.adapter.present
    lives = [engine.add(prompt, Wish(40)) for prompt in ASKED]
    while engine.in_flight:
        engine.step()
        engine.check()
    assert [live.tokens for live in lives] == wanted
    assert engine.log.forward_s
    assert all(spent > 0 for spent in engine.log.forward_s)


@pytest.mark.parametrize("name", ["fixed:4", "allocation", "overlap", "regime"])
def test_merged_drafts_change_no_token(decoder, wanted, name) -> None:
    merged = copy.deepcopy(decoder)
    merge_drafts(merged)
    engine = Engine(merged, POLICIES[name], EngineConfig(GRID, Limits(max_running=4, page_size=16), sizes=PLAIN))
    for _ in range(2):
        lives = [engine.add(prompt, Wish(40)) for prompt in ASKED]
        engine.drain()
        assert [live.tokens for live in lives] == wanted


@pytest.mark.parametrize("name", ["ar", "fixed:4", "overlap", "tidar"])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_graphs_that_go_again_and_again_change_nothing(decoder, wanted, name, most) -> None:
    engine = Engine(decoder, POLICIES[name], EngineConfig(GRID, Limits(max_running=4, page_size=16), sizes=PLAIN))
    engine.forwards.most_shapes = most
    for _ in range(2):
        lives = [engine.add(prompt, Wish(40)) for prompt in ASKED]
        while engine.in_flight:
            engine.step()
            assert len(engine.forwards.captured) <= most
        assert [live.tokens for live in lives] == wanted


def test_sizes_are_timed_elsewhere_and_the_output_is_the_same(decoder, wanted, capfd) -> None:
    engine = Engine(decoder, POLICIES["overlap"], EngineConfig(GRID, Limits(max_running=4)))
    lives = [engine.add(prompt, Wish(40)) for prompt in ASKED]
    engine.drain()
    assert [live.tokens for live in lives] == wanted
    reserved = torch.cuda.memory_reserved()
    fill_sizes(layer_weights(decoder), decoder.head)
    assert torch.cuda.memory_reserved() == reserved
    assert "warning" not in capfd.readouterr().err


def test_the_times_of_sizes_are_those_of_their_products() -> None:
    weight = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
    sizes = sizes_up_to(2048)
    first, second = (dict(zip(sizes, product_seconds([weight] * 4, sizes), strict=True)) for _ in range(2))
    # 0.55 TFLOP, and 0.27 GB of weights
    assert 4e-4 < first[2048] < 4e-3
    assert 3e-5 < first[16] < 4e-4
    assert sum(abs(first[size] / second[size] - 1) > LEAST_GAIN for size in sizes) <= 3


def test_an_array_is_written_again_only_when_the_device_has_read_it(decoder) -> None:
    engine = Engine(decoder, POLICIES["ar"], EngineConfig(GRID, Limits(max_running=2), sizes=PLAIN))
    forwards = engine.forwards
    lives = [Live(0, prompt, Wish(1), frozenset(), 1) for prompt in ([4, 5, 6], [9, 8, 7])]
    pieces = [prompt_piece(live, 0, 3, 0, 0, 0) for live in lives]
    alone = [forwards.read(forwards.run([piece])) for piece in pieces * 3][-2:]
    assert forwards.captured
    for _ in range(50):
        for piece, want in zip(pieces, alone, strict=True):
            # nobody waits for the first one, which the second one's inputs must not meet
            forwards.run([pieces[0] if piece is pieces[1] else pieces[1]])
            assert forwards.read(forwards.run([piece])).first.tolist() == want.first.tolist()


@pytest.mark.parametrize("name", ["fixed:4", "overlap", "tidar"])
def test_sampled_text_is_the_same_as_by_one_token_steps(decoder, name) -> None:
    texts = []
    for policy in (POLICIES[name], POLICIES["ar"]):
        engine = Engine(decoder, policy, EngineConfig(GRID, Limits(max_running=4), sizes=PLAIN))
        lives = [engine.add(prompt, Wish(30, 0.8, row, ())) for row, prompt in enumerate(ASKED)]
        engine.drain()
        texts.append([live.tokens for live in lives])
    assert texts[0] == texts[1]


def test_logits_of_nan_end_that_request_and_no_other(decoder, wanted) -> None:
    used = {TINY.mask_id, *(token for text in (*ASKED, *wanted) for token in text)}
    poison = min(set(range(WIDE.vocab_size)) - used)
    before = decoder.embed_tokens[poison].clone()
    with torch.no_grad():
        decoder.embed_tokens[poison] = float("nan")
    try:
        engine = Engine(decoder, POLICIES["ar"], EngineConfig(GRID, Limits(max_running=8), sizes=PLAIN))
        lives = [engine.add(prompt, Wish(40)) for prompt in ASKED]
        bad = engine.add([4, poison, 5], Wish(40))
        engine.drain()
    finally:
        with torch.no_grad():
            decoder.embed_tokens[poison] = before
    assert bad.finish_reason == "error"
    assert [live.tokens for live in lives] == wanted
