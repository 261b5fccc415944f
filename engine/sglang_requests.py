"""A request of SGLang as our policies and ways see it, and what of a request is refused.

State hangs on SGLang's own request object, so that it goes when that goes: finished, aborted or never started.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recguide.engine.requests import MAX_SEED, Live, Wish
from recguide.traces.dense import DenseTrace
from recguide.traces.errors import InputError

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

ATTRIBUTE = "recguide_live"
ROW = "recguide_row"
"""In ``custom_params``: whose recorded acceptance a request plays."""
GREEDY_TOP_K = 1
"""What SGLang makes of temperature 0."""


@dataclass(eq=False)
class SglangLive(Live):
    """A request of SGLang's: where it stands in our words, and its place in SGLang's tables."""

    pool: int = 0
    """Its row of ``req_to_token``."""


def live_of(req: "Req") -> SglangLive | None:
    """What hangs on a request, if it was seen before."""
    live: SglangLive | None = getattr(req, ATTRIBUTE, None)
    return live


def attach(req: "Req") -> SglangLive:
    """Hang a new state on a request."""
    params = req.sampling_params
    temperature = 0.0 if params.top_k == GREEDY_TOP_K else params.temperature
    # without a seed of its own the output differs from request to request, and yet not from GPU to GPU
    seed = zlib.crc32(req.rid.encode()) if params.sampling_seed is None else params.sampling_seed
    left = int(params.max_new_tokens)
    live = SglangLive(0, list(req.origin_input_ids), Wish(left, temperature, seed & MAX_SEED), _eos_of(req), left)
    setattr(req, ATTRIBUTE, live)
    return live


def synced(req: "Req", live: SglangLive) -> SglangLive:
    """Its state with what SGLang has changed: its output limit, and its output where that was cut."""
    if len(live.tokens) != len(req.output_ids):
        # after a retraction, or where a stop string was found
        del live.entropies[len(req.output_ids) :]
        live.tokens, live.held = list(req.output_ids), None
    live.tokens_left = int(req.sampling_params.max_new_tokens) - len(live.tokens)
    live.finish_reason = None
    return live


def _eos_of(req: "Req") -> frozenset[int]:
    """The tokens at which SGLang ends it."""
    params, tokenizer = req.sampling_params, req.tokenizer
    if params.ignore_eos:
        return frozenset()
    ids = {*(params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    if tokenizer is not None:
        ids |= {tokenizer.eos_token_id, *(getattr(tokenizer, "additional_stop_token_ids", None) or ())}
    return frozenset(int(token) for token in ids if token is not None)


def play(req: "Req", live: SglangLive, trace: DenseTrace) -> None:
    """Let a request play the recorded one that it names; InputError unless it has that one's lengths."""
    row = (req.sampling_params.custom_params or {}).get(ROW)
    if not isinstance(row, int) or not 0 <= row < len(trace.requests):
        raise InputError(
            f"custom_params: {ROW}: found {row!r}, allowed: 0 to {len(trace.requests) - 1}: acceptance is forced "
            "from a trace, and each request plays one of its requests"
        )
    recorded = trace.requests[row]
    found = len(req.origin_input_ids), int(req.sampling_params.max_new_tokens)
    if found != (recorded.prompt_tokens, recorded.output_tokens):
        raise InputError(
            f"{ROW} {row}: found a prompt of {found[0]} tokens and max_new_tokens {found[1]}, "
            f"allowed: {recorded.prompt_tokens} and {recorded.output_tokens}, as recorded"
        )
    live.row, live.wish = row, Wish(trace.provenance.max_output_tokens)


def check(req: "Req") -> None:
    """InputError for what would change tokens in a way that drafts and verification know nothing of."""
    params = req.sampling_params
    for name, (found, allowed) in {**_sampling(params), **_answers(req)}.items():
        if found != allowed:
            raise InputError(f"{name}: found {found!r}, allowed with RECGUIDE: {allowed!r}")


def _sampling(params: "SamplingParams") -> Mapping[str, tuple[Any, Any]]:
    """Found and allowed, by the name that clients know."""
    greedy = params.top_k == GREEDY_TOP_K
    whole = {} if greedy else {"top_p": (params.top_p, 1.0), "min_p": (params.min_p, 0.0)}
    return {
        **whole,
        "top_k": (params.top_k if not greedy and params.top_k < 1 << 30 else -1, -1),
        "frequency_penalty": (params.frequency_penalty, 0.0),
        "presence_penalty": (params.presence_penalty, 0.0),
        "repetition_penalty": (params.repetition_penalty, 1.0),
        "min_new_tokens": (params.min_new_tokens, 0),
        "logit_bias": (params.logit_bias or None, None),
        "json_schema": (params.json_schema, None),
        "regex": (params.regex, None),
        "ebnf": (params.ebnf, None),
        "structural_tag": (params.structural_tag, None),
    }


def _answers(req: "Req") -> Mapping[str, tuple[Any, Any]]:
    return {
        "return_logprob": (bool(req.return_logprob), False),
        "return_hidden_states": (bool(req.return_hidden_states), False),
        "custom_logit_processor": (req.custom_logit_processor, None),
        "lora": (req.lora_id, None),
        "images, sound or embeddings": (req.multimodal_inputs is not None or req.input_embeds is not None, False),
    }
