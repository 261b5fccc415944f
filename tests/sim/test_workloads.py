import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recguide.sim.workloads import Counts, Workload

PLAIN = "arrival_s,input_tokens,output_tokens\n0.5,10,4\n0.75,20,6\n2,30,8\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,10,4\n"
    "2023-11-16 18:17:04.2299600,20,6\n2023-11-16 18:17:05.4799600,30,8\n"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,10,4,14,Conversation log\n"
    "5.25,GPT-4,20,6,26,API log\n6.5,ChatGPT,30,8,38,API log\n"
)
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,4\n0.75,20,6\n2,30,8\n"
MOONCAKE = "".join(
    json.dumps({"timestamp": time, "input_length": prompt, "output_length": output, "hash_ids": [1]}) + "\n"
    for time, prompt, output in ((500, 10, 4), (750, 20, 6), (2000, 30, 8))
)
RESULT = {"input_lens": [20, 10, 30], "output_lens": [6, 4, 8], "start_times": [7.75, 7.5, 9.0], "errors": ["", "", ""]}
FILES = {
    "plain.csv": PLAIN,
    "azure.csv": AZURE,
    "burstgpt.csv": BURSTGPT,
    "vidur.csv": VIDUR,
    "mooncake.jsonl": MOONCAKE,
    "vllm.json": json.dumps(RESULT, indent=2),
    "sglang.jsonl": json.dumps(RESULT) + "\n",
    "marked.csv": "\ufeff" + PLAIN.replace("\n", "\r\n"),
}


def read(
    folder: Path, text: str, name: str = "file.csv", **options: object
) -> tuple[list[tuple[float, int, int]], Counts]:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    counts = Counts()
    rows = list(Workload(path, **options).rows(counts))  # type: ignore[arg-type]
    return [(row.arrival_s, row.input_tokens, row.output_tokens) for row in rows], counts


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_three_requests(tmp_path: Path, name: str) -> None:
    rows, counts = read(tmp_path, FILES[name], name)
    assert rows == [(0.0, 10, 4), (0.25, 20, 6), (1.5, 30, 8)]
    assert (counts.rows, counts.failed, counts.skipped, counts.warnings) == (3, 0, 0, [])


def test_a_time_scale_stretches_all_gaps(tmp_path: Path) -> None:
    assert [time for time, _, _ in read(tmp_path, PLAIN, time_scale=2.0)[0]] == [0.0, 0.5, 3.0]


@pytest.mark.parametrize("factor", [10**3, 10**6, 10**9], ids=["ms", "us", "ns"])
def test_epoch_times_in_any_unit_are_shifted_to_the_origin(tmp_path: Path, factor: int) -> None:
    lines = PLAIN.splitlines()
    start = 1_700_000_000
    moved = [
        lines[0],
        *(
            f"{start * factor + int(float(time) * factor)},{rest}"
            for time, _, rest in (x.partition(",") for x in lines[1:])
        ),
    ]
    rows, counts = read(tmp_path, "\n".join(moved))
    assert rows == read(tmp_path, PLAIN)[0]
    assert "are read as" in counts.warnings[0]


def test_epoch_seconds_need_no_guess(tmp_path: Path) -> None:
    rows, counts = read(
        tmp_path,
        PLAIN.replace("0.5,", "1700000000.5,").replace("0.75,", "1700000000.75,").replace("2,30", "1700000002,30"),
    )
    assert rows == read(tmp_path, PLAIN)[0]
    assert counts.warnings == []


BAD_FIELDS = [
    ("arrival_s", "nan"),
    ("arrival_s", "inf"),
    ("arrival_s", "-1"),
    ("arrival_s", ""),
    ("arrival_s", "soon"),
    ("arrival_s", "0.1"),
    ("input_tokens", "0"),
    ("input_tokens", "-3"),
    ("input_tokens", "2748 610"),
    ("input_tokens", "1.5"),
    ("output_tokens", "nan"),
    ("output_tokens", "٣"),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS)
def test_a_bad_field_names_line_and_field_and_leniency_skips_and_counts_it(
    tmp_path: Path, field: str, value: str
) -> None:
    cells = dict(zip(PLAIN.splitlines()[0].split(","), ["0.75", "20", "6"], strict=True)) | {field: value}
    text = PLAIN.replace("0.75,20,6", ",".join(cells.values()))
    with pytest.raises(ValueError, match=rf"file\.csv:3: {field}: found '?{value}"):
        read(tmp_path, text)
    rows, counts = read(tmp_path, text, lenient=True)
    assert rows == [(0.0, 10, 4), (1.5, 30, 8)]
    assert counts.skipped == 1
    assert f"file.csv:3: {field}: found" in counts.first_skipped


