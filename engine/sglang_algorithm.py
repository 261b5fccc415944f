"""RECGUIDE as SGLang knows a speculative algorithm: what it is asked for, and how its arguments are checked."""

import logging
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

import msgspec
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from recguide.engine.sglang_attention import NAME as BACKEND
from recguide.engine.sglang_options import check_arguments, derived

if TYPE_CHECKING:
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

ON_CPU = "torch_native"
"""The name that our backend stands under there."""
logger = logging.getLogger(__name__)


class RecGuideAlgorithm(CustomSpecAlgo):
    """What SGLang's scheduler asks of an algorithm beyond what a registered one answers by itself."""

    def need_topk(self) -> bool:
        """Whether drafts are trees, handed on from step to step."""
        return False

    def has_draft_kv(self) -> bool:
        """Whether drafts have a cache of their own."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """Whether hidden states go from step to step."""
        return False

    def create_future_map(self, device: str, req_to_token_pool: "ReqToTokenPool", **wanted: bool) -> FutureMap:
        """SGLang's relay between overlapped steps, which the scheduler makes for every algorithm."""
        return FutureMap(device, self, req_to_token_pool, **wanted)


def defaults() -> dict[str, object]:
    """What SGLang's arguments are by themselves; later versions keep them in another kind of class."""
    known = fields(ServerArgs) if is_dataclass(ServerArgs) else msgspec.structs.fields(ServerArgs)
    return {field.name: field.default for field in known}


def validate(args: ServerArgs) -> None:
    """Check the arguments of a server and set what follows from them; InputError for what cannot be served."""
    for name, value in derived(check_arguments(args, defaults())).items():
        setattr(args, name, value)
    # the next block and its branches depend on what a verification found
    args.disable_overlap_schedule = True
    backend = ON_CPU if str(args.device) == "cpu" else BACKEND
    if args.attention_backend != backend:
        logger.warning("recguide: attention backend %s gives way to %s", args.attention_backend, backend)
    args.attention_backend = backend
