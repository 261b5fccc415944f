"""A dense trace says what decoding does: replayed rounds are the served ones, drafts those of plain forwards."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import SMALL, TINY, provenance_of, recorded, tiny_model

from recguide.engine.attention import causal_mask
from recguide.engine.chains import greedy_chains
from recguide.engine.decode import autoregressive, linear_self_speculation
from recguide.engine.dense import dense_outcomes
from recguide.engine.groups import Encoded, Sizes, chain_batches
from recguide.engine.model import Decoder
from recguide.engine.parts import Parts
from recguide.engine.record import DISAGREEING, Listener, Recorder, record_datasets
from recguide.sim.rounds import rounds_of
from recguide.traces.checks import check_trace
from recguide.traces.datasets import Prompt
from recguide.traces.dense import DenseTrace, num_draft_tokens, unpack_bits

tokens = st.integers(0, TINY.vocab_size - 1)
batches = st.lists(st.lists(tokens, min_size=1, max_size=9), min_size=1, max_size=4)


def replayed_rounds(trace: DenseTrace, row: int, block_size: int) -> list[tuple[int, int, int]]:
    """Block size, acceptance length and emitted tokens of every round that follows the prefill."""
    rounds = rounds_of(trace)
    found, position = [], 1
    while not rounds.finished[rounds.first[row] + position]:
        at = rounds.first[row] + position
        size = block_size if rounds.largest is None else min(block_size, int(rounds.largest[at]))
        found.append((size, int(rounds.accept_len[size][at]), int(rounds.emitted[size][at])))
        position += found[-1][2]
    return found


def assert_replay_is_what_decoding_does(model, prompts, trace, max_output_tokens, max_context=None):
    for block_size in trace.provenance.block_sizes:
        grid = trace.provenance.block_sizes
        served = linear_self_speculation(
            model.decoder, prompts, block_size, max_output_tokens, max_context=max_context, block_sizes=grid
        )
        for row, one in enumerate(served):
            request = trace.requests[row]
            assert (request.output_ids.tolist(), request.finish_reason) == (list(one.tokens), one.finish_reason)
            assert replayed_rounds(trace, row, block_size) == [tuple(each) for each in one.rounds]


@pytest.mark.parametrize("draft_shift", [0, 1])
def test_replaying_smollm2_gives_the_rounds_that_decoding_gave(model, prompts, draft_shift, monkeypatch):
    monkeypatch.setattr(model.decoder, "config", replace(model.config, draft_shift=draft_shift))
    trace = recorded(model, prompts[:3], (4, 8), 16, sizes=Sizes(8, 2**30, 4, 512, 2**24))
    check_trace(trace)
    assert trace.provenance.dropped == {}
    assert_replay_is_what_decoding_does(model, prompts[:3], trace, 16)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 50),
    draft_shift=st.sampled_from([0, 1]),
    prompts=batches,
    max_output_tokens=st.integers(1, 20),
    room=st.integers(1, 60),
)
def test_replaying_random_models_gives_the_rounds_that_decoding_gave(
    seed, draft_shift, prompts, max_output_tokens, room
):
    model = tiny_model(seed, draft_shift)
    max_context = max(map(len, prompts)) + room
    trace = recorded(model, prompts, (2, 4, 8), max_output_tokens, max_context)
    check_trace(trace)
    assert_replay_is_what_decoding_does(model, prompts, trace, max_output_tokens, max_context)


def plain_scores(decoder: Decoder, ids: list[int], bidirectional_from: int) -> torch.Tensor:
    """Scores ``[T, vocab]`` in one pass without a cache; tokens from some place on see each other both ways."""
    mask = causal_mask(torch.tensor([0]), len(ids), len(ids))
    mask[:, :, bidirectional_from:] = True
    draft = torch.arange(len(ids))[None, :, None] >= bidirectional_from
    with torch.no_grad():
        hidden = decoder.hidden(torch.tensor([ids]), torch.arange(len(ids))[None], mask, draft=draft)
        scores = decoder.logits(hidden)[0]
    scores[:, decoder.config.mask_id] = float("-inf")
    return scores


def plain_draft(decoder: Decoder, prefix: list[int], view: str, block_size: int) -> torch.Tensor:
    """Scores ``[n, vocab]`` of the draft tokens behind a prefix, straight from the definition of the two views."""
    mask_id, shift = decoder.config.mask_id, decoder.config.draft_shift
    if view == "seeded":
        scores = plain_scores(decoder, prefix + [mask_id] * (block_size - 1), len(prefix) - 1)[len(prefix) - 1 :]
        return scores[:-1] if shift else scores[1:]
    scores = plain_scores(decoder, prefix + [mask_id] * block_size, len(prefix))
    if not shift:
        return scores[len(prefix) :]
    # the bonus is the verifier's own
    return torch.cat([scores[len(prefix) - 1 :][:1], scores[len(prefix) : -1]])


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 50),
    draft_shift=st.sampled_from([0, 1]),
    prompts=st.lists(st.lists(tokens, min_size=1, max_size=6), min_size=1, max_size=3),
    max_output_tokens=st.integers(1, 12),
)
def test_every_recorded_draft_is_the_one_a_plain_forward_makes(seed, draft_shift, prompts, max_output_tokens):
    model = tiny_model(seed, draft_shift)
    trace = recorded(model, prompts, (2, 8), max_output_tokens)
    longer = autoregressive(model.decoder, prompts, max_output_tokens + 8)
    for request, continued in zip(trace.requests, longer, strict=True):
        for (view, block_size), drafts in request.drafts.items():
            num_tokens = num_draft_tokens(view, block_size)
            bits = [unpack_bits(mask, num_tokens) for mask in (drafts.match, drafts.second, drafts.second_no_eos)]
            for position in range(request.output_tokens):
                prefix = [*request.prompt_ids.tolist(), *request.output_ids[:position].tolist()]
                scores = plain_draft(model.decoder, prefix, view, block_size)
                wanted = [*continued.tokens[position:], *[-1] * num_tokens][:num_tokens]
                assert_bits(scores, wanted, [column[position] for column in bits])
                p1, p2 = scores.softmax(-1).topk(2).values.T.numpy()
                assert np.abs(drafts.margin[position] - np.floor(256 * (p1 - p2)).clip(0, 255)).max() <= 1
                if drafts.p1 is not None:
                    assert np.abs(drafts.p1[position] - np.floor(256 * p1).clip(0, 255)).max() <= 1


def assert_bits(scores: torch.Tensor, wanted: list[int], bits: list[np.ndarray]) -> None:
    for token, row, found in zip(wanted, scores, zip(*bits, strict=True), strict=True):
        ranked = row.argsort(descending=True).tolist()
        other = next(candidate for candidate in ranked[1:] if candidate not in TINY.eos_ids)
        assert found == (ranked[0] == token, ranked[1] == token, other == token)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 50), prompts=batches)
def test_entropy_is_that_of_the_distribution_that_picks_the_token(seed, prompts):
    model = tiny_model(seed, 0)
    for request in recorded(model, prompts, (2,), 9).requests:
        text = [*request.prompt_ids.tolist(), *request.output_ids.tolist()]
        shares = plain_scores(model.decoder, text, len(text))[len(request.prompt_ids) - 1 : -1].softmax(-1)
        expected = torch.special.entr(shares).sum(-1)
        np.testing.assert_allclose(request.entropy, expected, atol=1e-4)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 50), draft_shift=st.sampled_from([0, 1]), prompts=batches)
def test_how_much_is_computed_together_changes_nothing(seed, draft_shift, prompts):
    model = tiny_model(seed, draft_shift)
    one, other = (
        recorded(model, prompts, (4, 8), 8, sizes=sizes)
        for sizes in (Sizes(9, 2**30, 1, 8, 2**12), Sizes(9, 2**30, 9, 400, 2**30))
    )
    for left, right in zip(one.requests, other.requests, strict=True):
        assert left.output_ids.tolist() == right.output_ids.tolist()
        for key, drafts in left.drafts.items():
            assert drafts.match.tolist() == right.drafts[key].match.tolist()


def test_a_shifted_continuation_begins_with_the_verifiers_own_token():
    trace = recorded(tiny_model(0, 1), [[1, 5], [8]], (4,), 16)
    for request in trace.requests:
        assert (request.drafts["continuation", 4].match & 1 == 1).all()


def test_a_chain_that_hits_its_limit_runs_on_and_one_that_ends_does_not():
    decoder = tiny_model(0, 0).decoder
    for seed in range(8):
        decoder = tiny_model(seed, 0).decoder
        for chain in greedy_chains(decoder, [[1], [5, 6], [9, 8, 4]], 10, 96, ahead=8):
            if chain.finish_reason == "eos":
                assert len(chain.tokens) == chain.output_tokens <= 10
                assert chain.tokens[-1] in TINY.eos_ids
            else:
                assert chain.output_tokens == 10
                assert len(chain.tokens) == 18 or chain.tokens[-1] in TINY.eos_ids


def test_positions_where_the_verifier_disagrees_are_counted_and_match_nothing():
    decoder = tiny_model(3, 0).decoder
    (chain,) = greedy_chains(decoder, [[1, 5]], 12, 96, ahead=8)
    other = next(token for token in (1, 4, 5, 6) if token != chain.tokens[0])
    wrong = replace(chain, tokens=[other, *chain.tokens[1:]])
    (outcome,) = dense_outcomes(decoder, [wrong], (8,), 64, None)
    assert outcome.disagreeing >= 1
    assert outcome.base_agreeing == chain.output_tokens - outcome.disagreeing
    for drafts in outcome.drafts.values():
        assert drafts.match[0] & 1 == 0
        assert drafts.second[0] & 1 == 0


def test_agreement_with_the_base_is_counted_against_the_base():
    decoder, base = tiny_model(3, 0).decoder, tiny_model(4, 0).decoder
    (chain,) = greedy_chains(decoder, [[1, 5]], 30, 96, ahead=8)
    (outcome,) = dense_outcomes(decoder, [chain], (8,), 64, base)
    text = [*chain.prompt_ids, *chain.tokens[: chain.output_tokens]]
    expected = (plain_scores(base, text, len(text)).argmax(-1)[1:-1] == torch.tensor(text[2:])).sum()
    assert outcome.base_agreeing == int(expected) < chain.output_tokens


def test_batches_hold_prompts_of_like_length_within_requests_and_bytes():
    prompts = [Encoded(Prompt(str(size), "p", "c", "t"), [1] * size) for size in (9, 1, 5, 30, 2)]
    # 2 layers of 2 heads of 8 numbers of 4 bytes, keys and values: 256 bytes a token
    sizes = Sizes(3, 256 * (2 * (9 + 10)), 2, 24, 2**12)
    lengths = [[len(one.ids) for one in batch] for batch in chain_batches(prompts, TINY, torch.float32, 10, sizes)]
    assert lengths == [[1, 2], [5, 9], [30]]


def test_ties_on_more_than_a_twentieth_of_the_positions_are_refused(tmp_path):
    model = tiny_model(0, 0)
    provenance = replace(provenance_of(model, (4,), 20, 96), dtype="bf16")
    recorder = Recorder(model, None, provenance, SMALL)
    prompts = {"p": [Encoded(Prompt("p/0", "p", "c", "t"), [1, 5]), Encoded(Prompt("p/1", "p", "c", "u"), [8])]}
    parts = Parts(tmp_path / "parts", provenance, with_token_ids=False)
    silent = Listener(lambda count: None, lambda text: None)
    traces, names = record_datasets(recorder, prompts, parts, {"p": "p"}, silent)
    assert [request.request_id for request in traces["p"].requests] == ["p/0", "p/1"]
    total = sum(request.output_tokens for request in traces["p"].requests)
    (part,) = (parts.read(name, ["p/1", "p/0"]) for name in names)
    for count, refused in ((total // 20, False), (total // 20 + 1, True)):
        tied = replace(part, provenance=replace(provenance, dropped={"p": {DISAGREEING: count}}, base_agreement=1.0))
        parts.write(names[0], tied)
        if refused:
            with pytest.raises(ValueError, match=r"p: verifier and chain disagree on .* allowed: 5%.*bf16"):
                record_datasets(recorder, prompts, parts, {"p": "p"}, silent)
        else:
            again, _ = record_datasets(recorder, prompts, parts, {"p": "p"}, silent)
            assert again["p"].provenance.dropped == tied.provenance.dropped


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("draft_shift", [0, 1])
def test_a_gpu_records_what_a_cpu_records(draft_shift):
    prompts = [[1, 5], [8], [4, 4, 6, 9], [10, 11, 0]]
    on_cpu = recorded(tiny_model(3, draft_shift), prompts, (4, 8), 40)
    model = tiny_model(3, draft_shift)
    model.decoder.to("cuda")
    on_gpu = recorded(model, prompts, (4, 8), 40, sizes=Sizes(9, 2**30, 9, 400, 2**30))
    for left, right in zip(on_cpu.requests, on_gpu.requests, strict=True):
        assert left.output_ids.tolist() == right.output_ids.tolist()
        for key, drafts in left.drafts.items():
            assert drafts.match.tolist() == right.drafts[key].match.tolist()
