"""A profile measures forwards that compute what serving computes, at every shape of its grid."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TINY, tiny_model

from recguide.engine.attention import causal_mask, draft_mask
from recguide.engine.decode import pick
from recguide.engine.host import Rounds, measure_host
from recguide.engine.model import KVCache
from recguide.engine.profiling import CachePool, Effort, Grid, Shape, cache_bytes, measure, rows, summary
from recguide.engine.shapes import SHAPES
from recguide.engine.uniform import UniformForward
from recguide.sim.costs import read_profile

CONTEXT = 6


def silent(text: str) -> None:
    pass


def filled_caches(decoder, requests: int, tokens: int) -> list[KVCache]:
    """Two caches that hold the same context, random keys of it included."""
    cache = KVCache(decoder.config, requests, CONTEXT + tokens, "cpu", torch.float32)
    for part in (cache.keys, cache.values):
        part[:, :, :, :CONTEXT].normal_(generator=torch.Generator().manual_seed(0))
    return [cache, KVCache.over(cache.keys.clone(), cache.values.clone())]


@pytest.mark.parametrize(("kind", "tokens"), [("decode", 1), ("verify", 4), ("draft", 4), ("prefill", 9)])
@pytest.mark.parametrize("requests", [1, 3])
def test_a_measured_forward_picks_the_tokens_of_a_served_one(kind, tokens, requests):
    decoder = tiny_model(2, 0).decoder
    measured, served = filled_caches(decoder, requests, tokens)
    forward = UniformForward(decoder, measured, requests, tokens, CONTEXT, kind)
    forward.step()
    start = torch.full((requests,), CONTEXT)
    mask = (draft_mask if kind == "draft" else causal_mask)(start, tokens, CONTEXT + tokens)
    slots = CONTEXT + torch.arange(tokens).expand(requests, -1)
    with torch.no_grad():
        hidden = decoder.hidden(forward.ids, slots, mask, served, slots, draft=kind == "draft")
    # a prefill needs its last token scored, and no other
    expected = pick(decoder, hidden)[:, -1:] if kind == "prefill" else pick(decoder, hidden)
    assert torch.equal(forward.picked, expected)
    torch.testing.assert_close(measured.keys, served.keys)
    torch.testing.assert_close(measured.values, served.values)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("kind", "tokens"), [("decode", 1), ("verify", 4), ("draft", 4), ("prefill", 9)])
def test_a_graph_on_the_gpu_computes_what_masked_attention_does(kind, tokens):
    decoder = copy.deepcopy(tiny_model(2, 0).decoder).to("cuda", torch.bfloat16)
    cache = KVCache(decoder.config, 2, CONTEXT + tokens, "cuda", torch.bfloat16)
    for part in (cache.keys, cache.values):
        part.normal_()
    served = KVCache.over(cache.keys.clone(), cache.values.clone())
    forward = UniformForward(decoder, cache, 2, tokens, CONTEXT, kind)
    forward.capture(torch.cuda.graph_pool_handle())
    forward.replay()
    start = torch.full((2,), CONTEXT, device="cuda")
    mask = (draft_mask if kind == "draft" else causal_mask)(start, tokens, CONTEXT + tokens)
    slots = CONTEXT + torch.arange(tokens, device="cuda").expand(2, -1)
    with torch.no_grad():
        decoder.hidden(forward.ids, slots, mask, served, slots, draft=kind == "draft")
    # the second layer's keys depend on the first one's attention
    torch.testing.assert_close(cache.keys, served.keys, atol=0.05, rtol=0.05)


def test_mixed_layouts_draft_behind_the_verifiers_own_tokens():
    decoder = tiny_model(2, 0).decoder
    for kind, tokens in (("rows", 66), ("quadratic", 272)):
        cache = KVCache(replace(TINY, max_context=400), 2, CONTEXT + tokens, "cpu", torch.float32)
        forward = UniformForward(decoder, cache, 2, tokens, CONTEXT, kind)
        assert not forward.draft[:, :16].any()
        assert forward.draft[:, 16:].all()
        forward.step()
        assert forward.picked.shape == (2, tokens)


def test_the_grid_has_every_shape_once():
    grid = Grid((1, 2, 16), (8, 64), (4, 8), (32,), layout_requests=2)
    shapes = list(grid.shapes())
    assert len(shapes) == len(set(shapes)) == 3 * 2 * (1 + 2 * 2) + 2 * 2 * 2 + 1
    assert {shape.requests for shape in shapes if shape.kind in ("rows", "quadratic")} == {1, 2}
    assert {shape.tokens for shape in shapes if shape.kind == "verify"} == {4, 8}
    assert len(list(Grid().shapes())) == 245


def test_caches_of_all_shapes_lie_on_memory_of_the_size_computed_for_them():
    decoder = tiny_model(0, 0).decoder
    shapes = [Shape("verify", 3, 4, 10), Shape("decode", 1, 1, 60)]
    needed = [cache_bytes(decoder.config, shape, 4) for shape in shapes]
    # keys and values of 2 layers, 2 heads of 8 numbers of 4 bytes
    assert needed == [2 * 2 * 2 * 8 * 4 * 3 * 14, 2 * 2 * 2 * 8 * 4 * 61]
    pool = CachePool(decoder, max(needed))
    for shape in shapes:
        cache = pool.cache(shape)
        assert cache.keys.shape == (2, shape.requests, 2, shape.context + shape.tokens, 8)
        assert cache.keys.data_ptr() == pool.keys.data_ptr()
        assert (cache.values != 0).any()


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=9))
def test_a_timing_is_the_median_and_half_the_distance_of_the_quartiles(samples):
    timing = summary(samples)
    assert timing.median_s == pytest.approx(np.median(samples))
    assert timing.spread_s == pytest.approx((np.quantile(samples, 0.75) - np.quantile(samples, 0.25)) / 2)
    assert timing.repeats == len(samples)


@pytest.mark.parametrize(
    ("effort", "done", "spent", "goes_on"),
    [
        (Effort(5, 0, 10), 0, 0, True),
        (Effort(5, 0, 10), 1, 99, True),  # the second pass is never cut
        (Effort(5, 0, 10), 2, 6, True),
        (Effort(5, 0, 10), 2, 7, False),  # a third would end at 10.5 s
        (Effort(5, 0, 10), 5, 1, False),
        (Effort(1, 0, 10), 1, 1, False),
        (Effort(5, 0), 4, 1e9, True),
    ],
)
def test_passes_go_on_while_another_one_fits(effort, done, spent, goes_on):
    assert effort.another(done, spent) == goes_on


def test_every_pass_after_the_first_gives_a_timing_of_every_shape():
    shapes = [Shape("decode", 1, 1, 4), Shape("draft", 2, 4, 4), Shape("prefill", 1, 8, 0)]
    passes = list(measure(tiny_model(0, 0).decoder, shapes, Effort(3, 0.0), silent))
    assert [timing.repeats for timings in passes for timing in timings.values()] == [2] * 3 + [3] * 3
    for timings in passes:
        assert list(timings) == shapes
        assert all(0 < timing.median_s < 60 for timing in timings.values())
    (only,) = measure(tiny_model(0, 0).decoder, shapes, Effort(1, 0.0), silent)
    assert {timing.repeats for timing in only.values()} == {1}


def test_time_that_is_up_cuts_all_but_two_passes():
    shapes = [Shape("decode", 1, 1, 4)]
    (timings,) = measure(tiny_model(0, 0).decoder, shapes, Effort(9, 0.0, seconds=0.0), silent)
    assert timings[shapes[0]].repeats == 2


def test_a_row_counts_the_tokens_of_all_requests():
    (row,) = rows({Shape("verify", 3, 4, 10): summary([1e-3, 2e-3, 4e-3])})
    assert tuple(row) == ("verify", 3, 12, 30, 2000.0, 750.0, 3)


@pytest.mark.parametrize("draft_shift", [0, 1])
@pytest.mark.parametrize("block_size", [1, 4])
def test_rounds_of_the_host_emit_what_their_forwards_accepted(draft_shift, block_size):
    decoder = tiny_model(4, draft_shift).decoder
    rounds = Rounds(decoder, CachePool(decoder, 2**16), 3, block_size, CONTEXT)
    for _ in range(4):
        before = [len(output) for output in rounds.outputs]
        rounds.round()
        verify = rounds.forwards[-1]
        for row, (count, output) in enumerate(zip(before, rounds.outputs, strict=True)):
            drafted, picked = verify.ids[row, 1:].tolist(), verify.picked[row].tolist()
            matched = [ours == theirs for ours, theirs in zip(drafted, picked[:-1], strict=True)] + [False]
            accepted = matched.index(False) + 1
            assert output[count:] == picked[:accepted]
            assert rounds.lengths[row] == CONTEXT + len(output)
            assert rounds.seeds[row] == output[-1]


def test_the_host_is_measured_for_every_batch_and_block_size():
    decoder = tiny_model(0, 0).decoder
    found = measure_host(decoder, (1, 2), (1, 4), Effort(3, 0.0, seconds=60.0), silent, context=CONTEXT)
    assert set(found) == {Shape("host", requests, size, 0) for requests in (1, 2) for size in (1, 4)}
    assert all(timing.repeats == 3 and 0 <= timing.median_s < 60 for timing in found.values())
    hurried = measure_host(decoder, (1,), (4,), Effort(9, 0.0, seconds=0.0), silent, context=CONTEXT)
    assert [timing.repeats for timing in hurried.values()] == [2]


@pytest.fixture
def profile(recguide, tiny_folder, tmp_path, monkeypatch):
    """Run the command on a tiny model and grid."""
    monkeypatch.chdir(tmp_path)
    options = {
        "--requests": "1,2",
        "--contexts": "8,16",
        "--block-sizes": "4",
        "--prefill": "8",
        "--layout-requests": 1,
    }
    rest = {"--repeats": 2, "--least-ms": 0, "--dtype": "fp32", "--device": "cpu", "--output": "p.csv"}

    def run(*more: str):
        words = [word for pair in (options | rest).items() if pair[0] not in more for word in pair]
        return recguide("profile", tiny_folder, *words, *more)

    return run


def test_the_command_writes_a_profile_that_simulations_read(profile, tiny_folder, tmp_path):
    done = profile()
    assert (done.code, done.stdout) == (0, "p.csv\t21 rows\n")
    found = read_profile(tmp_path / "p.csv")
    assert found.header["model"] == "tiny-llama"
    assert found.header["command"].startswith(f"recguide profile {tiny_folder} --requests 1,2 ")
    assert {row.repeats for row in found.rows} == {2}
    assert len(found.rows) == 2 * 2 * (1 + 2) + 2 * 2 + 1 + 2 * 2
    costs = found.costs()
    assert math.isfinite(costs.forward_s("verify", 2, 8, 24))
    assert costs.host_s(2, 8) >= 0
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--requests", "4,2"], "--requests: found '4,2'"),
        (["--contexts", "0,8"], "--contexts: found '0,8'"),
        (["--block-sizes", "x"], "--block-sizes: found 'x'"),
        (["--prefill", ""], "--prefill: found ''"),
        (["--repeats", "0"], "--repeats"),
        (["--seconds", "0"], "--seconds"),
        (["--dtype", "fp16"], "--dtype: found 'fp16', allowed: bf16, fp32"),
        (["--device", "tpu9"], "device 'tpu9': not a device"),
        (["--adapter", "nowhere"], "adapter 'nowhere': no such file"),
        (["--output", "nowhere/p.csv"], "--output: nowhere: no such directory"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_bad_input_exits_2_with_a_message_and_leaves_nothing_behind(profile, tmp_path, options, message):
    done = profile(*options)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_of_another_model_is_refused(profile, tmp_path):
    done = profile("--adapter", "smollm2-135m")
    assert done.code == 2
    assert "smollm2-135m.safetensors: made for smollm2-135m with weights d243511ad639, but the loaded" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "billions"), [("nld-3b", 3.83), ("nld-8b", 8.49), ("nld-14b", 13.51)])
def test_named_shapes_have_the_parameters_of_their_models(name, billions):
    config = SHAPES[name]
    attention = 2 * config.hidden_size * config.head_dim * (config.num_heads + config.num_kv_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size
    total = 2 * config.vocab_size * config.hidden_size + config.num_layers * layer
    assert total / 1e9 == pytest.approx(billions, abs=0.01)
