from itertools import combinations_with_replacement

import pytest
from engines import GRID, POLICIES
from tiny import tiny_model

from recguide.engine.inputs import counts_up_to, power_of_2
from recguide.engine.requests import Live, Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.sim.sizes import filled_up

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("policy", ["allocation", "regime-allocation"])
def test_unequal_blocks_meet_no_size_that_was_not_rehearsed(policy: str) -> None:
    engine = Engine(tiny_model(3, 0).decoder, POLICIES[policy], EngineConfig(GRID))
    nobody = Live(0, [0, 0], Wish(9), frozenset(), 9, tokens=[0])
    known = {
        (power_of_2(count), filled_up(planned.work.query_tokens))
        for count in counts_up_to(20)
        for planned in engine.way.rehearse([nobody] * count)
    }
    least = 3 if policy.startswith("regime") else 1
    for count in (*range(least, 11), 16, 17, 20):
        # many mixtures of many requests have the same sum
        sums = {sum(each) for each in combinations_with_replacement(GRID, count)}
        assert {(power_of_2(count), filled_up(each)) for each in sums} <= known


def test_what_is_rehearsed_runs_and_serves_nobody() -> None:
    engine = Engine(tiny_model(3, 0).decoder, POLICIES["allocation"], EngineConfig(GRID))
    assert engine.prepare((1, 3, 8)) > 3 * 4
    engine.check()
    assert engine.steps == engine.in_flight == 0
