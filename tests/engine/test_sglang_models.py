"""Models under SGLang: the same tokens as its own, drafts as our engine's, and adapters on draft tokens alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from nld import SHAPE, reference, stored, write
from safetensors.torch import load_file, save_file
from sglang_env import PRESENT, TOY, environment, prompts
from toy_adapter import write_adapter

from recguide.engine.lora import RELEASED, SETTINGS, WEIGHTS

if not PRESENT:
    pytest.skip("SGLang is not installed here: make test-sglang", allow_module_level=True)

from sglang_runs import by_our_engine, under_recguide, under_sglang

from recguide.engine.sglang_adapters import Cut, DraftUpdate, Routing
from recguide.traces.errors import InputError

PROMPTS, COUNT, POLICY = prompts(6), 32, "fixed:8"


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """What SGLang's own Llama says."""
    return under_sglang(PROMPTS, COUNT).tokens


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy as Nemotron-Labs-Diffusion is released: its names, its config, and an adapter beside it."""
    folder = tmp_path_factory.mktemp("released")
    shape = json.loads((TOY / "config.json").read_text())
    fields = {"model_type": "nemotron_labs_diffusion", "architectures": ["NemotronLabsDiffusionModel"]}
    (folder / "config.json").write_text(json.dumps(shape | fields))
    plain = load_file(TOY / "model.safetensors")
    tensors = {name.replace("model.", "encoder."): tensor for name, tensor in plain.items()}
    tensors["diffusion_head.weight"] = tensors.pop("lm_head.weight")
    save_file(tensors, folder / "model.safetensors")
    adapter = folder / "linear_spec_lora"
    adapter.mkdir()
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["o_proj"]}
    (adapter / SETTINGS).write_text(json.dumps(settings))
    generator = torch.Generator().manual_seed(0)
    save_file(
        {
            f"base_model.model.encoder.layers.{i}.self_attn.o_proj.lora_{side}.weight": 0.12
            * torch.randn(size, generator=generator)
            for i in range(2)
            for side, size in (("A", (4, 128)), ("B", (96, 4)))
        },
        adapter / WEIGHTS,
    )
    return folder


def test_a_released_adapter_changes_drafts_and_never_what_is_verified(plain: list[list[int]], released: Path) -> None:
    found = under_recguide(PROMPTS, COUNT, POLICY, model_path=str(released))
    assert found.tokens == plain
    assert found.rounds == by_our_engine(released, PROMPTS, COUNT, POLICY, "linear_spec_lora").rounds
    assert found.rounds != by_our_engine(released, PROMPTS, COUNT, POLICY).rounds


def test_scaled_rotary_embeddings_and_queries_are_those_of_transformers(tmp_path: Path) -> None:
    model, draw = reference(), torch.Generator().manual_seed(0)
    folder = write(tmp_path / "nld", stored(model))
    asked = [torch.randint(4, 100, (length,), generator=draw).tolist() for length in (3, 9, 20)]
    wanted = [
        model.generate(torch.tensor([prompt]), max_new_tokens=30, min_new_tokens=30, do_sample=False)[0, len(prompt) :]
        for prompt in asked
    ]
    context = {"context_length": SHAPE["max_position_embeddings"]}
    found = under_recguide(asked, 30, "fixed:4", model_path=str(folder), **context)
    assert found.tokens == [each.tolist() for each in wanted]


def test_no_weights_are_left_beside_a_model() -> None:
    """Ministral 3 of SGLang's is built on layers of Llama's, which stay there until somebody looks for garbage."""
    told = {}
    for name in ("Ministral3ForCausalLM", "Ministral3SelfSpeculator"):
        command = [sys.executable, "-W", "ignore", str(Path(__file__).parents[1] / "sglang_built.py"), name]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120)
        assert done.returncode == 0, done.stderr
        told[name] = json.loads(done.stdout.splitlines()[-1])
    ours, theirs = told["Ministral3SelfSpeculator"], told["Ministral3ForCausalLM"]
    assert theirs["alive"] > 1.9 * theirs["own"]
    assert ours["alive"] == ours["own"] == theirs["own"]
    assert ours["layers"] == ours["config"] == 2


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy with its key head twice, so that two processes can share the heads: SGLang's CPU engine pads others."""
    folder = tmp_path_factory.mktemp("doubled")
    shape = json.loads((TOY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(shape | {"num_key_value_heads": 2}))
    tensors = load_file(TOY / "model.safetensors")
    twice = {name: torch.cat([tensor, tensor]) for name, tensor in tensors.items() if ".k_" in name or ".v_" in name}
    save_file(tensors | twice, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, doubled: Path) -> Path:
    """An adapter of ours for it."""
    return write_adapter(tmp_path_factory.mktemp("adapter") / "toy.safetensors", doubled)


@pytest.mark.parametrize(("processes", "merge_drafts"), [(1, False), (1, True), (2, False), (2, True)])
def test_an_adapter_of_ours_is_merged_and_routed(
    plain: list[list[int]],
    doubled: Path,
    adapter: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    merge_drafts: bool,
) -> None:
    """With two processes, too, which share all layers; and with drafts by weights that the update is merged into."""
    if processes > 1:
        monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", f"0|{min(1, os.cpu_count() - 1)}")
    arguments = {"speculative_draft_model_path": str(adapter), "tp_size": processes}
    told = json.dumps({"policy": POLICY, "merge_drafts": merge_drafts})
    found = under_recguide(PROMPTS, COUNT, told, model_path=str(doubled), **arguments)
    ours = by_our_engine(doubled, PROMPTS, COUNT, POLICY, str(adapter))
    assert (found.tokens, found.rounds) == (ours.tokens, ours.rounds)
    assert found.tokens != plain


class Projection(torch.nn.Module):
    """What an update needs of SGLang's."""

    input_size, output_size = 12, 16

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16, 12), requires_grad=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.nn.functional.linear(x, self.weight), None


