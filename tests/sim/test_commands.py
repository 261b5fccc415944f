import errno
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import profiles
import pyarrow.parquet as pq
import pytest
from strategies import random_trace

from recguide.sim.cli import BROUGHT_BY, main
from recguide.traces.documents import as_json
from recguide.traces.files import write_trace


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_trace(random_trace(0, 12), folder / "trace.parquet")
    profiles.write(folder / "profile.csv")
    return folder


class Run:
    """The command line in a folder of its own, with a good trace and profile unless the options say otherwise."""

    def __init__(
        self, inputs: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.inputs, self.folder, self.monkeypatch, self.capsys = inputs, folder, monkeypatch, capsys
        monkeypatch.chdir(folder)

    def __call__(self, *options: str, trace: str = "", profile: str = "") -> tuple[int, str, str]:
        trace, profile = trace or str(self.inputs / "trace.parquet"), profile or str(self.inputs / "profile.csv")
        argv = ["recguide", "sweep", "--trace", trace, "--profile", profile, "--jobs", "1", *options]
        self.monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self.capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    def refusal(self, *options: str, trace: str = "", profile: str = "") -> str:
        code, out, err = self(*options, trace=trace, profile=profile)
        assert code == 2
        assert out == ""
        assert list(self.folder.iterdir()) == []
        return " ".join(err.replace("│", " ").split())


@pytest.fixture
def run(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(inputs, tmp_path, monkeypatch, capsys)


def test_a_sweep_prints_its_frontier_and_where_the_plot_is(run: Run, tmp_path: Path) -> None:
    code, out, err = run("--policy", "fixed:8", "--max-concurrency", "1,2", "--concurrency", "4", "--output-dir", "out")
    assert code == 0
    assert out.splitlines()[-1] == "out/frontier.png"
    assert "Test GPU, tiny, 12 requests of 3 datasets" in out
    assert [line.split()[0] for line in out.splitlines() if " 100/0" in line or "/100/" in line] == [
        *["ar"] * 3,
        *["fixed:8"] * 3,
    ]
    assert "12 requests are fewer than 4 for each place at max-concurrency 4" in err
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [point["max_concurrency"] for point in document["points"]] == [1, 2, 4] * 2
    assert document["trace"]["model"] == document["profile"]["model"] == "tiny"
    assert document["cross_model"] is False


def test_the_same_seed_writes_the_same_bytes(run: Run, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run("--policy", "oracle", "--max-concurrency", "1,3", "--output-dir", name, "--seed", "7")
    run("--policy", "oracle", "--max-concurrency", "1,3", "--output-dir", "three", "--seed", "8")
    for file in ("results.json", "results.parquet", "frontier.png"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert (tmp_path / "one" / "results.json").read_bytes() != (tmp_path / "three" / "results.json").read_bytes()


def test_json_is_strict_even_where_figures_are_missing(run: Run, tmp_path: Path) -> None:
    assert run("--policy", "ar", "--max-concurrency", "100", "--output-dir", "out")[0] == 0

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads((tmp_path / "out" / "results.json").read_text(), parse_constant=refuse)
    assert document["points"][0]["accept_length"] is None
    assert document["points"][0]["steady_output_throughput"] is None


def test_json_and_parquet_hold_the_same_points_and_both_come_back_whole(run: Run, tmp_path: Path) -> None:
    assert run("--policy", "oracle", "--policy", "overlap", "--max-concurrency", "2,100", "--output-dir", "out")[0] == 0
    written = (tmp_path / "out" / "results.json").read_text()
    document = json.loads(written)
    assert as_json(document) == written
    assert pq.read_table(tmp_path / "out" / "results.parquet").to_pylist() == document["points"]
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json({"tpf": float("nan")})


def test_prompts_and_datasets_can_be_chosen(run: Run, tmp_path: Path) -> None:
    chosen = ("--dataset", "mbpp", "--dataset", "gsm8k", "--num-prompts", "5", "--output-dir", "out")
    assert run("--policy", "ar", "--max-concurrency", "1", *chosen)[0] == 0
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(document["datasets"]) == {"mbpp", "gsm8k"}
    assert document["points"][0]["num_prompts"] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "best"], "error: policy 'best': unknown; known: ar, fixed:B, recipe, "),
        (["--policy", "fixed:64"], "error: policy 'fixed:64': block size 64 was not recorded; recorded: 4, 8, 16, 32"),
        (["--max-concurrency", "0"], "error: max-concurrency: found '0', allowed: whole numbers from 1 to 999999"),
        (["--max-concurrency", "-1"], "error: max-concurrency: found '-1', allowed: whole numbers from 1 to 999999"),
        (["--max-concurrency", "1,,2"], "error: max-concurrency: found '', allowed: whole numbers from 1 to 999999"),
        (["--max-concurrency", "nan"], "error: max-concurrency: found 'nan', allowed: whole numbers from 1 to 999999"),
        (["--max-concurrency", "1000000"], "error: max-concurrency: found '1000000', allowed: whole numbers from 1 to"),
        (["--policy", "recipe:9"], "error: policy 'recipe:9': found options '9', allowed: none, recipe alone"),
        (["--policy", "fixed:"], "error: policy 'fixed:': found nothing behind the colon, allowed: fixed:B"),
        (["--output-dir", ""], "Invalid value for '--output-dir'"),
        (["--trace", ""], "error: trace: found '', allowed: a file, a folder, or a shipped name"),
        (["--arrivals", ""], "Invalid value for '--arrivals'"),
        (["--stream", "--report"], "error: stream: found beside report, which needs what a stream does not keep"),
        (["--request-rate", "1,0"], "error: request-rate: found '0', allowed: numbers above 0, or inf, with commas"),
        (["--dataset", "gpqa"], "error: dataset 'gpqa': not in the trace; there are: gsm8k, mbpp, mt-bench"),
        (["--num-prompts", "0"], "Invalid value for '--num-prompts'"),
        (["--concurency", "1"], "No such option: --concurency"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_option_exits_2_with_a_message_and_leaves_nothing(run: Run, options: list[str], message: str) -> None:
    assert message in run.refusal(*options)


@pytest.mark.parametrize("command", ["sweep", "timeline", "recommend"])
def test_the_help_names_every_option_whole_on_a_screen_of_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["recguide", command, "--help"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "…" not in printed
    shown = {"sweep": "--max-concurrency, --concurrency", "timeline": "--max-concurrency", "recommend": "--attainment"}
    assert shown[command] in printed


def test_a_file_in_the_place_of_the_output_folder_is_left_alone(run: Run, inputs: Path) -> None:
    assert "error: output-dir: found the file" in run.refusal("--output-dir", str(inputs / "profile.csv"))


@pytest.mark.parametrize("name", ["results.json", "report.html"])
def test_results_of_something_else_are_not_overwritten(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    code, _, err = run("--policy", "ar", "--max-concurrency", "1", "--output-dir", ".")
    assert code == 2
    assert f"output-dir: found {name} of something else, allowed: a sweep's folder, or a new one" in err
    assert (tmp_path / name).read_text() == '{"mine": 1}'


def test_requests_of_something_else_stay_beside_those_of_a_sweep(run: Run, inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "requests").mkdir(parents=True)
    theirs = tmp_path / "out" / "requests" / "theirs.parquet"
    theirs.write_bytes((inputs / "trace.parquet").read_bytes())
    for policy in ("fixed:8", "ar"):
        assert run("--policy", policy, "--max-concurrency", "1", "--output-dir", "out")[0] == 0
    assert sorted(path.name for path in theirs.parent.iterdir()) == ["ar-c1.parquet", "theirs.parquet"]


def test_requests_of_something_else_are_not_overwritten(run: Run, inputs: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "out" / "requests" / "ar-c1.parquet"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes((inputs / "trace.parquet").read_bytes())
    code, _, err = run("--policy", "ar", "--max-concurrency", "1", "--output-dir", "out")
    assert (code, theirs.read_bytes()) == (2, (inputs / "trace.parquet").read_bytes())
    assert f"output-dir: found {Path('out', 'requests', 'ar-c1.parquet')} of something else" in err


def test_a_full_disk_is_one_line_and_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "results.parquet")

    monkeypatch.setattr("recguide.sim.results.pq.write_table", full)
    code, _, err = run("--policy", "ar", "--max-concurrency", "1", "--output-dir", "out")
    assert code == 1
    assert err.strip().splitlines()[-1] == "error: [Errno 28] No space left on device: 'results.parquet'"


def test_the_title_says_how_many_requests_were_served(run: Run) -> None:
    wanted = ("--policy", "ar", "--max-concurrency", "1", "--output-dir", "out")
    for options, served in ((("--num-prompts", "5"), ", 5 requests drawn from 12 of "), ((), " datasets")):
        assert served in run(*wanted, *options)[1]


def test_a_fault_of_ours_is_no_bad_input(run: Run, inputs: Path) -> None:
    (inputs / "mine.py").write_text("def broken(seen): raise ValueError('a fault')")
    argv = ["recguide", "sweep", "--trace", str(inputs / "trace.parquet"), "--profile", str(inputs / "profile.csv")]
    run.monkeypatch.setattr(sys, "argv", [*argv, "--policy", f"{inputs / 'mine.py'}:broken", "--jobs", "1"])
    with pytest.raises(ValueError, match="a fault"):
        main()


@pytest.mark.parametrize("where", ["file/below", "folder"])
def test_a_file_on_the_way_to_the_results_is_told_before_anything_runs(run: Run, tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "requests").touch()

    code, _, err = run("--output-dir", str(tmp_path / where))

    assert code == 2
    assert "output-dir: found the file" in err
    assert not (tmp_path / "folder" / "results.json").exists()


def test_a_profile_of_another_model_needs_leave_and_is_labelled(run: Run, inputs: Path, tmp_path: Path) -> None:
    other = str(profiles.write(inputs / "other.csv", model="nld-8b"))
    assert f"error: {other}: model: found 'nld-8b', but the trace is of 'tiny'" in run.refusal(profile=other)
    code, out, _ = run(
        "--cross-model", "--policy", "ar", "--max-concurrency", "1", "--output-dir", "out", profile=other
    )
    assert code == 0
    assert "CROSS-MODEL: acceptance of tiny, costs of nld-8b on Test GPU" in out
    assert json.loads((tmp_path / "out" / "results.json").read_text())["cross_model"] is True


def test_a_bad_profile_exits_2_with_file_line_and_field(run: Run, inputs: Path) -> None:
    lines = (inputs / "profile.csv").read_text().splitlines()
    bad = inputs / "bad.csv"
    bad.write_text("\n".join([*lines[:-1], "verify,128,4096,1048576,nan,1.0,5"]))
    assert f"error: {bad}:{len(lines)}: median_us: found 'nan', allowed: a number" in run.refusal(profile=str(bad))
    bad.write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]))
    assert f"error: {bad}:{len(lines)}: not sorted: verify" in run.refusal(profile=str(bad))
    assert "error: profile 'missing': neither a file nor a shipped profile" in run.refusal(profile="missing")


def test_a_bad_trace_exits_2_with_its_file(run: Run, inputs: Path) -> None:
    whole = (inputs / "trace.parquet").read_bytes()
    bad = inputs / "bad.parquet"
    bad.write_bytes(whole[: len(whole) // 2])
    assert f"error: {bad}: " in run.refusal(trace=str(bad))
    assert "error: missing: no such file" in run.refusal(trace="missing")


def test_the_console_script_sweeps_without_torch(inputs: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from recguide.sim.cli import app; app(standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    options = ["--trace", str(inputs / "trace.parquet"), "--profile", str(inputs / "profile.csv"), "--jobs", "1"]
    few = ["--policy", "ar", "--max-concurrency", "1", "--output-dir", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", program, "sweep", *options, *few], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("torch", ("profile", "nld-8b", "--output", "p.csv"), "engine"),
        ("torch", ("adapt", "smollm2-135m", "--prompts", "p.jsonl", "--output", "a.safetensors"), "engine"),
        ("uvicorn", ("serve", "smollm2-135m"), "engine,serve"),
    ],
)
def test_what_an_extra_brings_is_named_where_it_lacks(
    tmp_path: Path, missing: str, command: tuple[str, ...], extra: str
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "x"}\n')
    lines = f"import sys; sys.modules['{missing}'] = None; sys.argv = ['recguide', *{command!r}]"
    code = f"{lines}; from recguide.sim.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: import of ")
    assert done.stderr.endswith(f"; pip install 'recguide[{extra}]' brings it\n")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "p.csv").exists()


def test_every_extra_of_ours_is_known() -> None:
    document = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = document["project"]["optional-dependencies"]
    for extra in ("engine", "serve"):
        names = {re.split(r"[<>=!]", name)[0].replace("-", "_") for name in extras[extra]}
        assert names == set(BROUGHT_BY["engine" if extra == "engine" else "engine,serve"])


def test_brackets_in_a_name_are_no_markup(run: Run, inputs: Path) -> None:
    # a trace of fp32 is warned of, and so is named
    other = str(profiles.write(inputs / "of [b]tiny[red].csv", dtype="bf16"))
    code, _, err = run("--policy", "ar", "--max-concurrency", "1", "--output-dir", "out", profile=other)
    assert code == 0
    assert f"warning: {other}: dtype: found bf16" in err


def test_a_profile_of_drafts_of_no_known_kind_is_refused(run: Run, inputs: Path) -> None:
    odd = str(profiles.write(inputs / "odd.csv", drafts="something else"))
    told = "header: drafts: found 'something else', allowed: 'by weights with the adapter merged'"
    assert told in run.refusal(profile=odd)
