"""Replaying a dense trace at fixed block sizes, and what is counted over the rounds."""

import numpy as np
import pytest
from hand_traces import put, put_levels, put_matched, request, trace
from hypothesis import given
from strategies import constant_trace, dense_traces, random_trace

from recguide.traces.dense import DenseTrace
from recguide.traces.replays import replay
from recguide.traces.summaries import acceptance, confidence, cumulative, offsets, rejections, requests, transitions


def three_rounds() -> DenseTrace:
    """Ten tokens at B = 4: a full block at 1, one match and a rejection at 5, and a full block at 7 cut to three."""
    made = request("r0", 10, (4,))
    put_matched(made, 4, {1: 3, 5: 1, 7: 3})
    return trace(made, block_sizes=(4,))


def test_rounds_are_replayed_from_position_one_to_the_cut_last_one() -> None:
    rounds = replay(three_rounds(), 4)
    assert rounds.position.tolist() == [1, 5, 7]
    assert rounds.accept_len.tolist() == [4, 2, 3]
    assert rounds.matched.tolist() == [3, 1, 3]
    assert rounds.full.tolist() == [True, False, False]
    assert rounds.rejected.tolist() == [False, True, False]
    assert rounds.cut.tolist() == [False, False, True]


def test_a_draft_that_foresees_eos_is_cut_behind_it() -> None:
    made = request("r0", 3, (4,), finish="eos")
    put_matched(made, 4, {1: 2})
    rounds = replay(trace(made, block_sizes=(4,)), 4)
    assert (rounds.accept_len.tolist(), rounds.cut.tolist(), rounds.rejected.tolist()) == ([2], [True], [False])


def test_a_last_token_of_the_verifier_is_a_rejection_and_no_cut() -> None:
    made = request("r0", 3, (4,), finish="eos")
    put_matched(made, 4, {1: 1})
    rounds = replay(trace(made, block_sizes=(4,)), 4)
    assert (rounds.accept_len.tolist(), rounds.cut.tolist(), rounds.rejected.tolist()) == ([2], [False], [True])


def test_a_request_of_one_token_has_no_rounds_and_no_mean() -> None:
    made = trace(request("r0", 1, (4,)), block_sizes=(4,))
    found = acceptance(made, [replay(made, 4)])[0]
    assert (found.requests, found.rounds, found.accept_len_by_request, found.full_accept_rate) == (1, 0, None, None)


@given(made=dense_traces())
def test_rounds_are_those_of_a_plain_loop_and_give_every_token_but_the_first(made: DenseTrace) -> None:
    for block_size in made.provenance.block_sizes:
        wanted = []
        for index, each in enumerate(made.requests):
            position = 1
            while position < each.output_tokens:
                bits = int(each.drafts["seeded", block_size].match[position])
                matched = 0
                while bits >> matched & 1:
                    matched += 1
                emitted = min(matched + 1, each.output_tokens - position)
                wanted.append((index, position, emitted))
                position += emitted
        rounds = replay(made, block_size)
        assert list(zip(rounds.request, rounds.position, rounds.accept_len, strict=True)) == wanted
        assert rounds.accept_len.sum() == sum(each.output_tokens - 1 for each in made.requests)


def test_acceptance_is_meant_per_request_per_round_and_without_the_verifiers_token() -> None:
    long, short = three_rounds().requests[0], request("r1", 3, (4,), dataset="e")
    made = trace(long, short, block_sizes=(4,))
    rows = {row.dataset: row for row in acceptance(made, [replay(made, 4)])}
    # the short request takes two rounds of one token
    assert [rows[name].rounds for name in ("d", "e", "all")] == [3, 2, 5]
    assert rows["all"].accept_len_by_request == pytest.approx((9 / 3 + 2 / 2) / 2)
    assert rows["all"].accept_len_by_round == pytest.approx(11 / 5)
    assert rows["all"].matched_by_round == pytest.approx(7 / 5)
    assert rows["d"].full_accept_rate == pytest.approx(1 / 3)
    assert (rows["d"].cut_rounds, rows["e"].cut_rounds) == (1, 0)


def test_a_constant_acceptance_length_is_the_mean() -> None:
    made = constant_trace(5, output_tokens=51)
    found = {row.block_size: row for row in acceptance(made, [replay(made, size) for size in (4, 8, 16, 32)])}
    # fifty tokens: ten rounds of five; at B = 4, twelve of four and one cut to two
    assert [found[size].accept_len_by_request for size in (8, 16, 32)] == [5, 5, 5]
    assert found[4].accept_len_by_request == pytest.approx(50 / 13)


