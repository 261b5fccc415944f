import csv

import pytest
import torch

from recguide.engine.bench_shapes import LAYOUTS, Shape
from recguide.engine.bench_timing import Ceilings, Effort

SMALL = ["--models", "smollm2-135m", "--requests", "1", "--prefixes", "16", "--device", "cpu"]
OURS = ["row-attention", "launch-a-row", "sdpa", "flex"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
def test_every_method_is_checked_and_timed_or_says_why_not(recguide, tmp_path):
    done = recguide(
        "bench",
        "kernels",
        "--output",
        str(tmp_path / "k.csv"),
        *SMALL,
        "--layouts",
        "rows-16",
        "--methods",
        ",".join(OURS),
    )
    assert done.stdout == f"{tmp_path / 'k.csv'}\t4 rows\n"
    lines = (tmp_path / "k.csv").read_text().splitlines()
    header = [line for line in lines if line.startswith("#")]
    assert header[0] == "# recguide-kernels: 1"
    rows = list(csv.DictReader(lines[len(header) :]))
    assert [row["method"] for row in rows] == OURS
    assert all(float(row["median_us"]) > 0 and float(row["largest_error"]) < 1e-5 for row in rows[:3])
    assert (rows[3]["median_us"], rows[3]["note"]) == ("", "not available: compiled for GPUs")
    assert "1 rows: not available: compiled for GPUs" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--prefixes", "20"], "--prefixes: found 20, allowed: multiples of 16"),
        (["--layouts", "tree"], "--layouts: found 'tree', allowed: decode, draft-16"),
        (["--methods", "magic"], "--methods: found 'magic', allowed: row-attention"),
        (["--models", "gpt"], "--models: found 'gpt', allowed: nld-8b"),
    ],
)
def test_what_cannot_be_measured_is_refused(recguide, tmp_path, options, said):
    done = recguide("bench", "kernels", "--output", str(tmp_path / "k.csv"), *SMALL, *options)
    assert done.code == 2
    assert said in done.stderr


def test_bytes_and_operations_are_those_of_the_layout():
    shape = Shape("nld-8b", 2, 1024, "rows-16")
    assert len(shape.tail) == 64
    assert shape.num_bytes == 2 * (4096 * (1024 + 64) + 16384 * 64)
    assert shape.flop == 2 * 16384 * (64 * 1024 + 136 + 16 * (20 + 26 + 32))
    assert Ceilings(4e12, 8e14).floor_s(4e12, 4e14) == 1


def test_every_layout_fits_a_launch():
    assert {name: len(make()) for name, make in LAYOUTS.items()} == {
        "decode": 1,
        "draft-16": 16,
        "verify-8": 8,
        "verify-16": 16,
        "verify-32": 32,
        "rows-16": 64,
        "quadratic-16": 272,
    }


def test_long_calls_are_repeated_less():
    assert Effort().for_calls_of(1e-5).calls == 16
    assert (Effort().for_calls_of(1.0).calls, Effort().for_calls_of(1.0).replays) == (1, 3)
