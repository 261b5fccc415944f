"""Rounds on the device are those that the simulator replays, and the engine commits."""

from dataclasses import fields
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds_from_traces import Player, limited, round_rules, scrambled, sure_continuations
from strategies import dense_traces

from recguide.engine.decode import Request, accept_lens
from recguide.kernels import round_state as rs
from recguide.kernels import verification
from recguide.kernels.accept import advance, advance_reference
from recguide.kernels.logit_statistics import LogitStatistics
from recguide.kernels.next_forward import lay_out
from recguide.sim.overlap import NO_DRAFT, SEEDED, Outcome, Overlap, overlap_tables
from recguide.sim.rounds import rounds_of
from recguide.traces.dense import DenseTrace

State = TypeVar("State", rs.Requests, rs.Forward)


def copied(state: State, device: torch.device | str = "cpu") -> State:
    return type(state)(*(getattr(state, field.name).clone().to(device) for field in fields(state)))


def assert_equal(found: State, wanted: State) -> None:
    for field in fields(found):
        ours, theirs = getattr(found, field.name).cpu(), getattr(wanted, field.name)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6, equal_nan=True, msg=field.name)


def random_case(seed: int):
    """A state of four requests and the statistics of their forward, as good as any: few tokens, so that they agree.

    There are 12 sets of rules, since each is a kernel of its own.
    """
    generator = torch.Generator().manual_seed(seed % 12)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    size, corrections, shift, *flags = (int(x) for x in (draw(2, 9), draw(0, 4), *draw(0, 2, 4)))
    continuation = rs.CONTINUATIONS[int(draw(0, 3))]
    smaller = tuple(x for x in (2, 4) if x < size)
    barred, recursive, lockstep = map(bool, flags)
    steps = 128
    rules = rs.RoundRules(size, 3, 40, smaller, corrections, continuation, steps, barred, recursive, shift, lockstep)
    generator.manual_seed(seed)
    requests, forward = rs.make_requests(4, rules, 16, 5, "cpu"), rs.make_forward(4, rules, "cpu")
    state = requests.state
    state[:, rs.FINISH] = draw(0, 2, 4)
    state[:, rs.CACHED], state[:, rs.LEFT] = draw(1, 40, 4), draw(1, 12, 4)
    state[:, rs.BLOCK] = torch.tensor([1, *smaller, size])[draw(0, len(smaller) + 2, 4)]
    state[:, rs.PHASE] = torch.where(state[:, rs.FINISH] > 0, rs.DONE, draw(1, 3, 4))
    state[:, rs.ROUNDS], state[:, rs.WRITTEN] = draw(0, 9, 4), draw(0, 30, 4)
    whole = state[:, rs.BLOCK] == size
    for n in range(corrections):
        whole_before = whole if n == 0 else whole & (state[:, rs.PLACES + n - 1] > 0)
        state[:, rs.PLACES + n] = torch.where(whole_before, draw(0, size, 4), 0)
    state[:, rs.GOES_ON] = draw(0, 2, 4) * whole * (continuation != "never")
    requests.draft.copy_(draw(-1, 4, *requests.draft.shape))
    forward.ids.copy_(draw(0, 4, *forward.ids.shape))
    ids, numbers = draw(-1, 4, 3, *forward.ids.shape), torch.rand(3, *forward.ids.shape, generator=generator)
    agree = draw(0, 4, 4, size - 1) > 0
    ids[0, :, : size - 1] = torch.where(agree, requests.draft[:, 1:], ids[0, :, : size - 1])
    numbers[1, draw(0, 4), draw(0, rules.num_tokens)] = torch.nan
    return rules, requests, forward, LogitStatistics(*ids.flatten(1), *numbers.flatten(1))


def test_the_kernel_does_what_the_reference_does(device):
    for seed in range(24 if device.type == "cpu" else 2000):
        rules, requests, forward, found = random_case(seed)
        ours, next_forward = copied(requests, device), copied(forward, device)
        eos = rs.eos_tensor((0, 9), device)
        there = LogitStatistics(*(column.to(device) for column in found))
        advance(ours, next_forward, there, eos, rs.sizes_tensor(rules, device), rules)
        advance_reference(requests, forward, found, eos.cpu(), rs.sizes_tensor(rules, "cpu"), rules)
        assert_equal(ours, requests)
        assert_equal(next_forward, forward)