def test_offsets_count_agreement_everywhere_and_acceptance_in_rounds() -> None:
    made = three_rounds()
    found = offsets(made, replay(made, 4))
    # nine, eight and seven positions behind the first have a token to agree with
    assert found.agreement == pytest.approx([3 / 9, 2 / 8, 2 / 7])
    assert found.survival == pytest.approx([3 / 3, 2 / 3, 2 / 3])
    assert found.conditional == pytest.approx([3 / 3, 2 / 3, 2 / 2])


def test_a_draft_token_past_the_end_counts_neither_way() -> None:
    made = trace(request("r0", 2, (4,)), block_sizes=(4,))
    found = offsets(made, replay(made, 4))
    assert found.agreement == [0.0, None, None]
    assert found.conditional == [0.0, None, None]


def test_transitions_are_those_of_adjacent_rounds_that_were_not_cut() -> None:
    made = request("r0", 64, (32,))
    put_matched(made, 32, {1: 19, 21: 7, 29: 8, 38: 15, 54: 31})
    other = request("r1", 2, (32,))
    found = transitions(replay(trace(made, other, block_sizes=(32,)), 32))
    # lengths 20, 8, 9, 16, and 32 cut to 10; the next request starts anew
    assert found.counts == [[0, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert found.rates == [[0, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert found.left_out == 1
    assert found.interval_rates == pytest.approx([2 / 5, 2 / 5, 1 / 5])


def test_an_interval_that_never_comes_has_no_rates() -> None:
    assert transitions(replay(three_rounds(), 4)).rates[2] == [None, None, None]


def test_confidence_is_counted_where_drafts_pass_and_where_they_first_fail() -> None:
    made = three_rounds()
    put_levels(made.requests[0], 4, 1, [250, 240, 230], [245, 230, 220])
    put_levels(made.requests[0], 4, 5, [200, 100, 90], [190, 60, 50])
    found = confidence(made, replay(made, 4))
    assert [part.category for part in found] == ["math", "all"]
    passed = {level: np.flatnonzero(counts).tolist() for level, counts in found[0].passed.items()}
    # the last round's three matched tokens have confidence and margin 0
    assert passed == {"p1": [0, 200, 230, 240, 250], "margin": [0, 190, 220, 230, 245]}
    assert sum(found[0].passed["p1"]) == 7
    assert np.flatnonzero(found[0].rejected["p1"]).tolist() == [100]
    assert np.flatnonzero(found[0].rejected["margin"]).tolist() == [60]


def test_the_distribution_function_counts_strictly_below() -> None:
    counts = [0] * 256
    counts[0], counts[128] = 1, 3
    curve = cumulative(counts)
    assert (len(curve), curve[0], curve[1], curve[128], curve[129], curve[256]) == (257, 0, 0.25, 0.25, 1, 1)


def test_rejections_look_at_the_first_rejected_token_alone() -> None:
    made = trace(request("r0", 4, (4,)), block_sizes=(4,))
    one = made.requests[0]
    # rounds at 1, 2 and 3, each rejected at once
    put(one, "seeded", 4, "second", {1: 0b001, 2: 0b110, 3: 0b001})
    put(one, "seeded", 4, "second_no_eos", {1: 0b001})
    put_levels(one, 4, 2, [255, 0, 0], [128, 0, 0])
    put_levels(one, 4, 3, [255, 255, 0], [127, 255, 0])
    found = rejections(made, replay(made, 4))
    assert (found.rejections, found.full_accepts) == (3, 0)
    assert found.second_rate == pytest.approx(2 / 3)
    assert found.second_no_eos_rate == pytest.approx(1 / 3)
    # 128/256 is not below one half
    assert found.risky_rate == pytest.approx(2 / 3)
    assert (found.passed_risky_rate, found.continuation_rate) == (None, None)


@pytest.mark.parametrize(("position", "hit"), [(3, 0.0), (4, 1.0), (5, 0.0)])
def test_a_continuation_hits_where_its_first_token_is_the_verifiers(position: int, hit: float) -> None:
    made = three_rounds()
    # the block at 1 drafts chain[1..3], and the verifier's own token is chain[4]
    put(made.requests[0], "continuation", 4, "match", {position: 0b0001})
    found = rejections(made, replay(made, 4))
    assert (found.full_accepts, found.continuation_rate) == (1, hit)


def test_every_dataset_is_counted_also_one_that_was_dropped_whole() -> None:
    made = random_trace(5, 3, dropped={"gone": {"prompt too long": 2}})
    rows = {row.dataset: row for row in requests(made)}
    assert sum(row.requests for row in rows.values()) == 3
    gone = rows["gone"]
    assert (gone.requests, gone.output_tokens, gone.dropped) == (0, None, {"prompt too long": 2})
