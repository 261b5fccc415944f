import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_trace

from recguide.sim.adaptive import ALL, Adaptive, Equation3, adaptive, certainty, read_policy, write_policy
from recguide.sim.catalogue import make_policy
from recguide.sim.costs import linear_costs
from recguide.sim.fitting import calibrate, fit_in_sample
from recguide.sim.history import PAPER, Signal
from recguide.sim.policies import BlockPolicy, Informed, Outcomes, fixed
from recguide.sim.replay import replay
from recguide.sim.rounds import rounds_of

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)
TRACE = random_trace(5, 30, min_output_tokens=100, max_output_tokens=200)
FITTED = fit_in_sample(TRACE, COSTS, concurrencies=(1, 8, 64))
signals = st.builds(Signal, head=st.sampled_from([None, 1, 7]), bonus=st.booleans())


def test_entropy_is_averaged_over_the_decisions_that_the_verifier_made() -> None:
    emitted, blocks = np.array([1, 3, 8, 8, 1]), np.array([8, 8, 8, 16, 1])
    assert PAPER.decisions(emitted, blocks).tolist() == [1, 3, 8, 8, 1]
    assert Signal(bonus=False).decisions(emitted, blocks).tolist() == [1, 3, 7, 8, 1]
    assert Signal(head=7, bonus=False).decisions(emitted, blocks).tolist() == [1, 3, 7, 7, 1]


@settings(max_examples=20)
@given(seed=st.integers(0, 99), signal=signals, size=st.sampled_from([8, 16, 32]))
def test_the_simulator_and_the_fit_see_the_same_history(seed: int, signal: Signal, size: int) -> None:
    trace = random_trace(seed, 1, min_output_tokens=2)
    rounds = rounds_of(trace)
    seen_s: list[float] = []

    def watch(seen: Outcomes) -> int:
        assert seen.entropy is not None
        assert seen.entropy_before is not None
        seen_s.extend(certainty(seen.entropy, seen.entropy_before).tolist())
        return size

    replay(rounds, COSTS, Informed(watch, signal), concurrency=1, order=[0])
    rows = calibrate(rounds, ["any"], [size], signal)
    assert np.isnan(seen_s[0])
    # the candidate alone, and then the mixture of it alone
    assert np.allclose(seen_s[1:] * 2, rows.s)
    entropies = trace.requests[0].entropy.astype(float)
    if len(seen_s) > 1:
        first = int(rounds.emitted[size][1])
        assert seen_s[1] == pytest.approx(-entropies[1:][: int(signal.decisions(np.array([first]), size)[0])].mean())


def test_expected_tokens_never_fall_as_certainty_grows() -> None:
    assert ALL in FITTED.values
    assert any(name.endswith("_full") for name in FITTED.values)
    for values in FITTED.values.values():
        for size, row in values.items():
            assert (np.diff(row) >= -1e-9).all()
            assert min(row) >= 1
            assert max(row) <= size


def test_blocks_shrink_as_more_requests_share_the_gpu() -> None:
    rounds = rounds_of(TRACE)
    shares = []
    for concurrency in (1, 8, 64):
        run = replay(rounds, COSTS, adaptive(FITTED), concurrency=concurrency, order=list(range(30)) * 3)
        shares.append(float((run.emission_block_size == 8).mean()))
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_it_beats_every_fixed_block_on_what_it_was_fitted_to() -> None:
    trace = random_trace(0, 15, min_output_tokens=300, max_output_tokens=400)
    rounds, fitted = rounds_of(trace), fit_in_sample(trace, COSTS, concurrencies=(1,))

    def end(policy: BlockPolicy) -> float:
        return float(replay(rounds, COSTS, policy, concurrency=1, order=range(15)).finished_s.max())

    best = min(end(fixed(size)) for size in (8, 16, 32))
    # the previous block size and whether it was accepted fully add to what certainty says
    assert end(adaptive(fitted)) < end(adaptive(fitted, strata=False)) < best


def test_a_request_without_history_starts_cold() -> None:
    zero = np.zeros(2, np.int64)
    nothing = np.full(2, np.nan)
    seen = Outcomes(np.arange(2), zero + 1, zero, zero, entropy=nothing, entropy_before=nothing)
    for size in FITTED.candidates:
        cold = replace(FITTED, loads=tuple(replace(load, cold_start=size) for load in FITTED.loads))
        assert adaptive(cold)(seen).tolist() == [size, size]
    with pytest.raises(ValueError, match="looks at entropies, and nobody keeps them"):
        adaptive(FITTED)(Outcomes(np.arange(2), zero + 1, zero, zero))


