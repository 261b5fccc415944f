"""What `recguide bench sglang` does without SGLang: its options, its engines' arguments, and what clients saw."""

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from running import Recguide
from sglang_env import PRESENT
from tiny import TINY
from toy_adapter import write_adapter

from recguide.engine.bench_load import BenchLoad
from recguide.engine.bench_sglang_command import SglangOptions
from recguide.engine.export import export
from recguide.engine.loading import LoadedModel, load_model
from recguide.engine.requests import Wish
from recguide.engine.sglang_client import Seen
from recguide.engine.sglang_jobs import serve_all
from recguide.engine.sglang_seen import client_figures, client_run, same_outputs
from recguide.engine.sglang_server import Place, arguments_of, model_of
from recguide.engine.shapes import random_decoder
from recguide.sim.figures import Figures


@pytest.fixture
def options(tmp_path: Path) -> SglangOptions:
    """Of two engines on a GPU."""
    policy = (("sglang:ar", (1, 4)), ("fixed:8", (1, 4)))
    fields = {"model": "m", "policy": policy, "block_sizes": (4, 8)}
    rest = dict.fromkeys(set(SglangOptions.__dataclass_fields__) - set(fields))
    given = {"arguments": {"attention_backend": "fa3", "tp_size": 2}, "dtype": "bf16", "seed": 3, "batching": "bucket"}
    return SglangOptions(**{**rest, **fields, **given, "result_dir": tmp_path})  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's directory."""
    export(LoadedModel(random_decoder(TINY, "cpu", torch.float32, 0), None, "", None), tmp_path / "tiny")
    return tmp_path / "tiny"


def test_baselines_get_no_argument_of_the_plugin_and_ours_get_its_backend(
    options: SglangOptions, folder: Path, tmp_path: Path
) -> None:
    model, load = model_of(str(folder), None), BenchLoad([[1, 5]], [Wish(20)], None)
    place = Place(torch.device("cuda"), 4, tmp_path, tmp_path / "forced.parquet")
    own, ours = (arguments_of(options, model, load, name, place) for name, _ in options.policy)
    assert own["attention_backend"] == "fa3"
    assert ours["attention_backend"] == "recguide"
    assert own.keys() - ours.keys() == set()
    assert {name.partition("_")[0] for name in ours.keys() - own.keys()} == {"speculative", "page"}
    assert {name for name in own if own[name] != ours[name]} == {"attention_backend"}
    assert own["tp_size"] == ours["tp_size"] == 2
    told = json.loads(ours["speculative_adaptive_config"])
    assert told == {"policy": "fixed:8", "block_sizes": [4, 8], "batching": "bucket", "log": str(tmp_path / "log")}
    assert own["context_length"] == 2 + 20 + 2 * 8


def test_baselines_load_what_our_policies_serve(
    options: SglangOptions, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path / "cache"))
    load, place = BenchLoad([[1, 5]], [Wish(20)], None), Place(torch.device("cpu"), 4, tmp_path, tmp_path / "x")
    both, drafts = (write_adapter(tmp_path / f"{shared}.safetensors", folder, shared) for shared in (0.06, 0))
    model = model_of(str(folder), str(both), "bf16")
    own, ours = (arguments_of(options, model, load, name, place)["model_path"] for name, _ in options.policy)
    assert ours == str(folder)
    wanted = load_model(str(folder), "cpu", torch.bfloat16, both).decoder.places()
    found = load_model(own, "cpu", torch.bfloat16).decoder.places()
    plain = load_model(ours, "cpu", torch.bfloat16).decoder.places()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert not torch.equal(found["layers.0.mlp.down_proj.weight"], plain["layers.0.mlp.down_proj.weight"])
    assert "every token" in model.told
    for adapter in (None, str(drafts)):
        model = model_of(str(folder), adapter)
        assert arguments_of(options, model, load, "sglang:ar", place)["model_path"] == str(folder)
        assert model.told == "as stored"


def test_a_shape_is_drawn_by_sglang(options: SglangOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path))
    model = model_of("nld-8b", None)
    place = Place(torch.device("cpu"), 1, tmp_path, tmp_path / "forced.parquet")
    load = BenchLoad([], [], None)
    arguments = arguments_of(replace(options, max_model_len=512), model, load, "sglang:ar", place)
    assert arguments["load_format"] == "dummy"
    assert (Path(arguments["model_path"]) / "linear_spec_lora" / "adapter_config.json").exists()


