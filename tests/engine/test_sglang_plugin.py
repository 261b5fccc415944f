"""How SGLang finds the plugin, that it hooks what it says, and that trouble is told to whoever asks for RECGUIDE."""

import importlib.util
from importlib.metadata import entry_points
from typing import Any

import pytest
from sglang_env import ENGINE_ARGS, PRESENT

if not PRESENT:
    pytest.skip("SGLang is not installed here: make test-sglang", allow_module_level=True)

import sglang
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative import spec_registry
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from recguide.engine import sglang_hooks, sglang_plugin
from recguide.engine.sglang_algorithm import RecGuideAlgorithm
from recguide.engine.sglang_options import NAME, is_ours
from recguide.traces.errors import InputError

LATER = importlib.util.find_spec("sglang.srt.arg_groups.model_override_base") is not None


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    load_plugins()


def arguments(**changes: object) -> ServerArgs:
    args = ServerArgs(**{**ENGINE_ARGS, "speculative_algorithm": "recguide", **changes})
    if LATER:
        # what follows from arguments is worked out when a server starts
        args.resolve_once()
    return args


def resolved(args: ServerArgs) -> Any:
    """The arguments with what validators have set, which later versions keep apart."""
    if not LATER:
        return args
    from sglang.srt.arg_groups.model_override_base import resolving_view

    return resolving_view(args)


def test_sglang_finds_it_by_its_entry_point() -> None:
    (found,) = entry_points(group="sglang.srt.plugins", name="recguide")
    assert found.load() is sglang_plugin.register


def test_the_algorithm_is_there_and_every_hook_is_applied() -> None:
    algorithm = SpeculativeAlgorithm.from_string("recguide")
    assert isinstance(algorithm, RecGuideAlgorithm)
    assert is_ours(algorithm)
    assert sglang_hooks.targets(sglang.__version__).keys() <= HookRegistry._patched
    sglang_plugin.check_hooks()


def test_it_answers_whatever_the_scheduler_asks_of_an_algorithm() -> None:
    algorithm = SpeculativeAlgorithm.from_string(NAME)
    assert not algorithm.need_topk()
    assert not algorithm.has_draft_kv()
    assert not algorithm.carries_draft_hidden_states()


def test_the_width_of_forwards_follows_from_the_policy() -> None:
    args = resolved(arguments(speculative_adaptive_config="overlap:B=8"))
    assert args.speculative_num_draft_tokens == 32
    assert args.disable_overlap_schedule


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"speculative_adaptive_config": "overlap:B=9"}, "block size 9 was not recorded"),
        ({"speculative_adaptive_config": '{"policy": "ar", "what": 1}'}, "what: unknown"),
        ({"speculative_num_draft_tokens": 5}, "--speculative-num-draft-tokens: found 5"),
        ({"speculative_draft_window_size": 64}, "--speculative-draft-window-size: found 64"),
        ({"enable_mixed_chunk": True}, "--enable-mixed-chunk: found True"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        arguments(**changes)


def test_other_algorithms_are_not_looked_at() -> None:
    assert ServerArgs(**ENGINE_ARGS).speculative_num_draft_tokens is None


def test_a_version_that_is_not_tested_is_told() -> None:
    assert sglang_hooks.problems("0.4.0")[0].startswith("SGLang 0.4.0 is not one of those tested: 0.5.17")
    assert not sglang_hooks.problems(sglang.__version__)


def test_a_missing_place_is_told_to_whoever_asks_for_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "sglang.srt.managers.scheduler.Scheduler.no_such_method"
    monkeypatch.setattr(sglang_hooks, "AROUND", {place: sglang_hooks.on_arrival})
    monkeypatch.delitem(spec_registry._REGISTRY, NAME)
    sglang_plugin.register()
    with pytest.raises(RuntimeError, match=f"SGLang {sglang.__version__} has no {place}"):
        arguments()
    assert place not in HookRegistry._hooks


def test_a_hook_that_was_not_applied_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HookRegistry, "_patched", set())
    with pytest.raises(RuntimeError, match="did not apply these hooks"):
        arguments()
