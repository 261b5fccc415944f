import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.catalogue import make_policy, rounds_for
from recguide.sim.chances import NO_TOKEN, Chances, branches_of, fit_chances, keys_for
from recguide.sim.costs import CostModel, linear_costs
from recguide.sim.fitting import fit_in_sample
from recguide.sim.joint import Decisions, Joint, runnable, runnable_of_one
from recguide.sim.joint_file import read_joint, write_joint
from recguide.sim.joint_fit import decode_rate, fit_joint
from recguide.sim.metrics import metrics_of
from recguide.sim.overlap import Outcome
from recguide.sim.replay import replay
from recguide.sim.rounds import rounds_of

SIZES = (8, 16, 32)
COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
TRACE = random_trace(7, 24, min_output_tokens=100, max_output_tokens=160)
FITTED = fit_in_sample(TRACE, COSTS, concurrencies=(1, 8))
ROUNDS = rounds_of(TRACE, keys_for(SIZES))
JOINT = fit_joint(TRACE, COSTS, FITTED)


def rate(policy: Joint, costs: CostModel = COSTS, concurrency: int = 1) -> float:
    return decode_rate(replay(ROUNDS, costs, policy, concurrency=concurrency, order=range(24)))


def prepared(costs: CostModel, concurrency: int = 1) -> float:
    """Share of rounds with branches."""
    run = replay(ROUNDS, costs, JOINT, concurrency=concurrency, order=range(24))
    assert run.emission_outcome is not None
    return float((run.emission_outcome & Outcome.PREPARED.value != 0).mean())


def test_surer_tokens_pass_more_often_and_leave_the_second_candidate_less() -> None:
    assert (np.diff(JOINT.chances.passes) >= 0).all()
    assert (np.diff(JOINT.chances.second) <= 0).all()
    for table in (JOINT.chances.correction, JOINT.chances.continuation):
        assert (np.diff(table) >= 0).all()
        assert 0 <= min(table) <= max(table) <= 1


def test_chances_are_right_on_average_on_what_they_were_fitted_to() -> None:
    rows = {size: np.flatnonzero(~ROUNDS.finished) for size in SIZES}
    chances = fit_chances(ROUNDS, rows)
    told, was = 0.0, 0.0
    for size in SIZES:
        drafts = ROUNDS.drafts["seeded", size]
        branches = branches_of(chances, drafts.margin[rows[size]])
        accepted = ROUNDS.accept_len[size][rows[size]].astype(np.int64)
        right = (drafts.second[rows[size]] >> np.minimum(accepted - 1, 31).astype(np.uint32)) & np.uint32(1) != 0
        was += float(
            (((branches.position == accepted[:, None]) & right[:, None]).any(axis=1) & (accepted < size)).sum()
        )
        told += float(branches.chance[:, :3].sum())
    assert told == pytest.approx(was, rel=0.1)


def test_the_likeliest_places_get_the_branches_however_late_they_are() -> None:
    chances = Chances(tuple(np.linspace(0, 1, 256)), (0.5,) * 256, tuple(np.linspace(0, 1, 33)), (0.5,) * 33)
    margin = np.full((1, 15), 255, np.uint8)
    margin[0, [2, 9, 11, 14]] = 200, 120, 100, 128
    found = branches_of(chances, margin)
    assert found.position[0, 0] in (3, 10)
    assert set(found.position[0].tolist()) <= {3, 10, 12, 15}
    assert found.chance[0, 0] >= found.chance[0, 1] >= found.chance[0, 2]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), sizes=st.lists(st.sampled_from((2, 3, 8, 16, 32)), min_size=1, max_size=6))
def test_branches_of_one_draft_are_those_that_it_has_among_many(data: st.DataObject, sizes: list[int]) -> None:
    margins = [data.draw(st.lists(st.integers(0, 255), min_size=size - 1, max_size=size - 1)) for size in sizes]
    levels = np.full((len(sizes), 31), NO_TOKEN, np.uint16)
    for line, margin in zip(levels, margins, strict=True):
        line[: len(margin)] = margin
    limit, room = (data.draw(st.lists(st.integers(0, 70), min_size=len(sizes), max_size=len(sizes))) for _ in range(2))
    given = JOINT.chances, levels, np.array(sizes), np.array(limit), np.array(room)
    position, chance = runnable(*given)
    for place, margin in enumerate(margins):
        one = runnable_of_one(JOINT.chances, margin, limit[place], room[place])
        assert one == (position[place].tolist(), chance[place].tolist())
        alone = branches_of(JOINT.chances, np.array([margin], np.uint8))
        assert alone.position[0].tolist() == one[0]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(1, 40))
