import json
from pathlib import Path
from typing import Any

import profiles
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import Recguide
from spoiling import with_cell, with_document

from recguide.sim.costs import linear_costs
from recguide.sim.policies import fixed
from recguide.sim.replay import replay
from recguide.sim.rounds import rounds_of
from recguide.traces.acceptance import import_acceptance
from recguide.traces.checks import check_trace
from recguide.traces.files import read_trace
from recguide.traces.sparse import SparseRequest, SparseTrace, expanded, is_reduced, write_sparse

COSTS = linear_costs(1e-3, 2e-5, 1e-7)
VLLM = {"id": "a", "prompt_tokens": 7, "per_step_accepted": [3, 0, 7], "per_step_drafted": [7, 7, 7]}


def read(folder: Path, *rows: object, **options: Any) -> SparseTrace:
    path = folder / "served.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return import_acceptance(path, model="tiny", **options)


def test_vllms_steps_count_drafts_without_the_verifiers_token(tmp_path: Path) -> None:
    trace = read(tmp_path, VLLM, {"spec_decode_metrics": VLLM, "prompt_tokens": 9, "completion_tokens": 9})
    assert trace.block_size == 8
    assert [request.accept_lens for request in trace.requests] == [(4, 1, 8), (4, 1, 8)]
    assert [request.output_tokens for request in trace.requests] == [14, 9]
    assert [request.prompt_tokens for request in trace.requests] == [7, 9]


def test_steps_behind_the_last_token_are_dropped(tmp_path: Path) -> None:
    (request,) = read(tmp_path, VLLM | {"completion_tokens": 5}).requests
    assert (request.accept_lens, request.output_tokens) == ((4,), 5)


def test_spec_bench_counts_the_verifiers_token(tmp_path: Path) -> None:
    answer = {"question_id": 81, "category": "writing", "choices": [{"turns": ["x"], "accept_lengths": [1, 5, 2]}]}
    trace = read(tmp_path, answer, block_size=16, prompt_tokens=50)
    assert trace.requests == (SparseRequest("81/0", "served", "writing", 50, 9, (1, 5, 2)),)
    with pytest.raises(ValueError, match=r"served\.jsonl:1: choices\[0\]: prompt_tokens: missing"):
        read(tmp_path, answer)


BAD = [
    # https://github.com/vllm-project/vllm/pull/45060: a round that committed nothing must not loop for ever
    ({"per_step_accepted": [-1], "per_step_drafted": [7]}, r"per_step_accepted\[0\]: found -1"),
    ({"accept_lengths": [3, 0]}, r"accept_lengths\[1\]: found 0, allowed: whole numbers of at least 1"),
    ({"per_step_accepted": [8], "per_step_drafted": [7]}, r"per_step_accepted\[0\]: found 8 of 7 drafts"),
    ({"per_step_accepted": [1.5], "per_step_drafted": [7]}, r"per_step_accepted\[0\]: found 1.5"),
    ({"per_step_accepted": [True], "per_step_drafted": [7]}, r"per_step_accepted\[0\]: found True"),
    ({"per_step_accepted": [1, 2], "per_step_drafted": [7]}, "per_step_drafted: found 1 steps, allowed: 2"),
    ({"per_step_accepted": [1]}, "per_step_drafted: found None"),
    ({}, "per_step_accepted: missing"),
    ("[1]", "found a list, allowed: a JSON object"),
    ('{"per_step_accepted": [2748 610]}', "not JSON"),
    ("[" * 100_000, "not JSON"),
    (VLLM | {"completion_tokens": 99, "id": "b"}, "completion_tokens: found 99, allowed: up to 14"),
    (VLLM | {"prompt_tokens": 0, "id": "b"}, "prompt_tokens: found 0"),
]


@pytest.mark.parametrize(("row", "message"), BAD)
def test_a_bad_request_is_named_and_can_be_skipped_and_counted(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"served\.jsonl:2: {message}"):
        read(tmp_path, VLLM, row)
    trace = read(tmp_path, VLLM, row, lenient=True)
    assert len(trace.requests) == 1
    assert sum(trace.dropped.values()) == 1


def test_nothing_but_bad_requests_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"served\.jsonl: requests: found 'none'"):
        read(tmp_path, {}, lenient=True)
    with pytest.raises(FileNotFoundError, match=r"none\.json: no such file"):
        import_acceptance(tmp_path / "none.json", model="tiny")


accept_lens = st.lists(st.integers(1, 8), max_size=12).map(tuple)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(lens=st.lists(accept_lens, min_size=1, max_size=4))
def test_served_rounds_are_replayed_exactly_at_their_block_size(tmp_path: Path, lens: list[tuple[int, ...]]) -> None:
    requests = tuple(SparseRequest(f"r{i}", "d", "chat", 9, sum(a) + 1, a) for i, a in enumerate(lens))
    write_sparse(SparseTrace("tiny", 8, "a file", {}, requests), tmp_path / "sparse.parquet")
    trace = read_trace(tmp_path / "sparse.parquet")
    check_trace(trace)
    assert is_reduced(trace)
    run = replay(rounds_of(trace), COSTS, fixed(8), concurrency=2, order=range(len(lens)))
    decoding = run.emission_block_size == 8
    for sent, wanted in enumerate(lens):
        assert tuple(run.emission_tokens[decoding & (run.emission_request == sent)].tolist()) == wanted


