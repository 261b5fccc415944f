"""`recguide record` as users run it: files, shares, resumed runs, what is left out, and what is refused."""

import json
import re
import sys
from dataclasses import replace

import pytest

from recguide.engine.record_command import parse_shard
from recguide.engine.record_run import drawn
from recguide.engine.shared_options import parse_block_sizes
from recguide.sim.cli import main
from recguide.traces.datasets import Prompt
from recguide.traces.files import read_trace, read_traces, write_trace

QUESTIONS = {"sums": ["What is 2+2?", "What is 3+4?", "Add 7 and 8."], "facts": ["Who wrote Faust?", "Where is Rome?"]}


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [
        {"id": f"{dataset}/{index}", "dataset": dataset, "category": "qa", "prompt": text}
        for dataset, texts in QUESTIONS.items()
        for index, text in enumerate(texts)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture
def record(tiny_folder, questions, tmp_path, monkeypatch, capsys):
    """Run the command on the questions; gives its exit code and what it wrote to stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECGUIDE_COMMIT", "abc")

    def run(*options: str) -> tuple[int, str, str]:
        settings = {"--dataset-path": str(questions), "--max-output-tokens": "9", "--block-sizes": "2,4"}
        words = [word for name, value in settings.items() if name not in options for word in (name, value)]
        monkeypatch.setattr(sys, "argv", ["recguide", "record", str(tiny_folder), *words, "--device", "cpu", *options])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


def contents(trace):
    return {
        request.request_id: (
            request.prompt_tokens,
            request.finish_reason,
            request.entropy.tolist(),
            {key: [drafts.match.tolist(), drafts.margin.tolist()] for key, drafts in request.drafts.items()},
        )
        for request in trace.requests
    }


def test_one_file_holds_every_prompt_in_order_and_says_where_it_comes_from(record, tmp_path):
    code, out, _ = record("--output", "traces.parquet")
    assert code == 0
    assert out.startswith("traces.parquet\t5 requests\t")
    trace = read_trace(tmp_path / "traces.parquet")
    assert [one.request_id for one in trace.requests] == ["sums/0", "sums/1", "sums/2", "facts/0", "facts/1"]
    assert trace.requests[0].output_ids is None
    provenance = trace.provenance
    assert (provenance.model, provenance.engine_commit, provenance.gpu) == ("tiny-llama", "abc", "cpu")
    assert (provenance.block_sizes, provenance.max_output_tokens, provenance.max_context) == ((2, 4), 9, 512)
    assert provenance.base_agreement == 1.0
    assert provenance.command == (
        "recguide record tiny-llama --dataset-path questions.jsonl --max-output-tokens 9 --block-sizes 2,4 --dtype fp32"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["questions.jsonl", "traces.parquet"]


def test_a_folder_gets_a_file_for_each_dataset(record, tmp_path):
    assert record("--output", "traces")[0] == 0
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["facts.parquet", "sums.parquet"]


def test_shares_recorded_apart_are_together_what_one_run_records(record, tmp_path):
    record("--output", "whole.parquet")
    for shard in ("1/2", "2/2"):
        assert record("--output", "shares", "--shard", shard)[0] == 0
    assert contents(read_traces([tmp_path / "shares"])) == contents(read_trace(tmp_path / "whole.parquet"))


def test_token_ids_are_stored_on_demand(record, model, tmp_path):
    record("--output", "traces.parquet", "--with-token-ids", "--limit", "1")
    first, second = read_trace(tmp_path / "traces.parquet").requests
    assert "What is 2+2?" in model.tokenizer.decode(first.prompt_ids.tolist())
    assert len(second.output_ids) == second.output_tokens


def test_prompts_that_fill_the_context_are_counted_by_dataset(record, tmp_path, questions):
    long = {"id": "sums/9", "dataset": "sums", "prompt": "1 " * 60}
    questions.write_text(questions.read_text() + "\n" + json.dumps(long))
    code, _, err = record("--output", "traces.parquet", "--max-context", "64")
    assert code == 0
    assert "sums: left out 1 prompts that fill the context" in err
    trace = read_trace(tmp_path / "traces.parquet")
    assert trace.provenance.dropped == {"sums": {"prompts that fill the context": 1}}
    assert len(trace.requests) == 5


def interrupt(record, tmp_path):
    """A run that cannot put its last file in place; gives its parts."""
    (tmp_path / "traces" / "facts.parquet").mkdir(parents=True)
    code, _, err = record("--output", "traces")
    assert code == 2
    assert "facts.parquet" in err
    (tmp_path / "traces" / "facts.parquet").rmdir()
    return {path.name: path for path in (tmp_path / "traces.parts").iterdir()}


def test_an_interrupted_run_goes_on_from_its_parts(record, tmp_path, questions):
    # on a CPU eight requests are recorded together: the shortest eight prompts, then the other two
    rows = [{"id": f"facts/{i}", "dataset": "facts", "category": "qa", "prompt": "Hi" + " you" * i} for i in range(10)]
    questions.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    parts = interrupt(record, tmp_path)
    assert sorted(parts) == ["facts-0.parquet", "facts-1.parquet"]
    # a part that only the first run can have written, and one that it did not finish
    part = read_trace(parts["facts-0.parquet"])
    marked = tuple(replace(request, category="kept") for request in part.requests)
    write_trace(replace(part, requests=marked), parts["facts-0.parquet"])
    parts["facts-1.parquet"].write_bytes(b"PAR1 and no more")
    assert record("--output", "traces")[0] == 0
    requests = read_trace(tmp_path / "traces" / "facts.parquet").requests
    assert [one.request_id for one in requests] == [row["id"] for row in rows]
    assert [one.category for one in requests] == ["kept"] * 8 + ["qa"] * 2
    assert not (tmp_path / "traces.parts").exists()


def test_requests_of_several_datasets_are_recorded_together_and_kept_apart(record, tmp_path):
    assert sorted(interrupt(record, tmp_path)) == ["facts-0.parquet", "sums-0.parquet"]


def test_a_run_without_a_terminal_says_how_far_it_is(record):
    _, _, err = record("--output", "traces.parquet")
    assert re.search(r"^\d\d:\d\d:\d\d decoding 5 requests with \d+ to \d+ prompt tokens$", err, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\d 5 of 5 requests$", err, re.MULTILINE)


def test_parts_of_other_settings_are_not_taken(record, tmp_path):
    interrupt(record, tmp_path)
    assert record("--output", "traces", "--max-output-tokens", "3")[0] == 0
    trace = read_traces([tmp_path / "traces"])
    assert max(request.output_tokens for request in trace.requests) == trace.provenance.max_output_tokens == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--block-sizes", "8,4"], "--block-sizes: found '8,4'"),
        (["--block-sizes", "4,64"], "--block-sizes: found '4,64'"),
        (["--block-sizes", ""], "--block-sizes: found ''"),
        (["--shard", "3/2"], "--shard: found '3/2'"),
        (["--dtype", "fp16"], "--dtype: found 'fp16', allowed: fp32 or bf16"),
        (["--limit", "0"], "--limit: found 0"),
        (["--max-output-tokens", "0"], "--max-output-tokens: found 0"),
        (["--max-context", "9999"], "--max-context: found 9999, allowed: 2 to 512"),
        (["--max-context", "20"], "prompts: found 'none that fits'"),
        (["--device", "tpu9"], "device 'tpu9': not a device"),
        (["--adapter", "nowhere"], "adapter 'nowhere': no such file"),
        (["--dataset-path", "missing.jsonl"], "missing.jsonl"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_bad_input_exits_2_with_a_message_and_leaves_nothing_behind(record, tmp_path, options, message):
    code, out, err = record("--output", "traces.parquet", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]


def test_an_output_without_a_folder_is_refused(record):
    code, _, err = record("--output", "nowhere/traces.parquet")
    assert code == 2
    assert "--output: found 'nowhere/traces.parquet'" in err


def test_random_draws_keep_the_order_and_follow_the_seed():
    prompts = [Prompt(f"{name}/{i}", name, "c", "t") for name in "ab" for i in range(20)]
    first, again, other = (drawn(prompts, 4, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert [prompt.dataset for prompt in first] == ["a"] * 4 + ["b"] * 4
    assert first == sorted(first, key=prompts.index)
    assert drawn(prompts, None, 1) == prompts


def test_options_are_read_as_written():
    assert parse_block_sizes("4, 8,16") == (4, 8, 16)
    assert parse_shard("2/3") == (2, 3)
