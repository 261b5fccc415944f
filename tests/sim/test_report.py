import json
import re
import subprocess
import sys
from pathlib import Path

import plotly.graph_objects as go
import profiles
import pytest
from chromium import CHROMIUM, open_page
from running import Recguide
from strategies import random_trace

from recguide.sim.charts import Figure
from recguide.traces.files import write_trace

IDS = ["frontier", "throughput", "tpot", "shares", "outcomes", "ttft_ms", "tpot_ms", "e2el_ms", "costs"]
POLICIES = ("--policy", "fixed:8", "--policy", "oracle", "--policy", "overlap")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_trace(random_trace(0, 12), folder / "trace.parquet")
    profiles.write(folder / "profile.csv")
    profiles.write(folder / "other.csv", model="nld-8b")
    return folder


def swept(recguide: Recguide, inputs: Path, out: Path, *options: object, profile: str = "profile.csv") -> str:
    sources = ("--trace", inputs / "trace.parquet", "--profile", inputs / profile, "--jobs", 1, "--output-dir", out)
    done = recguide("sweep", *sources, "--max-concurrency", "1,2,200", *POLICIES, *options)
    assert done.code == 0, done.stderr
    assert str(out / "report.html") in done.stdout.splitlines()
    return (out / "report.html").read_text()


def figures_in(page: str) -> dict[str, Figure]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    figures: dict[str, Figure] = json.loads(found[1])
    return figures


def test_chromium_draws_every_figure_and_its_console_stays_silent(
    recguide: Recguide, inputs: Path, tmp_path: Path
) -> None:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    swept(recguide, inputs, tmp_path / "out")
    document, console = open_page(tmp_path / "out" / "report.html", tmp_path / "browser")
    assert console == []
    assert f'data-drawn="{len(IDS)}"' in document
    for name in IDS:
        drawn = document.split(f'id="{name}"')[1].split('class="plot"')[0]
        assert 'class="main-svg"' in drawn, name
    # C stands at the points, and the policies in the legend
    assert {"C=1", "C=2", "C=200"} <= set(re.findall(r">(C=\d+)<", document))
    assert re.search(r'class="legendtext"[^>]*>oracle<', document)