def test_a_smaller_block_is_cut_and_what_was_not_reached_starts_anew() -> None:
    trace = expanded(SparseTrace("tiny", 8, "f", {}, (SparseRequest("r", "d", "chat", 9, 10, (6, 3)),)))
    rounds = rounds_of(trace)
    assert rounds.block_sizes == (2, 4, 8)
    assert rounds.accept_len[8][1:10].tolist() == [6, 5, 4, 3, 2, 1, 3, 2, 1]
    assert rounds.accept_len[4][1:4].tolist() == [4, 4, 4]


def test_the_command_refuses_other_file_names_and_a_model_without_a_name(recguide: Recguide, tmp_path: Path) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps(VLLM))
    named = recguide("traces", "import", source, "--output", tmp_path / "t.csv", "--model", "tiny")
    assert (named.code, named.stderr.startswith("error: output: found ")) == (2, True)
    nameless = recguide("traces", "import", source, "--output", tmp_path / "t.parquet", "--model", "")
    assert (nameless.code, nameless.stderr) == (2, "error: model: found '', allowed: a name\n")
    assert list(tmp_path.iterdir()) == [source]


def test_the_command_imports_and_every_result_says_that_fidelity_is_reduced(recguide: Recguide, tmp_path: Path) -> None:
    source, trace, profile = tmp_path / "s.jsonl", tmp_path / "t.parquet", tmp_path / "p.csv"
    source.write_text("\n".join(json.dumps(VLLM | {"id": f"r{i}"}) for i in range(6)) + "\n{}\n")
    profiles.write(profile)
    refused = recguide("traces", "import", source, "--output", trace, "--model", "tiny")
    assert (refused.code, trace.exists()) == (2, False)
    done = recguide("traces", "import", source, "--output", trace, "--model", "tiny", "--lenient")
    assert (done.code, done.stdout) == (0, f"{trace}\n")
    assert "6 requests, 18 rounds at block size 8, 1 dropped" in done.stderr
    assert "dropped: 1 for per_step_accepted" in done.stderr
    assert "reduced fidelity" in done.stderr
    sweep = ("sweep", "--trace", trace, "--profile", profile, "--jobs", 1, "--output-dir", tmp_path / "out", "--force")
    swept = recguide(*sweep, "--policy", "fixed:8", "--max-concurrency", 2)
    assert swept.code == 0, swept.stderr
    assert "REDUCED FIDELITY" in swept.stdout
    assert json.loads((tmp_path / "out" / "results.json").read_text())["reduced_fidelity"] is True
    assert "REDUCED FIDELITY" in (tmp_path / "out" / "report.html").read_text()
    blind = recguide(*sweep, "--policy", "overlap:B=8", "--max-concurrency", 2)
    assert blind.code == 2
    assert "the trace holds acceptance lengths alone" in " ".join(blind.stderr.split())


def sparse_file(folder: Path) -> Path:
    request = SparseRequest("r", "d", "chat", 9, 10, (6, 3))
    write_sparse(SparseTrace("tiny", 8, "a file", {"not JSON": 1}, (request,)), folder / "sparse.parquet")
    return folder / "sparse.parquet"


BAD_DOCUMENTS = [
    ("block_size", 33, "block_size: found 33, allowed: 2 to 32"),
    ("block_size", "8", "block_size: found '8', allowed: int"),
    ("schema", 9, "schema: found 9, allowed: 1"),
    ("model", None, "model: found None, allowed: str"),
]


@pytest.mark.parametrize(("field", "value", "message"), BAD_DOCUMENTS)
def test_a_sparse_file_with_bad_metadata_is_refused(tmp_path: Path, field: str, value: object, message: str) -> None:
    bad = with_document(sparse_file(tmp_path), lambda document: document | {field: value})
    with pytest.raises(ValueError, match=rf"bad\.parquet: {message}"):
        read_trace(bad)


BAD_CELLS = [
    ("accept_lens", [6, 0], r"request 'r': accept_lens\[1\]: found 0, allowed: 1 to 8"),
    ("accept_lens", [9], r"request 'r': accept_lens\[0\]: found 9, allowed: 1 to 8"),
    ("accept_lens", [6], "request 'r': output_tokens: found 10, allowed: 2 to 7, as its rounds give"),
    ("accept_lens", None, "column accept_lens: found None, allowed: values"),
    ("output_tokens", 0, "request 'r': output_tokens: found 0, allowed: 1 or more"),
    ("prompt_tokens", -1, "request 'r': prompt_tokens: found -1, allowed: 1 or more"),
]


@pytest.mark.parametrize(("column", "value", "message"), BAD_CELLS)
def test_a_sparse_file_whose_rounds_do_not_give_its_output_is_refused(
    tmp_path: Path, column: str, value: object, message: str
) -> None:
    bad = with_cell(sparse_file(tmp_path), column, 0, lambda _: value)
    with pytest.raises(ValueError, match=rf"bad\.parquet: {message}"):
        read_trace(bad)
