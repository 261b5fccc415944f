"""Trace files that are not what they should be: each refused with file and field, by reader and command alike."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spoiling import Change, at, rewrite, with_cell, with_document, with_provenance
from strategies import assert_same_trace, random_trace

from recguide.traces.dense import DenseTrace
from recguide.traces.files import METADATA_KEY, read_trace, read_traces, write_trace

GOOD = random_trace(11, 3, (4, 8), min_output_tokens=5, with_ids=True)
FIRST, LAST = "r0", "r2"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.parquet"
    write_trace(GOOD, path)
    return path


def refused(path: Path, message: str) -> None:
    """Assert that reading fails with the file's name and then ``message``."""
    with pytest.raises(ValueError, match=rf"^{path}: .*{message}"):
        read_trace(path)


@pytest.mark.parametrize("keep", [0, 1, 4, 100, 0.5, 0.99, -1, -8])
def test_a_truncated_file_is_refused(good: Path, keep: float) -> None:
    data = good.read_bytes()
    good.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    refused(good, "not a readable Parquet file")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_text("id,dataset\n" * 100)
    refused(path, "not a readable Parquet file")


@settings(max_examples=150)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_no_flipped_byte_of_the_data_goes_unseen(
    place: float, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("flips") / "t.parquet"
    write_trace(GOOD, path)
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    data[int(place * (len(data) - footer))] ^= flip
    path.write_bytes(data)
    # page headers also hold statistics, which nobody reads
    with suppress(ValueError):
        assert_same_trace(read_trace(path), GOOD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document | {"schema": 2}, "schema: found 2, allowed: 1"),
        (lambda document: document | {"schema": "1"}, "schema: found '1', allowed: 1"),
        (lambda document: document | {"kind": "thin"}, "kind: found 'thin', allowed: dense, sparse"),
        (lambda document: {"schema": 1, "kind": "dense"}, "provenance: found None, allowed: an object"),
        (lambda document: [document], "metadata recguide: found .*, allowed: an object"),
    ],
)
def test_another_schema_is_refused(good: Path, change: Change, message: str) -> None:
    refused(with_document(good, change), message)


def test_a_parquet_file_without_our_metadata_is_refused(good: Path) -> None:
    pq.write_table(pq.read_table(good).replace_schema_metadata(None), good)
    refused(good, "metadata recguide: found None")


def test_metadata_that_is_no_json_is_refused(good: Path) -> None:
    pq.write_table(pq.read_table(good).replace_schema_metadata({METADATA_KEY: b"{"}), good)
    refused(good, "metadata recguide: not JSON")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_sizes", [8, 4]),
        ("block_sizes", [4, 4, 8]),
        ("block_sizes", []),
        ("block_sizes", [1, 4, 8]),
        ("block_sizes", [4, 8, 33]),
        ("block_sizes", [4, 8.0]),
        ("block_sizes", "48"),
        ("block_sizes", {"4": 8}),
        ("draft_shift", 2),
        ("max_output_tokens", 0),
        ("max_output_tokens", True),
        ("max_context", None),
        ("base_agreement", 1.5),
        ("base_agreement", float("nan")),
        ("base_agreement", "0.9"),
        ("created", "yesterday"),
        ("model", None),
        ("adapter_sha256", 7),
        ("note", 1),
        ("dropped", [1]),
        ("dropped", {"gsm8k": 3}),
        ("dropped", {"gsm8k": {"too long": -1}}),
        ("dropped", {"gsm8k": {"too long": 0.5}}),
    ],
)
def test_a_wrong_provenance_field_is_refused_by_name(good: Path, field: str, value: object) -> None:
    refused(with_provenance(good, **{field: value}), rf"{field}(\[.*\])?: found .*, allowed: ")


def test_a_missing_and_an_unknown_provenance_field_are_both_named(good: Path) -> None:
    def change(document: Any) -> Any:
        del document["provenance"]["gpu"]
        document["provenance"]["speed"] = 1
        return document

    refused(with_document(good, change), r"provenance: found \['gpu', 'speed'\]")


@pytest.mark.parametrize("column", ["id", "entropy", "seeded_b4_match", "seeded_b8_p1_above", "continuation_b8_margin"])
def test_a_missing_column_is_refused_by_name(good: Path, column: str) -> None:
    refused(rewrite(good, pq.read_table(good).drop_columns([column])), f"column {column}: found 'none'")


def test_a_recorded_block_size_without_columns_is_refused(good: Path) -> None:
    refused(with_provenance(good, block_sizes=[4, 8, 16]), "column seeded_b16_match: found 'none'")


@pytest.mark.parametrize("column", ["speed", "seeded_b16_match", "continuation_b8_p1"])
def test_an_unknown_column_is_refused_by_name(good: Path, column: str) -> None:
    table = pq.read_table(good)
    refused(rewrite(good, table.append_column(column, table.column("entropy"))), f"column {column}: found")


def test_a_column_that_is_there_twice_is_refused(good: Path) -> None:
    table = pq.read_table(good)
    refused(
        rewrite(good, table.append_column("entropy", table.column("entropy"))), "column entropy: found 'there twice'"
    )