SEEN = [
    Seen(0, 0.0, [0.5, 1.0, 2.0], [1, 4, 8], "length", "", 2),
    Seen(1, 0.0, [0.7, 1.5], [1, 3], "length", "", 1),
    Seen(0, 2.0, [], [], "", "refused"),
    Seen(1, 1.5, [2.5, 3.5], [1, 3], "length", "", 1),
]


def test_figures_of_clients_are_those_of_vllm() -> None:
    run = client_run(SEEN, [10, 20], 2)
    found = client_figures(run, Figures(), streamed=True)
    assert run.output_tokens.tolist() == [8, 3, 3]
    assert found["completed"] == 3
    assert found["total_input_tokens"] == 50
    assert found["output_throughput"] == 14 / 3.5
    assert found["mean_ttft_ms"] == pytest.approx(np.mean([500, 700, 1000]))
    assert found["mean_tpot_ms"] == pytest.approx(np.mean([1500 / 7, 400, 500]))
    assert found["mean_itl_ms"] == pytest.approx(np.mean([500, 1000, 800, 1000]))
    assert found["max_concurrent_requests"] == 2
    assert not any("forward" in name or "accept" in name or "queue" in name for name in found)


def test_outputs_are_compared_with_those_of_another_engine() -> None:
    seen = [Seen(0, 0, output=[1, 2]), Seen(1, 0, output=[3]), Seen(2, 0, output=[4]), Seen(1, 0, error="no")]
    assert same_outputs(seen, {0: [1, 2], 1: [5]}) == 0.5
    assert same_outputs(seen, {}) is None


def test_answers_that_came_whole_have_no_first_token() -> None:
    whole = [Seen(0, 0.0, [2.0], [8], "length")]
    found = client_figures(client_run(whole, [10], 1), Figures(), streamed=False)
    assert found["mean_e2el_ms"] == 2000
    assert not any("ttft" in name or "tpot" in name or "itl" in name or "steady" in name for name in found)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--policy", "sglang:eagle"], "--policy: found 'sglang:eagle'"),
        (["--policy", "ar", "--policy", "ar"], "each one once"),
        (["--set", "tp_size"], "--set: found 'tp_size', allowed: NAME=VALUE"),
        (["--force-acceptance", "t", "--ignore-eos"], "--ignore-eos"),
        (["--max-concurrency", "8,1"], "--max-concurrency"),
        (["--policy", "oracle", "--device", "cpu"], "knows the future"),
        (["--policy", "fixed:8@8,1"], "--policy: found '8,1'"),
    ],
)
def test_what_cannot_be_is_refused_before_an_engine_starts(
    recguide: Recguide, folder: Path, tmp_path: Path, wrong: list[str], told: str
) -> None:
    done = recguide("bench", "sglang", folder, "--result-dir", tmp_path / "out", *wrong)
    assert done.code == 2
    assert told in done.stderr
    assert not (tmp_path / "out").exists()


@dataclass(frozen=True)
class Stuck:
    """An engine that never gets ready."""

    name: str
    folder: Path

    @property
    def path(self) -> Path:
        """Where its client finds nothing."""
        return self.folder / "job.json"


@pytest.mark.parametrize("together", [False, True])
def test_engines_that_never_get_ready_are_ended_when_the_time_is_over(together, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "sglang.py").write_text("import time\ntime.sleep(120)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "job.json").write_text("{}")
    started = time.monotonic()
    assert serve_all([Stuck("stuck", tmp_path)], 4, together)
    assert time.monotonic() - started < 60
    assert "stuck: stopped after 4 s" in capsys.readouterr().err


@pytest.mark.skipif(PRESENT, reason="SGLang is installed")
def test_without_sglang_the_command_says_how_to_get_it(recguide: Recguide, folder: Path, tmp_path: Path) -> None:
    load = ("--random-input-len", 4, "--output-len", 4, "--dtype", "fp32", "--device", "cpu")
    done = recguide("bench", "sglang", folder, "--result-dir", tmp_path / "out", *load)
    assert done.code == 2
    assert "pip install 'recguide[sglang]'" in done.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").touch()
    done = recguide("bench", "sglang", folder, "--result-dir", tmp_path / "file", *load)
    assert (done.code, "--result-dir: found" in done.stderr) == (2, True)
