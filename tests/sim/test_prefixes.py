import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import profiles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import Recguide
from strategies import random_trace

from recguide.sim.arrivals import Clients, as_recorded
from recguide.sim.costs import linear_costs
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.memory import Limits
from recguide.sim.policies import fixed
from recguide.sim.prefixes import Kept, Prefix, prefixes_of
from recguide.sim.replay import serve
from recguide.sim.rounds import rounds_of
from recguide.traces.dense import DenseTrace
from recguide.traces.files import write_trace

COSTS = linear_costs(1e-3, 2e-5, 1e-7, host_s=1e-4)


def run(trace: DenseTrace, order: list[int], concurrency: int, limits: Limits) -> Replay:
    rounds = rounds_of(trace)
    prefixes = prefixes_of(trace, limits.page_size)
    clients = Clients(as_recorded(rounds, order, prefixes=prefixes), concurrency)
    return serve(rounds, COSTS, fixed(8), clients, limits=limits, closed=True)


def prefilled(found: Replay) -> int:
    return int(found.steps["query_tokens"][found.steps["block_size"] == PREFILL_STEP].sum())


def with_prompts(trace: DenseTrace, *prompts: list[int]) -> DenseTrace:
    ids = [np.array(prompt, np.int32) for prompt in prompts]
    requests = [
        replace(request, prompt_ids=prompt, prompt_tokens=len(prompt))
        for request, prompt in zip(trace.requests, ids, strict=True)
    ]
    return replace(trace, requests=tuple(requests))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 99),
    order=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    concurrency=st.integers(1, 5),
    chunk=st.sampled_from([None, 7, 100]),
    page_size=st.sampled_from([1, 16, 50]),
)
def test_what_is_reused_is_not_prefilled_and_nothing_else_changes(
    seed: int, order: list[int], concurrency: int, chunk: int | None, page_size: int
) -> None:
    limits = Limits(300, chunk, None, page_size)
    plain = run(random_trace(seed, 4), order, concurrency, limits)
    reusing = run(random_trace(seed, 4), order, concurrency, replace(limits, prefix_reuse=True))
    assert plain.reused_tokens is None
    assert reusing.reused_tokens is not None
    assert prefilled(reusing) + reusing.reused_tokens == prefilled(plain) == plain.prompt_tokens.sum()
    assert reusing.output_tokens.tolist() == plain.output_tokens.tolist()
    if concurrency == 1:
        again = [row for place, row in enumerate(order) if row in order[:place]]
        prompts = [random_trace(seed, 4).requests[row].prompt_tokens for row in again]
        assert reusing.reused_tokens == sum(min(n // page_size * page_size, n - 1) for n in prompts)


def test_prompts_with_ids_share_whole_pages_up_to_where_they_part() -> None:
    common = list(range(40))
    trace = with_prompts(random_trace(0, 3), [*common, 1, 2, 3], [*common, 7, 8], [99, *common])
    found = run(trace, [0, 1, 2], 1, Limits(prefix_reuse=True))
    assert found.reused_tokens == 32
    first, second = (float(found.first_token_s[i] - found.sent_s[i]) for i in (0, 1))
    assert second == pytest.approx(COSTS.forward_s("prefill", 1, 10, 32))
    assert first == pytest.approx(COSTS.forward_s("prefill", 1, 43, 0))


def test_the_last_token_is_always_prefilled_and_a_torn_stretch_is_not_kept() -> None:
    kept, prefix = Kept(), Prefix((1, 2, 3), 4)
    kept.keep(prefix, 11)
    assert [kept.cached(prefix, tokens) for tokens in (8, 9, 12)] == [7, 8, 8]
    assert kept.cached(None, 5) == kept.cached(Prefix((9, 2), 4), 8) == 0


def test_mooncake_rows_say_what_their_prompts_share(recguide: Recguide, tmp_path: Path) -> None:
    write_trace(random_trace(0, 6), tmp_path / "trace.parquet")
    rows = [(0, [1, 2, 3]), (5000, [1, 2, 4]), (10000, [5, 2, 4]), (15000, None)]
    lines = [
        {"timestamp": time, "input_length": 1400, "output_length": 5, **({"hash_ids": ids} if ids else {})}
        for time, ids in rows
    ]
    (tmp_path / "mooncake.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ["--trace", tmp_path / "trace.parquet", "--profile", profiles.write(tmp_path / "profile.csv")]
    options += [
        "--arrivals",
        tmp_path / "mooncake.jsonl",
        "--policy",
        "ar",
        "--jobs",
        1,
        "--output-dir",
        tmp_path / "o",
    ]
    for more, reused in (([], None), (["--prefix-reuse"], 1024), (["--prefix-reuse", "--stream"], 1024)):
        assert recguide("sweep", *options, *more).code == 0
        [point] = json.loads((tmp_path / "o" / "results.json").read_text())["points"]
        assert point["reused_tokens"] == reused
        assert point["prefill_query_tokens"] == 4 * 1400 - (reused or 0)
    lines[1]["hash_ids"] = ["x"]
    (tmp_path / "mooncake.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert "mooncake.jsonl:2: hash_ids: found 'x', allowed: a whole number" in recguide("sweep", *options).stderr


def test_where_nothing_is_alike_the_reader_is_told(recguide: Recguide, tmp_path: Path) -> None:
    write_trace(random_trace(0, 3), tmp_path / "trace.parquet")
    options = ["--trace", tmp_path / "trace.parquet", "--profile", profiles.write(tmp_path / "profile.csv")]
    options += ["--policy", "ar", "--max-concurrency", 1, "--jobs", 1, "--output-dir", tmp_path / "o"]
    told = "no prompt begins like an earlier one"
    assert told in recguide("sweep", *options, "--prefix-reuse").stderr
    assert told not in recguide("sweep", *options, "--prefix-reuse", "--num-prompts", 9).stderr