@pytest.mark.parametrize(
    ("column", "kind"),
    [("output_tokens", pa.float64()), ("entropy", pa.list_(pa.float64())), ("seeded_b8_match", pa.list_(pa.uint64()))],
)
def test_a_column_of_another_type_is_refused(good: Path, column: str, kind: pa.DataType) -> None:
    table = pq.read_table(good)
    index = table.column_names.index(column)
    refused(rewrite(good, table.set_column(index, column, table.column(column).cast(kind))), f"column {column}: found")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("id", "", "request_id: found ''"),
        ("dataset", "", "dataset: found ''"),
        ("prompt_sha256", "abc", "prompt_sha256: found 'abc', allowed: 64 hex digits"),
        ("prompt_sha256", "G" * 64, "prompt_sha256: found 'GGG"),
        ("finish_reason", "stop", r"finish_reason: found 'stop', allowed: \('eos', 'length'\)"),
        ("prompt_tokens", 0, "prompt_tokens: found 0, allowed: 1 to 8192"),
        ("prompt_tokens", 9000, "prompt_tokens: found 9000"),
        ("output_tokens", 0, "output_tokens: found 0|seeded_b8_margin: found"),
        ("output_tokens", -3, "output_tokens: found -3|seeded_b8_margin: found"),
        ("entropy", [], "entropy: found"),
        ("seeded_b8_match", [0], r"seeded_b8_match: found uint32 of shape \(1,\)"),
        ("seeded_b4_margin", b"\0", "seeded_b4_margin: found '1 bytes', allowed: "),
        ("seeded_b8_p1_above", b"", "seeded_b8_p1_above: found '0 bytes', allowed: "),
        ("output_ids", [1], "output_ids: found"),
    ],
)
def test_a_wrong_cell_is_refused_with_request_and_field(good: Path, column: str, value: object, message: str) -> None:
    bad = with_cell(good, column, 2, lambda _: value)
    refused(bad, f"request {'' if column == 'id' else LAST!r}: ({message})")


@pytest.mark.parametrize("column", ["id", "output_tokens", "entropy", "seeded_b4_second", "seeded_b4_margin"])
def test_an_empty_cell_is_refused_with_row_and_column(good: Path, column: str) -> None:
    refused(with_cell(good, column, 1, lambda _: None), f"row 1: {column}: found None")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5])
def test_an_entropy_that_is_no_entropy_is_refused_with_its_position(good: Path, value: float) -> None:
    refused(with_cell(good, "entropy", 0, at(3, value)), rf"request 'r0': entropy\[3\]: found {value}")


@pytest.mark.parametrize("column", ["entropy", "seeded_b4_match", "output_ids"])
def test_a_hole_in_a_list_is_refused(good: Path, column: str) -> None:
    refused(with_cell(good, column, 0, at(3, None)), f"request 'r0': {column}")


@pytest.mark.parametrize(
    ("column", "bit"), [("seeded_b4_match", 3), ("seeded_b8_second", 7), ("continuation_b4_match", 31)]
)
def test_a_bit_beyond_the_draft_is_refused(good: Path, column: str, bit: int) -> None:
    refused(
        with_cell(good, column, 2, at(0, 1 << bit)), rf"request 'r2': {column}\[0\]: found {1 << bit}, allowed: bits 0 "
    )


def test_a_match_past_eos_is_refused(good: Path) -> None:
    ended = next(request for request in GOOD.requests if request.finish_reason == "eos")
    last = ended.output_tokens - 1
    bad = with_cell(good, "seeded_b8_match", GOOD.requests.index(ended), at(last, 0b10))
    refused(bad, rf"seeded_b8_match\[{last}\]: found 2, allowed: bits 0 to 6, none past EOS")


def test_a_second_candidate_that_is_the_first_is_refused(good: Path) -> None:
    bad = with_cell(good, "seeded_b8_match", 0, at(0, 1))
    both = with_cell(bad, "seeded_b8_second", 0, at(0, 1))
    refused(both, r"request 'r0': seeded_b8_second\[0\]: found 1, allowed: no bit that match has")


def test_a_confidence_past_one_is_refused(good: Path) -> None:
    bad = with_cell(good, "seeded_b4_p1_above", 0, lambda data: b"\xff" * len(data))
    refused(bad, r"request 'r0': seeded_b4_p1\[\d+\]: found \[.*\], allowed: at least the margin")


@pytest.mark.parametrize("block_size", [4, 8])
def test_a_length_that_differs_between_masks_is_refused(good: Path, block_size: int) -> None:
    column = f"seeded_b{block_size}_second_eos"
    refused(with_cell(good, column, 1, lambda cells: cells[:1]), rf"request 'r1': {column}: found \(1,\), allowed: ")


def test_a_negative_token_id_is_refused(good: Path) -> None:
    refused(with_cell(good, "prompt_ids", 0, at(0, -1)), r"request 'r0': prompt_ids\[0\]: found -1")


def test_an_id_that_is_there_twice_is_refused(good: Path) -> None:
    refused(with_cell(good, "id", 2, lambda _: FIRST), "request 'r0': id: found 'there twice'")


def test_a_file_without_requests_is_refused(good: Path) -> None:
    refused(rewrite(good, pq.read_table(good).slice(0, 0)), "requests: found 'none'")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path}: found 'no \*.parquet in it'"):
        read_traces([tmp_path])


def test_no_file_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="traces: found 'no file'"):
        read_traces([])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (random_trace(12, 1, (4, 16)), r"block_sizes: found \(4, 16\), allowed: \(4, 8\), as in .*good.parquet"),
        (random_trace(12, 1, (4, 8), model="big"), "model: found 'big', allowed: 'tiny', as in .*good.parquet"),
        (random_trace(12, 1, (4, 8), draft_shift=1), "draft_shift: found 1, allowed: 0, as in .*good.parquet"),
        (random_trace(12, 1, (4, 8), weights_sha256="f" * 64), "weights_sha256: found 'fff.*as in .*good.parquet"),
        (random_trace(12, 1, (4, 8)), "request 'r0': id: found 'also in .*good.parquet'"),
    ],
)
def test_files_that_do_not_belong_together_are_refused_with_both(good: Path, other: DenseTrace, message: str) -> None:
    path = good.with_name("other.parquet")
    write_trace(other, path)
    with pytest.raises(ValueError, match=rf"other.parquet: {message}"):
        read_traces([good, path])
