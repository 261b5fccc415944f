import json
from pathlib import Path

import profiles
import pytest
import yaml
from running import Recguide
from strategies import random_trace

from recguide.traces.files import write_trace


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_trace(random_trace(0, 12), tmp_path / "trace.parquet")
    profiles.write(tmp_path / "profile.csv")
    settings = {
        "trace": str(tmp_path / "trace.parquet"),
        "profile": str(tmp_path / "profile.csv"),
        "policy": ["fixed:8"],
        "max-concurrency": [1, 2],
        "output_dir": str(tmp_path / "out"),
        "jobs": 1,
        "report": False,
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path / "sweep.yaml"


def points(folder: Path) -> list[tuple[str, int]]:
    document = json.loads((folder / "results.json").read_text())
    return [(point["policy"], point["max_concurrency"]) for point in document["points"]]


def test_a_config_file_brings_every_option(recguide: Recguide, config: Path) -> None:
    assert recguide("sweep", "--config", config).code == 0
    assert points(config.with_name("out")) == [("ar", 1), ("ar", 2), ("fixed:8", 1), ("fixed:8", 2)]
    assert not config.with_name("out").joinpath("report.html").exists()


def test_set_goes_over_the_file_and_the_command_line_over_both(recguide: Recguide, config: Path) -> None:
    settings = ("--set", "max_concurrency=[1, 4]", "--config", config, "--set", "policy=fixed:16", "--set", "seed=3")
    done = recguide("sweep", *settings, "--seed", 5, "--print-config")
    assert done.code == 0
    printed = yaml.safe_load(done.stdout)
    assert (printed["max_concurrency"], printed["policy"], printed["seed"]) == (["1", "4"], ["fixed:16"], 5)
    assert not config.with_name("out").exists()


def test_the_resolved_config_runs_the_same_sweep_again(recguide: Recguide, config: Path) -> None:
    recguide("sweep", "--config", config, "--set", "num_prompts=5")
    out = config.with_name("out")
    first = (out / "results.json").read_bytes()
    resolved = config.with_name("resolved.yaml")
    resolved.write_bytes((out / "config.resolved.yaml").read_bytes())
    assert recguide("sweep", "--config", resolved, "--output-dir", config.with_name("again")).code == 0
    assert (config.with_name("again") / "results.json").read_bytes() == first
    assert recguide("sweep", "--config", resolved, "--print-config").stdout == resolved.read_text()


def test_the_environment_is_strict_json_without_time_or_place(recguide: Recguide, config: Path) -> None:
    recguide("sweep", "--config", config)
    held = json.loads((config.with_name("out") / "env.json").read_text())
    assert set(held) == {"recguide", "code_sha256", "git_commit", "python", "platform", "packages", "profile"}
    assert held["profile"]["gpu"] == "Test GPU"
    assert str(config.parent) not in json.dumps(held)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("concurency: 1", "concurency: unknown, allowed: "),
        ("config: other.yaml", "config: unknown, allowed: "),
        ("seed: [1, 2]", "seed: found [1, 2], allowed: one value"),
        ("policy: {a: b}", "policy: found {'a': 'b'}, allowed: one value"),
        ("seed: 1.5", "Invalid value for '--seed'"),
        ("seed: 1\nseed: 2", "line 1: seed: given twice"),
        ("- seed", "found list, allowed: lines of 'key: value'"),
        ("seed: [1", ":1: not YAML: "),
        ("seed: !!python/object:os.system 1", ":1: not YAML: "),
    ],
)
def test_a_bad_config_file_exits_2_with_file_and_key(
    recguide: Recguide, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    done = recguide("sweep", "--trace", "none", "--profile", "none", "--config", tmp_path / "bad.yaml")
    assert done.code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert done.stdout == ""


def test_a_missing_config_file_and_a_set_without_a_value_are_told(recguide: Recguide, tmp_path: Path) -> None:
    missing = recguide("sweep", "--config", tmp_path / "missing.yaml")
    assert (missing.code, missing.stderr) == (2, f"error: {tmp_path / 'missing.yaml'}: No such file or directory\n")
    assert "--set: found 'seed', allowed: key=value" in recguide("sweep", "--set", "seed").stderr
    assert "--set: sed: unknown, allowed: " in recguide("sweep", "--set", "sed=1").stderr
