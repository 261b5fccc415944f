"""Reading prompts from JSON lines."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from recguide.traces.datasets import Prompt, prompt_set_sha256, read_prompts


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_own_rows_are_read_field_by_field(tmp_path: Path) -> None:
    row = {"id": "a/1", "dataset": "gsm8k", "category": "math", "prompt": "How much?", "answer": "3"}
    assert read_prompts([write(tmp_path / "f.jsonl", row)]) == [Prompt("a/1", "gsm8k", "math", "How much?")]


def test_a_spec_bench_question_gives_its_first_turn(tmp_path: Path) -> None:
    row = {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]}
    assert read_prompts([write(tmp_path / "question.jsonl", row)]) == [Prompt("81", "question", "writing", "Write.")]


def test_bare_rows_are_called_after_their_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", {"turns": ["One"]}, {"prompt": "Two"})
    assert read_prompts([path]) == [
        Prompt("mine/0", "mine", "unknown", "One"),
        Prompt("mine/1", "mine", "unknown", "Two"),
    ]


def test_blank_lines_and_a_byte_order_mark_are_no_prompts(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "One"}\r\n\r\n{"prompt": "Two\\u2028"}')
    assert [prompt.text for prompt in read_prompts([path])] == ["One", "Two\u2028"]


def test_the_limit_counts_each_dataset_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", *({"dataset": name, "prompt": "x"} for name in "aabbb"))
    assert [prompt.prompt_id for prompt in read_prompts([path], limit_per_dataset=2)] == ["f/0", "f/1", "f/2", "f/3"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit_per_dataset: found {limit}"):
        read_prompts([], limit_per_dataset=limit)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "x"', r"not JSON: Expecting"),
        (b"[1, 2]", r"found a list, allowed: a JSON object"),
        (b'{"prompt": "\xff"}', r"not UTF-8: .* 0xff"),
        (b'{"prompt": "\\ud83d"}', r"prompt: half of a character pair"),
        (b'{"id": "a"}', r"prompt: found None, allowed: text"),
        (b'{"prompt": ""}', r"prompt: found '', allowed: text"),
        (b'{"prompt": " \\n"}', r"prompt: found ' \\n', allowed: text"),
        (b'{"prompt": 3}', r"prompt: found 3, allowed: text"),
        (b'{"prompt": "x", "id": true}', r"id: found True, allowed: text"),
        (b'{"prompt": "x", "id": null}', r"id: found None, allowed: text"),
        (b'{"prompt": "x", "dataset": 1}', r"dataset: found 1, allowed: text"),
        (b'{"prompt": "x", "category": ["math"]}', r"category: found \['math'\], allowed: text"),
        (b'{"turns": []}', r"turns: found \[\], allowed: a list of messages"),
        (b'{"turns": "Hello"}', r"turns: found 'Hello', allowed: a list of messages"),
        (b'{"turns": [{"role": "user"}]}', r"turns\[0\]: found {'role': 'user'}, allowed: text"),
        (b'{"turns": ["x"], "prompt": "x"}', r"prompt: found beside turns, allowed: one of them"),
    ],
)
def test_a_malformed_line_is_refused_with_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"prompt": "fine", "id": "fine"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=rf"f\.jsonl:2: {message}"):
        read_prompts([path])


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"f\.jsonl: found no prompt"):
        read_prompts([path])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.jsonl: found no such file, allowed: a JSON lines file with prompts"):
        read_prompts([tmp_path / "none.jsonl"])


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found a folder, allowed: a JSON lines file"):
        read_prompts([tmp_path])


def test_an_id_in_two_files_is_refused_with_both(tmp_path: Path) -> None:
    row = {"id": "a", "prompt": "x"}
    paths = [write(tmp_path / name, row) for name in ("one.jsonl", "two.jsonl")]
    with pytest.raises(ValueError, match=r"two\.jsonl:1: id: found 'a', which .*one\.jsonl:1 has too"):
        read_prompts(paths)


def test_a_set_hash_ignores_order_and_sees_every_field() -> None:
    first, second = Prompt("a", "d", "c", "x"), Prompt("b", "d", "c", "y")
    assert prompt_set_sha256([first, second]) == prompt_set_sha256([second, first])
    names = ("prompt_id", "dataset", "category", "text")
    others = [replace(first, **{name: "z"}) for name in names]
    assert len({prompt_set_sha256([prompt, second]) for prompt in [first, *others]}) == 5
