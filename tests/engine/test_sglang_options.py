"""What SGLang's arguments come to, and which are refused; SGLang itself is not needed."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
from engines import ADAPTIVE
from hand_traces import request, trace

from recguide.engine.sglang_options import PluginOptions, check_arguments, plan_of, read_options
from recguide.sim.adaptive import Equation3, Load, LowLoad, write_policy
from recguide.sim.overlap import Overlap
from recguide.sim.policies import ByLoad, Fixed
from recguide.sim.recommendation import as_policy
from recguide.sim.regime import Regime
from recguide.sim.tiers import Tier
from recguide.traces.documents import write_json
from recguide.traces.errors import InputError
from recguide.traces.files import write_trace


@dataclass
class Arguments:
    """Those of SGLang's arguments that are looked at, and some that must not be given."""

    model_path: str = "/models/toy"
    served_model_name: str | None = None
    tp_size: int = 1
    pp_size: int = 1
    enable_mixed_chunk: bool = False
    disaggregation_mode: str = "null"
    speculative_algorithm: str | None = "RECGUIDE"
    speculative_adaptive_config: str | None = None
    speculative_adaptive: bool = False
    speculative_draft_model_path: str | None = None
    speculative_num_draft_tokens: int | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_token_map: str | None = None


@pytest.fixture
def fitted(tmp_path: Path) -> Path:
    """A policy file for the model "toy"."""
    loads = tuple(Load(count, 100.0, {2: 1e-3, 4: 1.1e-3, 8: 1.2e-3}, 4) for count in (1, 8))
    low = LowLoad(8, 0.5, 2)
    provenance = {"profile": {"model": "toy", "gpu": "Test GPU"}}
    path = tmp_path / "policy.json"
    write_policy(replace(ADAPTIVE, model="toy", loads=loads, low_load=low, provenance=provenance), path)
    return path


SIZES = {"block_sizes": [2, 4, 8]}


def told(**options: object) -> str:
    return json.dumps(SIZES | options)


@pytest.mark.parametrize(
    ("config", "policy", "width"),
    [
        (None, Fixed(16), 32),
        ("fixed:8", Fixed(8), 32),
        ("ar", Fixed(1), 32),
        ("overlap:B=16,delta=0.25", Overlap(16, 0.25), 64),
        ("overlap:B=16,corrections=3", Overlap(16, corrections=3), 80),
        (told(policy="fixed:4"), Fixed(4), 8),
    ],
)
def test_a_name_says_which_policy_runs_and_how_wide_forwards_get(config: str, policy: object, width: int) -> None:
    plan = plan_of(Arguments(speculative_adaptive_config=config))
    assert (plan.policy, plan.width) == (policy, width)


def test_policy_files_are_taken_as_they_are_written(fitted: Path, tmp_path: Path) -> None:
    tiers = tmp_path / "tiers.json"
    write_json(tiers, as_policy([Tier(1, 4, 16), Tier(5, 64, 8)], {}))
    assert plan_of(Arguments(speculative_adaptive_config=str(tiers))).policy == ByLoad(((4, 16), (64, 8)))
    options = tmp_path / "options.json"
    options.write_text(told(policy=f"adaptive:{fitted}"))
    assert isinstance(plan_of(Arguments(speculative_adaptive_config=str(options))).policy, Equation3)


def test_a_fit_says_where_overlap_ends(fitted: Path) -> None:
    plan = plan_of(Arguments(speculative_adaptive_config=told(policy=f"regime:file={fitted}")))
    assert isinstance(plan.policy, Regime)
    assert (plan.policy.switch, plan.policy.overlap.block_size, plan.width) == (2, 8, 32)