@settings(max_examples=200)
@given(
    block=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    data=st.data(),
    left=st.integers(1, 9),
)
def test_a_verified_block_gives_what_a_request_commits(block, data, left):
    verified = data.draw(st.lists(st.integers(0, 3), min_size=len(block), max_size=len(block)))
    rules = rs.RoundRules(8, 3, 10**6, (2, 4), lockstep=True)
    requests, forward = rs.make_requests(1, rules, 16, 4, "cpu"), rs.make_forward(1, rules, "cpu")
    state = requests.state[0]
    state[rs.PHASE], state[rs.FINISH], state[rs.BLOCK] = rs.VERIFY, rs.RUNNING, len(block)
    state[rs.LEFT], state[rs.CACHED], state[rs.WRITTEN] = left, 5, 1
    requests.draft[0, : len(block)] = torch.tensor(block)
    first = torch.full((8,), 1)
    first[: len(block)] = torch.tensor(verified)
    entropy = torch.arange(8.0)
    found = LogitStatistics(first, first, first, entropy, entropy, entropy)
    advance_reference(requests, forward, found, rs.eos_tensor((0,), "cpu"), rs.sizes_tensor(rules, "cpu"), rules)

    plain = Request(5, left, [block[0]])
    accepted = int(accept_lens(torch.tensor([block]), torch.tensor([verified]))[0])
    told = plain.commit(len(block), verified[:accepted], (0,))
    assert requests.log[0, 0, :3].tolist() == list(told)
    assert requests.tokens[0, 1 : state[rs.WRITTEN]].tolist() == plain.tokens[1:]
    assert (int(state[rs.LEFT]), int(state[rs.CACHED])) == (plain.tokens_left, plain.cached)
    assert int(state[rs.FINISH]) == (rs.ENDED if plain.ended else rs.LIMITED if plain.finished else rs.RUNNING)
    assert float(requests.entropy[0, 0]) == entropy[: told.emitted].mean()
    if not plain.finished:
        assert int(requests.draft[0, 0]) == plain.tokens[-1]


def played(trace: DenseTrace, rules: Overlap, shift: int, lockstep: bool) -> list[list[list[int]]]:
    """Block size, acceptance length, emitted tokens and outcome of every round of every request, on the device."""
    player = Player(trace, round_rules(trace, rules, shift, lockstep))
    eos, sizes = rs.eos_tensor((0,), "cpu"), rs.sizes_tensor(player.rules, "cpu")
    forwards = 0
    while (player.requests.state[:, rs.PHASE] != rs.DONE).any():
        advance_reference(player.requests, player.forward, player.statistics(), eos, sizes, player.rules)
        forwards += 1
        assert forwards < 1000
    count = player.requests.state[:, rs.ROUNDS].tolist()
    return [player.requests.log[row, : count[row]].tolist() for row in range(len(trace.requests))]


def replayed(trace: DenseTrace, rules: Overlap) -> list[list[list[int]]]:
    """The same from the simulator's tables; nobody can count matches behind a limit by more than one."""
    rounds = rounds_of(trace, rules.keys)
    tables = overlap_tables(rounds, rules)
    told = []
    for request, first in zip(trace.requests, rounds.first.tolist(), strict=True):
        position, source, mine = 1, SEEDED, []
        while position < request.output_tokens:
            row = first + position
            emitted = int(tables.emitted[source, row])
            outcome = int(tables.outcome[source, row])
            mine.append([int(tables.block_size[row]), int(tables.accept_len[source, row]), emitted, outcome])
            following = int(tables.next_source[source, row])
            position, source = position + emitted, SEEDED if following == NO_DRAFT else following
        told.append(mine)
    return told


def seen(trace: DenseTrace, told: list[list[list[int]]]) -> list[list[list[int]]]:
    """Without acceptance behind the output's end, which a request that stops there does not know."""
    for mine in told:
        for entry in mine:
            if entry[3] & Outcome.CUT:
                entry[1] = entry[2] + 1
    return told


