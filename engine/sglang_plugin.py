"""The plugin that SGLang finds by its entry point: `--speculative-algorithm RECGUIDE` on an unmodified SGLang."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from recguide.engine.sglang_options import NAME

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

NOT_ALL_HOOKED = "recguide: SGLang did not apply these hooks, its log says why"


def register() -> None:
    """Called once in every process of SGLang.

    SGLang only logs what a plugin raises and goes on without it. So what is wrong is kept, and told to whoever asks
    for RECGUIDE; other algorithms are not disturbed.
    """
    import sglang

    from recguide.engine.sglang_hooks import problems

    version = sglang.__version__
    try:
        found = problems(version)
        if not found:
            _hook(version)
    except (ImportError, AttributeError) as error:
        found = [f"SGLang {version}: {type(error).__name__}: {error}"]
    if found:
        _refuse("recguide: " + "; ".join(found))
    else:
        _offer()


def _hook(version: str) -> None:
    """Put everything in place but the algorithm."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import add_attention_backend_choices

    from recguide.engine.sglang_attention import NAME as BACKEND
    from recguide.engine.sglang_attention import register_backends
    from recguide.engine.sglang_hooks import targets
    from recguide.engine.sglang_models import register_models

    register_models()
    register_backends()
    add_attention_backend_choices([BACKEND])
    for place, hook in targets(version).items():
        HookRegistry.register(place, hook, HookType.AROUND)


def _offer() -> None:
    """Let SGLang know the algorithm."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from recguide.engine.sglang_algorithm import RecGuideAlgorithm, validate

    def checked(args: "ServerArgs") -> None:
        check_hooks()
        validate(args)

    SpeculativeAlgorithm.register(
        NAME, supports_overlap=False, validate_server_args=checked, spec_class=RecGuideAlgorithm
    )(_worker)


def _worker(args: "ServerArgs") -> type:
    from recguide.engine.sglang_worker import RecGuideWorker

    check_hooks()
    return RecGuideWorker


def _refuse(problem: str) -> None:
    """Let whoever asks for the algorithm know why it cannot be had."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    def refused(args: "ServerArgs") -> NoReturn:
        raise RuntimeError(problem)

    offer: Callable[[Callable[..., type]], object]
    offer = SpeculativeAlgorithm.register(NAME, supports_overlap=False, validate_server_args=refused)
    offer(refused)


def check_hooks() -> None:
    """RuntimeError unless every hook is in place."""
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry

    from recguide.engine.sglang_hooks import targets

    missing = targets(sglang.__version__).keys() - HookRegistry._patched
    if missing:
        raise RuntimeError(f"{NOT_ALL_HOOKED}: {', '.join(sorted(missing))}")