def test_forwards_that_only_draft_run_on_merged_weights_and_no_others() -> None:
    torch.manual_seed(0)
    projection, routing, x = Projection(), Routing(), torch.randn(3, 12)
    update = DraftUpdate(projection, 4, Cut(((16, 16),), 0, 1), routing, torch.float32)
    update.load(torch.randn(4, 12), torch.randn(16, 4))
    gates = False, True, torch.tensor([[True], [False], [True]])

    def found() -> list[torch.Tensor]:
        told = []
        for gate in gates:
            routing.gate = gate
            told.append(projection(x)[0])
        return told

    apart, weight = found(), projection.weight
    update.merge(projection)
    for one, other in zip(apart, found(), strict=True):
        torch.testing.assert_close(one, other)
    assert projection.weight is weight
    assert update.merged is not None
    update.merged.zero_()
    none, drafts, some = found()
    assert torch.equal(none, apart[0])
    assert torch.equal(some, apart[2])
    assert not drafts.any()
    projection.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
    with pytest.raises(InputError, match="quantization: --merge-drafts keeps plain weights"):
        update.merge(projection)


@pytest.mark.parametrize("merge_drafts", [False, True])
def test_drafts_are_merged_where_sglang_draws_the_weights(tmp_path: Path, merge_drafts: bool) -> None:
    """It loads none then, and so no adapter: `--load-format dummy`, as for shapes."""
    folder = tmp_path / "shape"
    shape = json.loads((TOY / "config.json").read_text())
    fields = {"model_type": "nemotron_labs_diffusion", "architectures": ["NemotronLabsDiffusionModel"]}
    (folder / RELEASED).mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(shape | fields))
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["o_proj"]}
    (folder / RELEASED / SETTINGS).write_text(json.dumps(settings))
    told = json.dumps({"policy": POLICY, "merge_drafts": merge_drafts})
    script = Path(__file__).parents[1] / "sglang_drawn.py"
    command = [sys.executable, "-W", "ignore", str(script), str(folder), told]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["updates"] == 2
    assert found["merged"] == (2 if merge_drafts else 0)
    assert found["furthest"] < 1e-9
    assert found["changed"] or not merge_drafts


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_update_is_cut_as_its_projection_is(size: int) -> None:
    """Under tensor parallelism: all processes' parts together are the whole update; key heads may be repeated."""
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(4, 12, generator=draw), torch.randn(16, 4, generator=draw)
    whole = (b @ a).split([8, 4, 4])
    cuts = [Cut(((8, 4), (4, 2), (4, 2)), rank, size) for rank in range(size)]
    for rank, cut in enumerate(cuts):
        heads = 4 // min(size, 2)
        q, k, v = (cut.outputs(b) @ cut.inputs(a)).split([8 // size, heads, heads])
        torch.testing.assert_close(q, whole[0].chunk(size)[rank])
        for found, wanted in ((k, whole[1]), (v, whole[2])):
            torch.testing.assert_close(found, wanted.chunk(min(size, 2))[rank * min(size, 2) // size])
    rows = [Cut((), rank, size) for rank in range(size)]
    x = torch.randn(3, 12, generator=draw)
    inner = sum(cut.inputs(x) @ cut.inputs(a).T for cut in rows)
    torch.testing.assert_close(inner @ rows[0].outputs(b).T, x @ (b @ a).T)
