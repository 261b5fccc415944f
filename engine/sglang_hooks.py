"""The places of SGLang that are hooked, and proof that they are there: nothing of SGLang is changed on disk.

Every hook does nothing unless the algorithm is RECGUIDE.
"""

import copy
import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from recguide.engine.sglang_options import is_ours
from recguide.engine.sglang_requests import live_of
from recguide.traces.errors import InputError

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.managers.utils import GenerationBatchResult

Hook = Callable[..., Any]
TESTED = ("0.5.17", "0.5.23")


def no_draft_pool(original: Hook, *args: object, **named: object) -> object:
    """There is no KV pool for drafts: they are made by the model itself."""
    return None if is_ours(named["spec_algorithm"]) else original(*args, **named)


def long_rows(original: Hook, *args: object) -> object:
    """Rows of slots have room for all that SGLang sets aside behind the longest request, which is two rounds."""
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
    from sglang.srt.runtime_context import get_server_args

    tokens = original(*args)
    return (
        max(tokens, get_alloc_reserve_per_decode(*args)) if is_ours(get_server_args().speculative_algorithm) else tokens
    )


def no_draft_model(original: Hook, algorithm: str | None, *args: object, **named: object) -> object:
    """The path of a draft model is that of an adapter, and nothing is read there yet."""
    return algorithm if is_ours(algorithm) else original(algorithm, *args, **named)


def no_decode_graphs(original: Hook, worker: "TpModelWorker", *args: object, **named: object) -> object:
    """Decoding has graphs of its own, and SGLang's would have the wrong mask."""
    if is_ours(worker.server_args.speculative_algorithm):
        return original(worker, capture_decode_cuda_graph=False)
    return original(worker, *args, **named)


def on_arrival(original: Hook, scheduler: "Scheduler", req: "Req", is_retracted: bool = False) -> object:
    """A request is told to the worker, and refused where it cannot be served."""
    if is_ours(scheduler.spec_algorithm):
        if (live := live_of(req)) is not None:
            scheduler.draft_worker.rounds.preempted(live)
        else:
            try:
                scheduler.draft_worker.arrived(req)
            except InputError as error:
                req.set_finish_with_abort(str(error))
                scheduler.draft_worker.arrived(req)
    return original(scheduler, req, is_retracted=is_retracted)


def before_a_prefill(original: Hook, batch: "ScheduleBatch", *args: object, **named: object) -> object:
    """A request that ended while a step runs may take part in it; its slots are looked up before others get them."""
    if is_ours(batch.spec_algorithm):
        from recguide.engine.sglang_forwards import join_all

        join_all()
    return original(batch, *args, **named)


def those_who_emit(
    original: Hook,
    processor: "SchedulerBatchResultProcessor",
    batch: "ScheduleBatch",
    result: "GenerationBatchResult",
) -> object:
    """Only requests that emit anything are looked at; the others took no part in the step, or made a draft."""
    if not is_ours(batch.spec_algorithm):
        return original(processor, batch, result)
    result.copy_done.synchronize()
    lens = result.accept_lens.tolist()
    rows = [row for row, count in enumerate(lens) if count]
    if len(rows) < len(lens):
        part = copy.copy(batch)
        part.reqs = [batch.reqs[row] for row in rows]
        ids = result.next_token_ids.view(len(lens), -1)[rows].flatten()
        told = dataclasses.replace(result, next_token_ids=ids, accept_lens=result.accept_lens[rows])
        original(processor, part, told)
        # SGLang counts a token of its own for every request of the batch
        result.num_correct_drafts = sum(lens) - len(lens)
    else:
        original(processor, batch, result)
    processor.model_worker.told(batch.reqs)
    return None


AROUND: Mapping[str, Hook] = {
    "sglang.srt.mem_cache.kv_cache_builder.get_draft_kv_pool": no_draft_pool,
    "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len": long_rows,
    "sglang.srt.arg_groups.speculative_hook._resolve_speculative_algorithm_alias": no_draft_model,
    "sglang.srt.managers.tp_worker.TpModelWorker.init_cuda_graphs": no_decode_graphs,
    "sglang.srt.managers.scheduler.Scheduler._add_request_to_queue": on_arrival,
    "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend": before_a_prefill,
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor."
    "process_batch_result_decode": those_who_emit,
}
GONE = {"sglang.srt.mem_cache.kv_cache_builder.get_draft_kv_pool": ("0.5.23",)}
"""What versions do without; there SGLang asks the worker itself."""


def targets(version: str) -> dict[str, Hook]:
    """The hooks of a version of SGLang, by the place that they are put around."""
    return {place: hook for place, hook in AROUND.items() if version not in GONE.get(place, ())}


def problems(version: str) -> list[str]:
    """What keeps the plugin from working with the SGLang that is installed."""
    found = [] if version in TESTED else [f"SGLang {version} is not one of those tested: {', '.join(TESTED)}"]
    return found + [f"SGLang {version} has no {place}" for place in targets(version) if not _is_there(place)]


def _is_there(place: str) -> bool:
    parts = place.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            found = getattr(found, name, None)
        return callable(found)
    return False