def test_a_row_without_output_failed_and_is_counted_apart(tmp_path: Path) -> None:
    rows, counts = read(tmp_path, PLAIN.replace("20,6", "20,0"))
    assert len(rows) == 2
    assert (counts.failed, counts.skipped) == (1, 0)
    failed = RESULT | {"errors": ["", "timed out", ""]}
    assert read(tmp_path, json.dumps(failed), "vllm.json")[1].failed == 1


MALFORMED = [
    (PLAIN.replace("0.75,20,6", "0.75,20"), "file.csv", ":3: found 2 fields, allowed: 3"),
    (PLAIN.replace("0.75,20,6", "0.75,20,6,7"), "file.csv", ":3: found 4 fields, allowed: 3"),
    (MOONCAKE.replace('"output_length": 6', '"output_length": 2748 610'), "file.jsonl", ":2: not JSON: "),
    (MOONCAKE.replace('"input_length": 20', '"input_length": true'), "file.jsonl", ":2: input_length: found True"),
    (MOONCAKE.replace('"input_length": 20, ', ""), "file.jsonl", ":2: input_length: found None"),
    (MOONCAKE.replace('"timestamp": 750', '"timestamp": NaN'), "file.jsonl", ":2: timestamp: found nan"),
    (MOONCAKE.replace('"timestamp": 750, ', ""), "file.jsonl", ":2: timestamp: missing"),
]


@pytest.mark.parametrize(("text", "name", "message"), MALFORMED)
def test_a_malformed_line_is_named_and_can_be_skipped(tmp_path: Path, text: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name}{message}"):
        read(tmp_path, text, name)
    rows, counts = read(tmp_path, text, name, lenient=True)
    assert (len(rows), counts.skipped) == (2, 1)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "file.csv", ":1: columns: found ''"),
        ("a,b\n1,2\n", "file.csv", ":1: columns: found 'a,b', allowed: arrival_s,input_tokens,output_tokens; "),
        ("[1]", "file.json", ": found a list, allowed: a JSON object"),
        (json.dumps({"input_lens": [1]}), "file.json", ":1: output_lens: missing"),
        (json.dumps(RESULT | {"errors": []}), "file.json", ":1: error: found another length"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name}{message}"):
        read(tmp_path, text, name)


def test_results_without_start_times_give_lengths_but_no_arrivals(tmp_path: Path) -> None:
    text = json.dumps({key: value for key, value in RESULT.items() if key != "start_times"})
    assert [row[1:] for row in read(tmp_path, text, "vllm.json", timed=False)[0]] == [(20, 6), (10, 4), (30, 8)]
    with pytest.raises(ValueError, match="start_times: missing"):
        read(tmp_path, text, "vllm.json")


def test_lengths_alone_are_no_arrivals(tmp_path: Path) -> None:
    assert read(tmp_path, "input_tokens,output_tokens\n3,4\n", timed=False)[0] == [(0.0, 3, 4)]
    with pytest.raises(ValueError, match=r"file\.csv:2: arrival_s: missing"):
        read(tmp_path, "input_tokens,output_tokens\n3,4\n")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.csv: no such file"):
        list(Workload(tmp_path / "none.csv").rows())
    (tmp_path / "bytes.csv").write_bytes(b"arrival_s\xff\n")
    with pytest.raises(ValueError, match=r"bytes\.csv: not UTF-8"):
        list(Workload(tmp_path / "bytes.csv").rows())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(name=st.sampled_from(sorted(FILES)), at=st.integers(0, 400), junk=st.text(max_size=3), lenient=st.booleans())
def test_a_damaged_file_never_fails_in_another_way(
    tmp_path: Path, name: str, at: int, junk: str, lenient: bool
) -> None:
    text = FILES[name]
    at %= len(text)
    message = name
    try:
        read(tmp_path, (text[:at] + junk + text[at + 1 :]).encode(errors="replace").decode(), name, lenient=lenient)
    except ValueError as error:
        message = str(error)
    assert name in message
