"""Rounds without the host give the tokens and rounds of decoding with it, and of the simulator."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TINY, recorded, tiny_model

from recguide.engine.candidates import candidates, entropies
from recguide.engine.decode import autoregressive, linear_self_speculation
from recguide.engine.device_reports import Outputs, Report
from recguide.engine.device_round import DeviceRounds, device_self_speculation, round_rules
from recguide.kernels import round_state as rs
from recguide.kernels.logit_statistics import barred_ids, logit_statistics_reference
from recguide.sim.overlap import NO_DRAFT, SEEDED, Overlap, overlap_tables
from recguide.sim.rounds import rounds_of

PLAIN = {"corrections": 0, "continuation": "never"}
tokens = st.integers(0, TINY.vocab_size - 1)
batches = st.lists(st.lists(tokens, min_size=1, max_size=9), min_size=1, max_size=4)


@settings(max_examples=8)
@given(
    seed=st.integers(0, 50),
    draft_shift=st.sampled_from([0, 1]),
    block_size=st.sampled_from([2, 4, 8]),
    prompts=batches,
    max_new_tokens=st.integers(1, 24),
    launches=st.integers(1, 3),
    pages=st.sampled_from([None, 60]),
)
def test_plain_rounds_are_those_of_decoding_with_the_host(
    seed, draft_shift, block_size, prompts, max_new_tokens, launches, pages
):
    decoder = tiny_model(seed, draft_shift).decoder
    rules = Overlap(block_size, **PLAIN)
    found = device_self_speculation(decoder, prompts, rules, max_new_tokens, launches=launches, pages=pages)
    assert found == linear_self_speculation(decoder, prompts, block_size, max_new_tokens)


@settings(max_examples=8)
@given(seed=st.integers(0, 50), prompts=batches, block_size=st.sampled_from([2, 8]), room=st.integers(1, 30))
def test_so_are_rounds_at_the_context_limit(seed, prompts, block_size, room):
    decoder = tiny_model(seed, 0).decoder
    limit = max(map(len, prompts)) + room
    found = device_self_speculation(decoder, prompts, Overlap(block_size, **PLAIN), 60, max_context=limit, launches=2)
    assert found == linear_self_speculation(decoder, prompts, block_size, 60, max_context=limit)


def replayed(trace, rules: Overlap) -> list[list[list[int]]]:
    rounds = rounds_of(trace, rules.keys)
    tables = overlap_tables(rounds, rules)
    told = []
    for request, first in zip(trace.requests, rounds.first.tolist(), strict=True):
        position, source, mine = 1, SEEDED, []
        while position < request.output_tokens:
            at = source, first + position
            emitted = int(tables.emitted[at])
            mine.append([int(tables.block_size[at[1]]), int(tables.accept_len[at]), emitted, int(tables.outcome[at])])
            position, following = position + emitted, int(tables.next_source[at])
            source = SEEDED if following == NO_DRAFT else following
        told.append(mine)
    return told


@settings(max_examples=8)
@given(
    seed=st.integers(0, 50),
    draft_shift=st.sampled_from([0, 1]),
    prompts=st.lists(st.lists(tokens, min_size=1, max_size=6), min_size=1, max_size=3),
    size=st.sampled_from([2, 4]),
    corrections=st.integers(0, 3),
    continuation=st.sampled_from(["two-risky", "always"]),
    eos=st.sampled_from(["allowed", "barred"]),
    recursive=st.booleans(),
    context=st.sampled_from([26, 32, 96]),
    pages=st.sampled_from([None, 20]),
)
def test_rounds_with_branches_are_those_replayed_from_a_recorded_trace(
    seed, draft_shift, prompts, size, corrections, continuation, eos, recursive, context, pages
):
    model = tiny_model(seed, draft_shift)
    trace = recorded(model, prompts, (2, 4), 20, context)
    rules = Overlap(size, 0.75, corrections, continuation, eos, recursive)
    made = round_rules(model.decoder, rules, context, (2, 4))
    runner = DeviceRounds(model.decoder, len(prompts), context, made, forwards=1, launches=4, pages=pages)
    found = runner.run(prompts, 20)
    assert found == autoregressive_tokens(model.decoder, prompts, context, found)
    order = [int(request.request_id.split("/")[1]) for request in trace.requests]
    assert [runner.outputs.rounds[row] for row in order] == replayed(trace, rules)


def autoregressive_tokens(decoder, prompts, context, found):
    """What plain decoding gives, with the rounds of ``found``."""
    plain = autoregressive(decoder, prompts, 20, max_context=context)
    return [type(one)(one.tokens, one.finish_reason, mine.rounds) for one, mine in zip(plain, found, strict=True)]


def test_a_runner_may_run_again():
    decoder = tiny_model(3, 0).decoder
    runner = DeviceRounds(decoder, 2, 40, round_rules(decoder, Overlap(4, **PLAIN), 96, (2, 4)), launches=2)
    for prompts in ([[1, 5], [8]], [[4, 4, 6], [9]], [[1, 5], [8]]):
        assert runner.run(prompts, 12) == linear_self_speculation(decoder, prompts, 4, 12, block_sizes=(2, 4))


def test_requests_that_share_pages_hold_none_when_they_are_done_and_say_so_when_there_are_too_few():
    decoder = tiny_model(3, 0).decoder
    rules, prompts = round_rules(decoder, Overlap(4, **PLAIN), 96, (2, 4)), [[1, 5], [8], [4, 4, 6]]
    runner = DeviceRounds(decoder, 3, 60, rules, launches=2, pages=12)
    for _ in range(2):
        assert runner.run(prompts, 16) == linear_self_speculation(decoder, prompts, 4, 16, block_sizes=(2, 4))
        assert not runner.cache.tables.held.any()
        assert int(runner.cache.tables.num_free) == 11
    runner = DeviceRounds(decoder, 3, 60, rules, launches=2, pages=3)
    with pytest.raises(RuntimeError, match=r"requests \[0, 2\]: no KV pages were left"):
        runner.run(prompts, 40)


def test_a_verifier_that_gives_nan_is_an_error():
    decoder = tiny_model(3, 0).decoder
    rules = round_rules(decoder, Overlap(4, **PLAIN), 96, (2, 4))
    runner = DeviceRounds(decoder, 1, 40, rules)
    runner.begin([[1, 5]], 30)
    decoder.final_norm.fill_(torch.nan)
    runner.outputs = Outputs(1)
    runner.launch(8)
    report = Report.room_for(runner.requests)
    report.take(runner.requests)
    with pytest.raises(RuntimeError, match=r"requests \[0\]: the verifier's logits hold NaN"):
        runner._generations(report.wait())


def test_a_ring_that_has_gone_round_is_an_error():
    decoder = tiny_model(3, 0).decoder
    runner = DeviceRounds(decoder, 1, 40, round_rules(decoder, Overlap(4, **PLAIN), 96, (2, 4)))
    report = Report.room_for(runner.requests)
    report.take(runner.requests)
    report.state[0, rs.WRITTEN] = 1000
    with pytest.raises(RuntimeError, match="1000 entries since the last report, and a ring of 65"):
        Outputs(1).drain(report, report.wait())


def test_lockstep_launches_whole_rounds():
    decoder = tiny_model(3, 0).decoder
    rules = round_rules(decoder, Overlap(4, **PLAIN), 96, (2, 4))
    with pytest.raises(ValueError, match="forwards is 3; allowed: even"):
        DeviceRounds(decoder, 1, 40, rules, forwards=3)


@pytest.mark.parametrize("seed", range(3))
def test_the_reference_finds_what_recorded_traces_are_made_of(seed):
    decoder = tiny_model(seed, 0).decoder
    hidden = torch.randn(50, decoder.config.hidden_size)
    barred = barred_ids(decoder.config.mask_id, decoder.config.eos_ids, "cpu")
    found = logit_statistics_reference(decoder.logits(hidden), barred)
    wanted = candidates(decoder, hidden)
    assert torch.equal(found.first, wanted.first)
    assert torch.equal(found.second, wanted.second)
    assert torch.equal(found.second_no_eos, wanted.second_no_eos)
    torch.testing.assert_close(found.p1, wanted.p1, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.margin, wanted.p1 - wanted.p2, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.entropy, entropies(decoder, hidden), rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pages", [None, 200])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("overlap", [PLAIN, {}])
def test_rounds_on_the_gpu_give_the_autoregressive_tokens(model, prompts, overlap, rows, pages):
    decoder = copy.deepcopy(model.decoder).to("cuda")
    wanted = [one.tokens for one in autoregressive(decoder, prompts, 64)]
    for fused in (False, True):
        found = device_self_speculation(
            decoder, prompts, Overlap(8, **overlap), 64, rows=rows and fused, fused=fused, pages=pages
        )
        assert [one.tokens for one in found] == wanted
