from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import constant_trace, random_trace

from recguide.sim.catalogue import make_policy
from recguide.sim.costs import linear_costs
from recguide.sim.online import bandit, goodput, window
from recguide.sim.ownpolicies import own_policy
from recguide.sim.policies import Outcomes, Tally
from recguide.sim.replay import replay
from recguide.sim.rounds import Ints, rounds_of

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)


def seen_after(block_size: list[int], accept_len: list[int], **known: object) -> Outcomes:
    count = len(block_size)
    request = np.arange(count)
    return Outcomes(request, request + 1, np.array(block_size), np.array(accept_len), 100 * count, **known)  # type: ignore[arg-type]


def test_the_window_grows_after_full_blocks_and_shrinks_after_half_ones() -> None:
    seen = seen_after([0, 8, 16, 32, 8, 16, 16, 32, 1], [0, 8, 16, 32, 4, 8, 9, 16, 1])
    assert np.asarray(window((8, 16, 32))(seen)).tolist() == [8, 16, 32, 32, 8, 8, 16, 16, 8]


@given(matched=st.integers(0, 400), missed=st.integers(0, 400))
def test_goodput_grows_blocks_with_acceptance(matched: int, missed: int) -> None:
    def choice(hits: float) -> Ints | int:
        known = {"matched": np.array([hits]), "checked": np.array([float(matched + missed)])}
        return goodput((4, 8, 16, 32), COSTS)(seen_after([8], [4], **known))

    assert choice(0.0) <= choice(float(matched)) <= choice(float(matched + missed))


def test_goodput_gives_up_drafting_where_nothing_is_accepted() -> None:
    nothing = {"matched": np.zeros(64), "checked": np.full(64, 1000.0)}
    dear = linear_costs(1e-4, 1e-3, 0.0)
    assert goodput((8, 16), dear)(seen_after([8] * 64, [1] * 64, **nothing)) == 1
    with pytest.raises(ValueError, match="nobody keeps it"):
        goodput((8, 16), dear)(seen_after([8], [1]))


def test_the_bandit_tries_everything_and_then_keeps_to_the_best() -> None:
    tallies = {8: Tally(100, 400, 1.0), 16: Tally(100, 900, 1.0)}
    assert bandit((8, 16, 32))(seen_after([16], [9], tallies=tallies)) == 32
    tallies[32] = Tally(1, 2, 1.0)
    assert bandit((8, 16, 32), exploration=0.0)(seen_after([16], [9], tallies=tallies)) == 16
    assert bandit((8, 16, 32), exploration=10.0)(seen_after([16], [9], tallies=tallies)) == 32


def test_the_bandit_finds_the_best_block() -> None:
    rounds = rounds_of(constant_trace(16, 20, output_tokens=200))
    run = replay(rounds, COSTS, make_policy("bandit", rounds, COSTS), concurrency=2, order=range(20))
    assert (run.emission_block_size == 16).mean() > 0.7


def test_a_function_in_a_file_is_a_policy(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def small(seen):\n    return 4\n\nlimit = 3\n")
    rounds = rounds_of(random_trace(0))
    run = replay(rounds, COSTS, make_policy(f"{tmp_path}/mine.py:small", rounds, COSTS), concurrency=2, order=range(4))
    assert set(run.emission_block_size.tolist()) <= {0, 4}
    with pytest.raises(ValueError, match=r"no function 'big' in .*mine\.py; there are: small"):
        own_policy(f"{tmp_path}/mine.py:big")
    with pytest.raises(ValueError, match="no function 'limit'"):
        own_policy(f"{tmp_path}/mine.py:limit")
    with pytest.raises(FileNotFoundError, match=r"no file .*other\.py"):
        own_policy(f"{tmp_path}/other.py:small")
    (tmp_path / "broken.py").write_text("def small(seen)\n    return 4\n")
    with pytest.raises(ValueError, match=r"broken\.py:1: expected ':'"):
        own_policy(f"{tmp_path}/broken.py:small")


@pytest.mark.parametrize("given", ["float('nan')", "4.0", "'8'", "None", "[4, 4, 4]"])
def test_a_function_that_gives_no_block_sizes_is_named(given: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def odd(seen):\n    return {given}\n")
    rounds = rounds_of(random_trace(0))
    policy = make_policy(f"{tmp_path}/mine.py:odd", rounds, COSTS)
    with pytest.raises(
        ValueError, match=r"mine\.py:odd': gave .*, allowed: a whole number, or an array of one a request"
    ):
        replay(rounds, COSTS, policy, concurrency=2, order=range(4))