def test_a_policy_file_comes_back_as_it_was(tmp_path: Path) -> None:
    write_policy(FITTED, tmp_path / "policy.json")
    assert read_policy(tmp_path / "policy.json") == FITTED
    name = f"adaptive:{tmp_path}/policy.json"
    assert isinstance(make_policy(name, rounds_of(TRACE), COSTS), Equation3)
    assert isinstance(make_policy(name.replace("adaptive", "adaptive-s"), rounds_of(TRACE), COSTS), Equation3)


def spoiled(path: Path, field: str, value: object) -> Path:
    write_policy(FITTED, path)
    document = json.loads(path.read_text())
    *outer, last = field.split(".")
    inner = document
    for key in outer:
        inner = inner[int(key) if key.isdigit() and isinstance(inner, list) else key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("recguide_policy", 2, "recguide_policy: found 2, allowed: 1"),
        ("kind", "tiers", "kind: found 'tiers', allowed: 'adaptive'"),
        ("edges", None, "edges: missing"),
        ("edges", [2.0, 1.0], "edges: not ascending"),
        ("candidates", [8, 16], "values: all, block size: found [8, 16, 32], allowed: [8, 16]"),
        ("values.all.8", [1.0], "values: all, 8: allowed: "),
        ("values.all.8", ["many"] * 24, "values: all, 8: allowed: 24 numbers from 1 to 8"),
        ("candidates", [1, 8, 16, 32], "candidates: found [1, 8, 16, 32], allowed: from 2 to 32"),
        ("loads.0.cost_s.8", "long", "loads: cost_s 8: found 'long', allowed: a number of at least 0"),
        ("low_load", {"block_size": 16, "delta": "half", "switch": 4}, "low_load: delta: found 'half', allowed: "),
        ("loads.0.rho", -1, "loads: rho: found -1.0, allowed: a number of at least 0"),
        ("loads.0.cold_start", 4, "loads: found concurrency 1 with cold_start 4"),
        ("signal", {"heads": 3}, "of another shape than a policy"),
        ("low_load", {"block_size": 16, "delta": 0.3, "switch": 4}, "low_load: delta: found 0.3, allowed: multiples"),
        ("low_load", {"block_size": 64, "delta": 0.5, "switch": 4}, "low_load: block_size: found 64, allowed: "),
        ("low_load", {"block_size": 16, "delta": 0.5, "switch": -1}, "low_load: switch: found -1, allowed: "),
        ("model", "other", "trace's model: fitted to 'other', but found 'tiny'"),
        ("provenance.profile.gpu", "B200", "profile's GPU: fitted to 'B200', but found ''"),
        ("provenance.profile.model", "other", "profile's model: fitted to 'other', but found ''"),
        ("provenance.profile", "x", "provenance: profile: found 'x', allowed: an object"),
        ("provenance.trace", 5, "provenance: trace: found 5, allowed: an object"),
        ("weights_sha256", "c" * 64, f"weights_sha256: fitted to {'c' * 16}, but found {'a' * 16}"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, field: str, value: object, message: str) -> None:
    path = spoiled(tmp_path / "policy.json", field, value)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        make_policy(f"adaptive:{path}", rounds_of(TRACE), COSTS)
    assert str(path) in str(error.value)


def test_a_file_for_another_draft_adapter_is_refused(tmp_path: Path) -> None:
    rounds = rounds_of(random_trace(1, adapter_sha256="d" * 64))
    path = spoiled(tmp_path / "policy.json", "provenance.trace.adapter_sha256", "c" * 64)
    with pytest.raises(ValueError, match=f"adapter_sha256: fitted to {'c' * 16}, but found {'d' * 16}; "):
        make_policy(f"adaptive:{path}", rounds, COSTS)
    # where either does not say, nothing is known
    assert make_policy(f"adaptive:{path}", rounds_of(TRACE), COSTS)
    path = spoiled(tmp_path / "policy.json", "provenance.trace.adapter_sha256", "d" * 64)
    assert make_policy(f"adaptive:{path}", rounds, COSTS)


def test_without_a_policy_file_the_way_to_one_is_named(tmp_path: Path) -> None:
    for name, error in (("adaptive", ValueError), (f"adaptive:{tmp_path}/none.json", FileNotFoundError)):
        with pytest.raises(error, match="`recguide fit`"):
            make_policy(name, rounds_of(TRACE), COSTS)


def test_a_trace_without_its_block_sizes_is_refused(tmp_path: Path) -> None:
    write_policy(FITTED, tmp_path / "policy.json")
    with pytest.raises(ValueError, match="block size 32 was not recorded; recorded: 8, 16"):
        make_policy(f"adaptive:{tmp_path}/policy.json", rounds_of(random_trace(1, block_sizes=(8, 16))), COSTS)


def test_fitting_the_same_twice_gives_the_same() -> None:
    again: Adaptive = fit_in_sample(TRACE, COSTS, concurrencies=(64, 8, 1))
    assert again == FITTED