@settings(max_examples=100)
@given(
    trace=dense_traces(max_output_tokens=40),
    data=st.data(),
    noise=st.one_of(st.none(), st.integers(0, 2**16)),
    room=st.integers(0, 40),
    shift=st.sampled_from([0, 1]),
)
def test_rounds_with_branches_are_those_of_the_simulator(trace, data, noise, room, shift):
    rules = Overlap(
        data.draw(st.sampled_from(trace.provenance.block_sizes)),
        data.draw(st.sampled_from([0.25, 0.5, 0.75])),
        data.draw(st.integers(0, 3)),
        data.draw(st.sampled_from(["two-risky", "always", "never"])),
        data.draw(st.sampled_from(["allowed", "barred"])),
        data.draw(st.booleans()),
    )
    trace = trace if noise is None else scrambled(trace, noise)
    trace = limited(sure_continuations(trace) if shift else trace, room)
    assert seen(trace, played(trace, rules, shift, False)) == seen(trace, replayed(trace, rules))


@settings(max_examples=20)
@given(trace=dense_traces(max_output_tokens=40), data=st.data(), room=st.integers(0, 40), lockstep=st.booleans())
def test_plain_rounds_are_those_of_the_simulator(trace, data, room, lockstep):
    rules = Overlap(data.draw(st.sampled_from(trace.provenance.block_sizes)), corrections=0, continuation="never")
    trace = limited(trace, room)
    assert seen(trace, played(trace, rules, 0, lockstep)) == seen(trace, replayed(trace, rules))


def test_outcomes_have_the_flags_of_the_simulator():
    ours = ("COVERED", "CORRECTED", "FULL", "CONTINUED", "DRAFTED", "CUT", "PREPARED")
    assert [getattr(verification, name) for name in ours] == [flag.value for flag in Outcome]


def test_a_verifier_without_a_distribution_ends_its_request_with_what_it_had():
    rules = rs.RoundRules(4, 3, 100, (2,))
    requests, forward = rs.make_requests(2, rules, 16, 4, "cpu"), rs.make_forward(2, rules, "cpu")
    requests.state[:] = torch.tensor([rs.VERIFY, rs.RUNNING, 5, 9, 4, 0, 0, 0, 1])
    requests.draft[:] = torch.tensor([[5, 6, 7, 8], [5, 6, -1, 8]])
    first = torch.tensor([6, 7, -1, 9, 6, 4, 4, 4])
    number = torch.ones(8)
    found = LogitStatistics(first, first, first, number, number, number)
    advance_reference(requests, forward, found, rs.eos_tensor((0,), "cpu"), rs.sizes_tensor(rules, "cpu"), rules)
    assert requests.state[:, rs.FINISH].tolist() == [rs.BROKEN, rs.RUNNING]
    assert requests.state[:, rs.PHASE].tolist() == [rs.DONE, rs.DRAFT]
    # a draft without a distribution merely matches nothing
    assert requests.log[:, 0, 2].tolist() == [2, 2]
    assert forward.num_tokens.tolist() == [0, 4]


def test_visible_tokens_become_the_mask_of_branches_that_share_their_trunk():
    rules = rs.RoundRules(3, 3, 100, (2,), corrections=1, continuation="always")
    requests, forward = rs.make_requests(1, rules, 16, 4, "cpu"), rs.make_forward(1, rules, "cpu")
    requests.state[0] = torch.tensor([rs.VERIFY, rs.RUNNING, 2, 50, 3, 0, 1, 0, 1, 2])
    requests.draft[0] = torch.tensor([5, 6, 7])
    lay_out(requests, forward, [torch.tensor([8])], rules)
    assert forward.ids.tolist() == [[5, 6, 7, 8, 3, 3, 3, 3, 3]]
    assert forward.positions.tolist() == [[2, 3, 4, 4, 5, 6, 5, 6, 7]]
    assert forward.slots.tolist() == [list(range(2, 11))]
    assert forward.gate[0, :, 0].tolist() == [False] * 3 + [True] * 6
    verifier = ["111000000", "111100000", "111110000"]
    branches = ["11110111000"] * 3 + ["11111000111"] * 3
    mask = rs.tail_mask(forward, 11)[0, 0].int().tolist()
    wanted = [row.ljust(11, "0") for row in verifier] + branches
    assert ["".join(map(str, row)) for row in mask] == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 1}, "block_size is 1; allowed: 2 to 64"),
        ({"continuation": "maybe"}, "continuation is 'maybe'; allowed: never, always, two-risky"),
        ({"smaller": (4, 2)}, r"smaller is \(4, 2\); allowed: ascending, 2 to 7"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        rs.RoundRules(**({"block_size": 8, "mask_id": 3, "max_context": 9} | options))
