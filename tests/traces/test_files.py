"""Writing and reading dense traces."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import assert_same_trace, dense_traces, provenance, random_trace

from recguide.traces.dense import DenseTrace
from recguide.traces.files import read_trace, read_traces, resolve_traces, write_trace


@settings(max_examples=30)
@given(trace=dense_traces())
def test_a_trace_reads_back_as_it_was_written(trace: DenseTrace, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("traces") / "t.parquet"
    write_trace(trace, path)
    assert_same_trace(read_trace(path), trace)


def test_a_folder_reads_as_the_sum_of_its_files(tmp_path: Path) -> None:
    whole = random_trace(1, 4)
    for i in range(4):
        write_trace(
            DenseTrace(provenance(dropped={"a": {"too long": i}}), whole.requests[i : i + 1]), tmp_path / f"{i}.parquet"
        )
    read = read_traces([tmp_path])
    assert [request.request_id for request in read.requests] == ["r0", "r1", "r2", "r3"]
    assert read.provenance.dropped == {"a": {"too long": 6}}


def test_writing_leaves_nothing_but_the_file(tmp_path: Path) -> None:
    write_trace(random_trace(2), tmp_path / "t.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_a_trace_that_breaks_a_promise_is_not_written(tmp_path: Path) -> None:
    trace = random_trace(3)
    trace.requests[0].entropy[0] = np.nan
    with pytest.raises(ValueError, match=r"request 'r0': entropy\[0\]: found nan, allowed: finite"):
        write_trace(trace, tmp_path / "t.parquet")
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_lists_the_shipped_traces() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-trace: no such file, folder or shipped trace; shipped: "):
        resolve_traces("no-such-trace")
