"""docs/traces.md says what is true: its snippets run, and it names every column and every provenance field."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from strategies import random_trace

from recguide.traces.dense import Provenance, matched_lens
from recguide.traces.files import read_trace, write_trace

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()


def test_the_snippets_of_the_page_run_and_give_what_the_trace_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = random_trace(3, 10, with_ids=True)
    monkeypatch.chdir(tmp_path)
    write_trace(trace, Path("t.parquet"))
    found: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(snippet.replace('"smollm2-135m"', '"t.parquet"'), found)
    drafts = trace.requests[0].drafts["seeded", 16]
    wanted = {"no_eos": drafts.second_no_eos, "margin": drafts.margin, "p1": drafts.p1}
    for name, values in (wanted | {"matched": matched_lens(drafts.match)}).items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    assert {request.dataset for request in read_trace(Path("gsm8k.parquet")).requests} == {"gsm8k"}
    assert all(request.output_ids is None for request in read_trace(Path("shared.parquet")).requests)


def test_the_page_names_every_column(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trace(random_trace(3, 10, with_ids=True), path)
    named = set(re.findall(r"`([^`]+)`", PAGE))
    for column in pq.read_schema(path).names:
        general = re.sub(r"^(seeded|continuation)_b\d+_", "{v}_b{B}_", column)
        assert {column, general, general.replace("{v}", "seeded")} & named, column


def test_the_page_names_every_provenance_field() -> None:
    for field in fields(Provenance):
        assert f"`{field.name}`" in PAGE
