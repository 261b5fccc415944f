from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.adaptive import write_policy
from recguide.sim.batching import BATCHINGS
from recguide.sim.catalogue import POLICIES, make_policy, rounds_for
from recguide.sim.costs import linear_costs
from recguide.sim.fitting import fit_in_sample
from recguide.sim.joint_file import write_joint
from recguide.sim.joint_fit import fit_joint
from recguide.sim.replay import Replay, replay
from recguide.traces.dense import DenseRequest, DenseTrace, Drafts

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
LENGTH = 60
CLAIRVOYANT = {"oracle", "optimum"}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every policy of the catalogue, ready to be made."""
    folder: Path = tmp_path_factory.mktemp("policies")
    trace = random_trace(1, 12, min_output_tokens=80, max_output_tokens=120)
    fitted = fit_in_sample(trace, COSTS, concurrencies=(1, 4))
    write_policy(fitted, folder / "fitted.json")
    write_joint(fit_joint(trace, COSTS, fitted), folder / "joint.json")
    (folder / "own.py").write_text("def choose(seen):\n    return 8 + 8 * (seen.matched * 2 > seen.checked)\n")
    options = {
        "fixed": "fixed:16",
        "adaptive": f"adaptive:{folder}/fitted.json",
        "adaptive-s": f"adaptive-s:{folder}/fitted.json",
        "allocation": f"allocation:{folder}/fitted.json",
        "regime": f"regime:file={folder}/fitted.json,switch=2",
        "joint": f"joint:{folder}/joint.json",
    }
    more = {"own": f"{folder}/own.py:choose", "regime-allocation": f"{options['regime']},above=allocation"}
    return {head: options.get(head, head) for head in POLICIES} | more


def another_future(trace: DenseTrace, told: int, seed: int) -> DenseTrace:
    """The same up to ``told`` output tokens of every request; what was drafted before that is the same tokens."""
    other = random_trace(seed, len(trace.requests), min_output_tokens=LENGTH, max_output_tokens=LENGTH, ease=0.8)
    pairs = zip(trace.requests, other.requests, strict=True)
    return replace(trace, requests=tuple(spliced(mine, theirs, told) for mine, theirs in pairs))


def spliced(mine: DenseRequest, theirs: DenseRequest, told: int) -> DenseRequest:
    entropy = np.concatenate([mine.entropy[:told], theirs.entropy[told:]])
    drafts = {key: spliced_drafts(mine.drafts[key], theirs.drafts[key], told) for key in mine.drafts}
    return replace(mine, entropy=entropy, drafts=drafts)


def spliced_drafts(mine: Drafts, theirs: Drafts, told: int) -> Drafts:
    known = np.clip(told - np.arange(LENGTH), 0, 32)
    before = ((np.uint64(1) << known.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)

    def mix(one: Any, other: Any) -> Any:
        return (one & before) | (other & ~before)

    def rows(one: Any, other: Any) -> Any:
        return np.concatenate([one[:told], other[told:]])

    return Drafts(
        mix(mine.match, theirs.match),
        mix(mine.second, theirs.second),
        mix(mine.second_no_eos, theirs.second_no_eos),
        rows(mine.margin, theirs.margin),
        None if mine.p1 is None else rows(mine.p1, theirs.p1),
    )


def lived(run: Replay, told: int) -> int:
    """The first step at whose end a request has more output than ``told`` tokens, or all the steps."""
    tokens = np.zeros(len(run.request), np.int64)
    for sent, emitted, step in zip(run.emission_request, run.emission_tokens, run.emission_step, strict=True):
        tokens[sent] += emitted
        if tokens[sent] >= told:
            return int(step)
    return len(run.steps["seconds"])


# tiers are the recipe from a file
@pytest.mark.parametrize("head", sorted({*POLICIES, "own", "regime-allocation"} - {"tiers"}))
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 99),
    told=st.integers(2, 55),
    concurrency=st.integers(1, 5),
    batching=st.sampled_from(sorted(BATCHINGS)),
)
def test_no_policy_sees_the_future(
    head: str, names: dict[str, str], seed: int, told: int, concurrency: int, batching: str
) -> None:
    trace = random_trace(seed, 6, min_output_tokens=LENGTH, max_output_tokens=LENGTH)
    runs = []
    for played in (trace, another_future(trace, told, seed + 100)):
        rounds = rounds_for(played, [names[head]])
        policy = make_policy(names[head], rounds, COSTS)
        runs.append(
            replay(rounds, COSTS, policy, concurrency=concurrency, order=range(6), batching=BATCHINGS[batching])
        )
    until = min(lived(run, told) for run in runs) + 1
    same = all(np.array_equal(runs[0].steps[name][:until], runs[1].steps[name][:until]) for name in runs[0].steps)
    assert same or head in CLAIRVOYANT


def test_a_clairvoyant_policy_would_be_noticed() -> None:
    for name in CLAIRVOYANT:
        noticed = []
        for seed in range(6):
            trace = random_trace(seed, 2, min_output_tokens=LENGTH, max_output_tokens=LENGTH)
            futures = (trace, another_future(trace, 12, seed + 100))
            runs = []
            for rounds in (rounds_for(played, []) for played in futures):
                runs.append(replay(rounds, COSTS, make_policy(name, rounds, COSTS), concurrency=1, order=range(2)))
            until = min(lived(run, 12) for run in runs) + 1
            noticed.append(not np.array_equal(*(run.steps["block_size"][:until] for run in runs)))
        assert any(noticed)
