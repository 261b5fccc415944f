"""Rounds of requests that somebody else schedules, as SGLang does, over our own model: SGLang itself is not needed."""

import numpy as np
import pytest
from engines import GRID, POLICIES, prompts
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TINY, tiny_model

from recguide.engine.decode import autoregressive
from recguide.engine.forwards import Forwards
from recguide.engine.pages import PagedCache, PagePool
from recguide.engine.prefilling import Prefills
from recguide.engine.requests import Wish
from recguide.engine.runlog import prefill_work
from recguide.engine.scores import blank
from recguide.engine.sglang_requests import SglangLive
from recguide.engine.sglang_rounds import ScheduledRounds
from recguide.engine.sglang_times import beside_prefills, host_times
from recguide.engine.wayof import scratch_tokens
from recguide.engine.ways import AsFound, Setup
from recguide.sim.batching import BUCKETED
from recguide.sim.joint import Joint
from recguide.sim.tidar import Tidar

pytestmark = pytest.mark.usefixtures("one_thread")

SERVED = [name for name, policy in POLICIES.items() if not isinstance(policy, Tidar | Joint)]
MAX_NEW, PAGES, EACH = 24, 120, 16


class Scheduler:
    """Prefills one request at a time, runs the others, and lets requests go, between steps of rounds."""

    def __init__(self, seed: int, policy: str, ahead: bool) -> None:
        self.model = tiny_model(seed, 0)
        rules, decoder = POLICIES[policy], self.model.decoder
        cache = PagedCache(decoder.config, PAGES, 4, 8, scratch_tokens(rules, GRID), "cpu", decoder.dtype)
        # prefills are not of the forwards that may run ahead
        apart, setup = (Setup(Forwards(decoder, cache), AsFound(), GRID, TINY.max_context) for _ in range(2))
        self.rounds = ScheduledRounds(setup, rules, BUCKETED, keep=True, ahead=ahead)
        self.prefills, self.pool = Prefills(apart, 0), PagePool(PAGES)
        self.running: list[SglangLive] = []

    def prefill(self, prompt: list[int], max_new: int) -> SglangLive:
        live = SglangLive(0, prompt, Wish(max_new), frozenset(TINY.eos_ids), max_new)
        self.pool.resize(live.pages, EACH)
        self.rounds.arrived(live)
        (change,) = self.prefills.run([(live, len(prompt))])
        found = blank(1)
        found.first[:], found.entropy[:] = change.tokens, change.entropies
        self.rounds.prefilled([live], found, prefill_work(len(prompt), 1, 0), self.rounds.now)
        if live.finish_reason is None:
            self.running.append(live)
        return live

    def step(self) -> None:
        self.rounds.step(self.running)
        self.running = [live for live in self.running if live.finish_reason is None]


@settings(max_examples=30)
@given(
    seed=st.integers(0, 50),
    policy=st.sampled_from(SERVED),
    ahead=st.booleans(),
    asked=prompts,
    comings=st.lists(st.integers(0, 6), min_size=6, max_size=6),
    goings=st.lists(st.one_of(st.none(), st.integers(0, 8)), min_size=6, max_size=6),
)
def test_whoever_joins_and_leaves_the_others_get_the_tokens_of_one_token_decoding(
    seed, policy, ahead, asked, comings, goings
) -> None:
    scheduler = Scheduler(seed, policy, ahead)
    lives: dict[int, SglangLive] = {}
    for step in range(200):
        for row, prompt in enumerate(asked):
            if comings[row] == step:
                lives[row] = scheduler.prefill(prompt, MAX_NEW)
            if goings[row] == step and lives.get(row) in scheduler.running:
                scheduler.running.remove(lives[row])
                scheduler.rounds.ended(lives[row], "cancelled")
        if scheduler.running:
            before = sum(len(live.tokens) for live in scheduler.running)
            running = list(scheduler.running)
            scheduler.step()
            assert sum(len(live.tokens) for live in running) > before
        elif len(lives) == len(asked):
            break
    wanted = [list(one.tokens) for one in autoregressive(scheduler.model.decoder, asked, MAX_NEW)]
    for row, live in lives.items():
        assert live.finish_reason in ("length", "eos", "cancelled")
        assert live.tokens == (wanted[row][: len(live.tokens)] if live.finish_reason == "cancelled" else wanted[row])
    _check_log(scheduler, lives)


def _check_log(scheduler: Scheduler, lives: dict[int, SglangLive]) -> None:
    """Every token of every request is in the log, and its steps follow each other."""
    run = scheduler.rounds.log.replay(0, 0)
    ends = run.steps["start_s"] + run.steps["seconds"]
    assert (run.steps["start_s"][1:] >= ends[:-1] - 1e-9).all()
    for live in lives.values():
        assert run.emission_tokens[run.emission_request == live.number].sum() == len(live.tokens)


def test_nothing_is_left_of_those_who_are_dropped_without_a_word() -> None:
    rounds = Scheduler(0, "fixed:4", ahead=True).rounds
    live = SglangLive(0, [4, 5], Wish(4), frozenset(), 4)
    rounds.arrived(live)
    assert len(rounds._open) == 1
    del live
    assert len(rounds._open) == 0


def test_forwards_and_the_host_make_up_the_step_of_a_round() -> None:
    """A round that ran when a prefill came has its forwards before what the log has of it, and counts apart."""
    scheduler = Scheduler(3, "fixed:4", ahead=True)
    first = scheduler.prefill([4, 5, 6], MAX_NEW)
    scheduler.step()
    assert first in scheduler.running
    second = scheduler.prefill([8, 10, 9, 4], MAX_NEW)
    while scheduler.running:
        scheduler.step()
    assert second.finish_reason is not None
    log = scheduler.rounds.log
    steps, forward_s = log.replay(0, 0).steps, np.array(log.forward_s)
    beside, rounds = beside_prefills(steps), steps["block_size"] > 0
    assert beside.sum() == 1
    assert (steps["seconds"] < forward_s)[beside].all()
    assert (steps["seconds"] >= forward_s)[rounds & ~beside].all()
    told = host_times(steps, forward_s)
    assert told["rounds_beside_prefills"] == 1
    assert told["mean_host_ms"] > 0
    assert told["mean_step_ms"] == pytest.approx(told["mean_forward_ms"] + told["mean_host_ms"])
    assert told["mean_step_ms"] * (rounds.sum() - 1) == pytest.approx(told["round_s"] * 1e3)


def test_a_round_that_begins_behind_a_prefill_counts() -> None:
    steps = {"start_s": [0.0, 1.0, 2.5, 4.0], "seconds": [0.9, 1.0, 1.0, 1.0], "block_size": [8, 0, 8, 8]}
    table = {name: np.array(column) for name, column in steps.items()}
    assert beside_prefills(table).tolist() == [False, False, False, False]
    table["start_s"][2] = 2.0
    assert beside_prefills(table).tolist() == [False, False, True, False]
    told = host_times(table, np.array([0.5, 0.0, 3.0, 0.7]))
    assert (told["round_s"], told["forward_s"], told["rounds_beside_prefills"]) == (1.9, 1.2, 1)
    # from the second to the third round, in whose place no prefill was
    assert told["mean_between_steps_ms"] == pytest.approx(1000)