def test_what_is_decided_for_one_request_is_decided_for_it_among_many(data: st.DataObject, count: int) -> None:
    policy = replace(JOINT, corrections=data.draw(st.integers(0, 3)), continuation=data.draw(st.booleans()))
    decisions, rng = Decisions(policy, COSTS), np.random.default_rng(data.draw(st.integers(0, 999)))
    entropy = rng.choice([np.nan, *(rng.random(3) * 3)], (2, count))
    last, emitted, room = (rng.choice(values, count) for values in ((0, 1, *SIZES), (1, *SIZES), (*SIZES, 40)))
    chance = rng.random((count, 4)) ** 3
    value = decisions.tokens(*entropy, last, emitted)
    following, taken = decisions.plan(value, chance, count)
    first = decisions.sizes[decisions.first_size(value, count, room)]
    for place, seen in enumerate(zip(*entropy.tolist(), last.tolist(), emitted.tolist(), strict=True)):
        own = decisions.tokens_of_one(*seen)
        assert own == value[place].tolist()
        assert decisions.first_size_of_one(own, count, int(room[place])) == first[place]
        plan = decisions.plan_of_one(own, chance[place].tolist(), count)
        assert plan == (following[place], taken[place].tolist())


@settings(max_examples=10, deadline=None)
@given(concurrency=st.integers(1, 24), order=st.permutations(range(12)))
def test_tokens_are_neither_lost_nor_made(concurrency: int, order: list[int]) -> None:
    run = replay(ROUNDS, COSTS, JOINT, concurrency=concurrency, order=order)
    given = np.bincount(run.emission_request, run.emission_tokens)
    assert given.tolist() == [TRACE.requests[row].output_tokens for row in order]
    figures = metrics_of(run, ROUNDS)
    for kind in ("correction", "continuation"):
        assert 0 <= float(figures[f"{kind}_reuse"] or 0) <= float(figures[f"{kind}_coverage"] or 0) <= 1


def test_branches_are_prepared_while_they_cost_nothing_and_not_where_tokens_are_dear() -> None:
    assert prepared(linear_costs(1e-3, 1e-9, 0.0)) > 0.9
    assert prepared(linear_costs(1e-9, 1e-4, 0.0)) < 0.05
    shares = [prepared(COSTS, concurrency) for concurrency in (1, 4, 24)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_what_branches_save_makes_it_faster_and_knowing_the_future_faster_still() -> None:
    bare = replace(JOINT, corrections=0, continuation=False)
    assert rate(bare) < rate(replace(JOINT, corrections=1, continuation=False)) < rate(JOINT)
    assert rate(JOINT) < rate(replace(JOINT, clairvoyant=True))


def test_prepared_once_it_runs_as_before() -> None:
    assert rate(JOINT.over(ROUNDS), concurrency=5) == rate(JOINT, concurrency=5)


def test_a_request_without_room_for_a_block_takes_ar_steps_and_still_finishes() -> None:
    rounds = ROUNDS.within(int(ROUNDS.prompt_tokens.max()) + 120)
    run = replay(rounds, COSTS, JOINT, concurrency=4, order=range(24))
    assert (run.output_tokens == ROUNDS.output_tokens).all()
    assert {1} < set(run.emission_block_size.tolist())


def test_a_policy_file_comes_back_as_it_was(tmp_path: Path) -> None:
    write_joint(JOINT, tmp_path / "joint.json")
    assert read_joint(tmp_path / "joint.json") == JOINT
    name = f"joint:{tmp_path}/joint.json"
    assert make_policy(name, rounds_for(TRACE, [name]), COSTS) == JOINT


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kind", "adaptive", "kind: found 'adaptive', allowed: 'joint'"),
        ("chances", {}, "passes: missing"),
        ("rho", {}, "rho: found {}, allowed: numbers of at least 0"),
        ("rho", {"x": 1}, "of another shape than a policy"),
        ("adaptive", {"model": "x"}, "loads: missing"),
    ],
    ids=["kind", "chances", "rho", "load", "adaptive"],
)
def test_a_file_at_fault_is_refused(tmp_path: Path, field: str, value: object, message: str) -> None:
    path = tmp_path / "joint.json"
    write_joint(JOINT, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(ValueError, match=r"joint\.json: ") as error:
        make_policy(f"joint:{path}", ROUNDS, COSTS)
    assert message in str(error.value)


def test_without_a_file_or_for_another_model_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs a policy file, joint:FILE\.json; `recguide fit --joint` makes one"):
        make_policy("joint", ROUNDS, COSTS)
    write_joint(replace(JOINT, fitted=replace(FITTED, model="other")), tmp_path / "joint.json")
    with pytest.raises(ValueError, match="trace's model: fitted to 'other', but found 'tiny'"):
        make_policy(f"joint:{tmp_path}/joint.json", ROUNDS, COSTS)