def test_a_policy_file_that_is_named_alone_is_fitted_to_the_block_sizes(fitted: Path) -> None:
    assert read_options(str(fitted)) == PluginOptions(policy=f"adaptive:{fitted}")
    with pytest.raises(InputError, match="block size 2 was not recorded"):
        plan_of(Arguments(speculative_adaptive_config=str(fitted)))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("no-such-policy", "unknown; known"),
        ("fixed:7", "block size 7 was not recorded"),
        ("missing.json", "missing.json: no such file"),
        ("{", "not JSON"),
        ('{"policy": "ar", "polcy": 1}', "polcy: unknown; allowed: policy, block_sizes"),
        ('{"block_sizes": [8, 4]}', "block_sizes: found .8, 4., allowed: a list of ascending"),
        ('{"block_sizes": [64]}', "2 to 32"),
        ('{"batching": "none"}', "batching: found 'none', allowed: pad, bucket"),
        ('{"cuda_graphs": 1}', "cuda_graphs: found 1, allowed: true or false"),
        ("oracle", "knows the future"),
        ("tidar", "is not served here"),
        ("ragged", "only simulated"),
        ("goodput", "needs a profile"),
        ("joint:policy.json", "needs a profile"),
        ("allocation:policy.json", "needs a profile"),
        ("regime:file=policy.json,above=allocation", "needs a profile"),
        ("adaptive", "needs a policy file"),
        ("adaptive:/no/such.json", "no such policy file"),
    ],
)
def test_what_cannot_be_served_is_refused(config: str, says: str) -> None:
    with pytest.raises((InputError, FileNotFoundError), match=says):
        plan_of(Arguments(speculative_adaptive_config=config))


def test_a_fit_for_another_model_is_refused(fitted: Path) -> None:
    with pytest.raises(InputError, match="fitted to 'toy', but found 'other'"):
        plan_of(Arguments(model_path="/models/other", speculative_adaptive_config=told(policy=f"adaptive:{fitted}")))


def test_a_fit_without_a_switch_point_for_its_blocks_needs_one(fitted: Path) -> None:
    config = told(policy=f"regime:file={fitted},B=4")
    with pytest.raises(InputError, match="no switch point"):
        plan_of(Arguments(speculative_adaptive_config=config))


def test_policies_that_learn_from_times_run_on_one_gpu_alone() -> None:
    with pytest.raises(InputError, match="allowed: one GPU"):
        plan_of(Arguments(speculative_adaptive_config="bandit", tp_size=2))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"speculative_num_draft_tokens": 8}, "--speculative-num-draft-tokens: found 8, allowed with RECGUIDE: 32"),
        ({"speculative_num_steps": 3}, "--speculative-num-steps: found 3"),
        ({"speculative_eagle_topk": 4}, "--speculative-eagle-topk: found 4"),
        (
            {"speculative_token_map": "map.pt"},
            "--speculative-token-map: found 'map.pt', allowed with RECGUIDE: nothing",
        ),
        ({"speculative_adaptive": True}, "--speculative-adaptive: found True"),
        ({"pp_size": 2}, "--pp-size: found 2, allowed with RECGUIDE: 1"),
        ({"enable_mixed_chunk": True}, "--enable-mixed-chunk: found True"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode: found 'decode'"),
    ],
)
def test_arguments_that_contradict_the_policy_are_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        check_arguments(Arguments(**changes), vars(Arguments()))


def test_what_follows_from_the_policy_may_be_said() -> None:
    known = Arguments(speculative_num_draft_tokens=32, speculative_num_steps=1, speculative_eagle_topk=1)
    assert check_arguments(known, vars(Arguments())).width == 32


def test_a_forced_trace_brings_its_block_sizes(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    recorded = trace(request("a", 6, (4, 8)), block_sizes=(4, 8))
    write_trace(recorded, path)
    plan = plan_of(Arguments(speculative_adaptive_config=json.dumps({"policy": "fixed:8", "forced_trace": str(path)})))
    assert plan.trace is not None
    assert plan.block_sizes == (4, 8)
    assert asdict(plan.options)["forced_trace"] == str(path)
    with pytest.raises(InputError, match=r"block_sizes: found \[16\], allowed: 4, 8"):
        plan_of(Arguments(speculative_adaptive_config=told(policy="fixed:8", forced_trace=str(path), block_sizes=[16])))
