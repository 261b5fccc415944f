"""The plugin that SGLang finds by its entry point: `--speculative-algorithm RECGUIDE` on an unmodified SGLang."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

NOT_ALL_HOOKED = "recguide: SGLang did not apply these hooks, its log says why"


def register() -> None:
    """Called once in every process of SGLang.

    SGLang only logs what a plugin raises and goes on without it. So what is wrong is kept, and told to whoever asks
    for RECGUIDE; other algorithms are not disturbed.
    """
    import sglang

    from recguide.engine.sglang_hooks import problems, targets

    found = problems(sglang.__version__)
    if not any(" has no " in problem for problem in found):
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        from recguide.engine.sglang_attention import register_backends
        from recguide.engine.sglang_models import register_models

        for place, hook in targets(sglang.__version__).items():
            HookRegistry.register(place, hook, HookType.AROUND)
        register_backends()
        register_models()
    _register_algorithm(found)


def _register_algorithm(problems: Sequence[str]) -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from recguide.engine.sglang_algorithm import NAME, RecGuideAlgorithm, validate

    def checked(args: "ServerArgs") -> None:
        if problems:
            raise RuntimeError("recguide: " + "; ".join(problems))
        check_hooks()
        validate(args)

    @SpeculativeAlgorithm.register(
        NAME, supports_overlap=False, validate_server_args=checked, spec_class=RecGuideAlgorithm
    )
    def worker(args: "ServerArgs") -> type:
        from recguide.engine.sglang_worker import RecGuideWorker

        check_hooks()
        return RecGuideWorker


def check_hooks() -> None:
    """RuntimeError unless every hook is in place."""
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry

    from recguide.engine.sglang_hooks import targets

    missing = targets(sglang.__version__).keys() - HookRegistry._patched
    if missing:
        raise RuntimeError(f"{NOT_ALL_HOOKED}: {', '.join(sorted(missing))}")