def test_chromium_sees_an_error_of_a_broken_page(tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    page = tmp_path / "broken.html"
    page.write_text("<!doctype html><script>Plotly.newPlot()</script>")
    _, console = open_page(page, tmp_path / "browser")
    assert "Plotly is not defined" in "".join(console)


def test_every_figure_is_valid_plotly(recguide: Recguide, inputs: Path, tmp_path: Path) -> None:
    figures = figures_in(swept(recguide, inputs, tmp_path / "out"))
    assert list(figures) == sorted(IDS)
    for figure in figures.values():
        go.Figure(figure)


def test_the_page_loads_nothing_from_elsewhere(recguide: Recguide, inputs: Path, tmp_path: Path) -> None:
    page = swept(recguide, inputs, tmp_path / "out")
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=", page) == []


def test_several_rates_are_the_axis_of_the_load_with_a_line_for_each_concurrency(
    recguide: Recguide, inputs: Path, tmp_path: Path
) -> None:
    sources = ("--trace", inputs / "trace.parquet", "--profile", inputs / "profile.csv", "--jobs", 1)
    loads = ("--request-rate", "2,20", "--max-concurrency", "1,4")
    out = tmp_path / "out"
    assert recguide("sweep", *sources, *loads, "--policy", "fixed:8", "--output-dir", out).code == 0
    figures = figures_in((out / "report.html").read_text())
    lines = {line["name"]: line["x"] for line in figures["throughput"]["data"]}
    assert lines == {f"{policy}, C={level}": [2.0, 20.0] for policy in ("ar", "fixed:8") for level in (1, 4)}
    assert figures["throughput"]["layout"]["xaxis"]["title"]["text"] == "requests per second"
    assert figures["frontier"]["data"][0]["text"] == [
        f"C={level}, {rate} req/s" for level in (1, 4) for rate in (2, 20)
    ]
    if CHROMIUM is not None:
        document, console = open_page(out / "report.html", tmp_path / "browser")
        assert console == []
        assert f'data-drawn="{len(figures)}"' in document


def test_ar_and_all_concurrencies_are_on_the_frontier(recguide: Recguide, inputs: Path, tmp_path: Path) -> None:
    traces = figures_in(swept(recguide, inputs, tmp_path / "out"))["frontier"]["data"]
    assert [trace["name"] for trace in traces] == ["ar", "fixed:8", "oracle", "overlap", "beaten by no other point"]
    assert all(trace["text"] == ["C=1", "C=2", "C=200"] for trace in traces[:4])


def test_block_shares_stand_by_dataset_with_their_mean(recguide: Recguide, inputs: Path, tmp_path: Path) -> None:
    page = swept(recguide, inputs, tmp_path / "out")
    table = page.split("B = 1 / 4 / 8 / 16 / 32, %")[1].split("</table>")[0]
    assert re.findall(r"<th>([^<]*)</th>", table) == ["gsm8k", "mbpp", "mt-bench", "mean of datasets", "all rounds"]
    row = re.search(r"<tr><td>oracle, C=2</td>(.*?)</tr>", table)
    assert row is not None
    cells = [[float(part) for part in cell.split(" / ")] for cell in re.findall(r"<td>([^<]*)</td>", row[1])]
    assert all(sum(cell) == pytest.approx(100, abs=0.05) for cell in cells)
    assert cells[3] == pytest.approx([sum(column) / 3 for column in zip(*cells[:3], strict=True)], abs=0.01)


def test_branch_outcomes_are_those_of_policies_with_branches(recguide: Recguide, inputs: Path, tmp_path: Path) -> None:
    figure = figures_in(swept(recguide, inputs, tmp_path / "out"))["outcomes"]
    ready, used, _, _, none = figure["data"]
    assert ready["x"] == [["overlap"] * 3, ["C=1", "C=2", "C=200"]]
    assert all(0 < fewer <= more < 100 for fewer, more in zip(used["y"], ready["y"], strict=True))
    points = json.loads((tmp_path / "out" / "results.json").read_text())["points"]
    shares = [point["no_hit"] for point in points if point["policy"] == "overlap"]
    assert none["y"] == pytest.approx([100 * share for share in shares])


def test_costs_beyond_the_profiled_requests_are_dotted_and_shaded(
    recguide: Recguide, inputs: Path, tmp_path: Path
) -> None:
    figure = figures_in(swept(recguide, inputs, tmp_path / "out"))["costs"]
    shades = figure["layout"]["shapes"]
    assert [(shade["x0"], shade["x1"]) for shade in shades] == [(128, 200)]
    solid = next(trace for trace in figure["data"] if trace["name"] == "B = 8")
    assert [y is None for x, y in zip(solid["x"], solid["y"], strict=True) if x > 128] == [True]
    dots = next(trace for trace in figure["data"] if trace["name"] == "profiled shape")
    assert set(dots["x"]) == {1, 4, 128}


def test_a_cross_model_run_says_so_on_every_figure(recguide: Recguide, inputs: Path, tmp_path: Path) -> None:
    page = swept(recguide, inputs, tmp_path / "out", "--cross-model", profile="other.csv")
    label = "CROSS-MODEL: acceptance of tiny, costs of nld-8b"
    assert f'<p class="cross">{label}</p>' in page
    assert all(label in figure["layout"]["title"]["text"] for figure in figures_in(page).values())


def test_the_page_is_the_same_bytes_in_another_process(recguide: Recguide, inputs: Path, tmp_path: Path) -> None:
    page = swept(recguide, inputs, tmp_path / "one")
    sources = ["--trace", inputs / "trace.parquet", "--profile", inputs / "profile.csv", "--jobs", "1"]
    options = [*sources, "--max-concurrency", "1,2,200", *POLICIES, "--output-dir", tmp_path / "two"]
    command = [sys.executable, "-c", "from recguide.sim.cli import main; main()", "sweep", *map(str, options)]
    subprocess.run(command, capture_output=True, check=True)
    assert (tmp_path / "two" / "report.html").read_text() == page


def test_a_report_can_be_left_out_and_an_old_one_goes(recguide: Recguide, inputs: Path, tmp_path: Path) -> None:
    swept(recguide, inputs, tmp_path / "out")
    sources = ("--trace", inputs / "trace.parquet", "--profile", inputs / "profile.csv", "--jobs", 1)
    done = recguide("sweep", *sources, "--max-concurrency", 1, "--no-report", "--output-dir", tmp_path / "out")
    assert done.code == 0
    assert not (tmp_path / "out" / "report.html").exists()
