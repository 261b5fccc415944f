from hypothesis import given
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.costs import constant_costs, linear_costs
from recguide.sim.metrics import metrics_of
from recguide.sim.replay import PREFILL_STEP, replay
from recguide.sim.rounds import rounds_of
from recguide.sim.tidar import Tidar
from recguide.traces.dense import DenseRequest

COSTS = linear_costs(1e-3, 2e-5, 1e-7)


def accepted_groups(request: DenseRequest, size: int) -> list[int]:
    """The quadratic loop as its reference tells it: the draft's first token counts with the round that checks it."""
    match = request.drafts["continuation", size].match
    committed, lens = 0, []
    while committed < request.output_tokens:
        draft = [True] + [bool(int(match[committed]) >> i & 1) for i in range(1, size)]
        accepted = 1
        while accepted < size and draft[accepted]:
            accepted += 1
        lens.append(accepted)
        committed += accepted
    return lens


@given(seed=st.integers(0, 999), size=st.sampled_from([4, 8, 16]), concurrency=st.integers(1, 3))
def test_every_round_accepts_what_the_reference_loop_accepts(seed: int, size: int, concurrency: int) -> None:
    trace = random_trace(seed, 3)
    rounds = rounds_of(trace, Tidar(size).keys)
    run = replay(rounds, COSTS, Tidar(size), concurrency=concurrency, order=range(3))
    for sent, row in enumerate(run.request.tolist()):
        mine = (run.emission_request == sent) & (run.emission_block_size != PREFILL_STEP)
        emitted = run.emission_tokens[mine].tolist()
        wanted = accepted_groups(trace.requests[row], size)
        # the last round is cut, and the reference may need one more to count the token that it already knows
        assert emitted[:-1] == wanted[: len(emitted) - 1]
        assert len(wanted) - len(emitted) in (0, 1)


def test_a_round_is_one_forward_of_all_groups() -> None:
    trace = random_trace(1, 1, min_output_tokens=40)
    rounds = rounds_of(trace, Tidar(8).keys)
    costs = constant_costs(prefill=1.0, quadratic=2.0, host=0.5)
    run = replay(rounds, costs, Tidar(8), concurrency=1, order=[0])
    figures = metrics_of(run, rounds)
    assert set(run.steps["query_tokens"][1:].tolist()) == {8 * 9}
    assert run.finished_s[0] == 1.0 + 2.5 * (figures["num_rounds"] or 0)
    assert figures["forwards"] == figures["num_rounds"]
    assert figures["no_hit"] is None
    assert figures["tau"] == 2 * (figures["accept_length"] or 0)


def test_where_the_masks_have_no_room_there_are_ar_steps() -> None:
    trace = random_trace(1, 1, min_output_tokens=40, max_context=20)
    prompt = trace.requests[0].prompt_tokens
    trace = random_trace(1, 1, min_output_tokens=40, max_context=prompt + 30)
    run = replay(rounds_of(trace, Tidar(8).keys), COSTS, Tidar(8), concurrency=1, order=[0])
    end = run.steps["context_tokens"] + 2 * run.steps["block_size"]
    assert set(run.steps["block_size"].tolist()) == {PREFILL_STEP, 1, 8}
    assert end[run.steps["block_size"] > 1].max() <= prompt + 30
