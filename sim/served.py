"""What every request of a replay got: one row each, for distributions and service levels."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from recguide.sim.replay import Replay
from recguide.sim.rounds import AR


def served_of(run: Replay, block_sizes: Sequence[int]) -> pa.Table:
    """A row for each sent request, in the order of sending; times in seconds of the run, latencies in milliseconds.

    ``trace_row`` is its row in the trace; ``queue_ms`` ends where its first prefill starts, and is part of ``ttft_ms``.
    ``tpot_ms`` is null for an output of one token, ``accept_length`` (tokens per round with a draft, the verifier's
    included) where no round had a draft. ``rounds_bB`` are its rounds at block size B, 1 being AR steps.
    """
    decode_s = run.finished_s - run.first_token_s
    gaps = np.where(run.output_tokens > 1, run.output_tokens - 1, 1)
    rounds, tokens = _drafted(run)
    return pa.table(
        {
            "trace_row": run.request,
            "prompt_tokens": run.prompt_tokens,
            "output_tokens": run.output_tokens,
            "arrival_s": run.arrival_s,
            "sent_s": run.sent_s,
            "finished_s": run.finished_s,
            "queue_ms": (run.started_s - run.sent_s) * 1e3,
            "ttft_ms": (run.first_token_s - run.sent_s) * 1e3,
            "tpot_ms": pa.array(decode_s / gaps * 1e3, mask=run.output_tokens < 2),
            "e2el_ms": (run.finished_s - run.sent_s) * 1e3,
            "rounds": rounds,
            "accept_length": pa.array(tokens / np.maximum(rounds, 1), mask=rounds == 0),
            **{f"rounds_b{size}": _rounds_at(run, size) for size in (AR, *block_sizes)},
        }
    )


def _rounds_at(run: Replay, size: int) -> np.ndarray:
    return np.bincount(run.emission_request[run.emission_block_size == size], minlength=len(run.request))


def _drafted(run: Replay) -> tuple[np.ndarray, np.ndarray]:
    """Rounds with a draft of each request, and the tokens that they emitted."""
    with_draft = run.emission_block_size > AR
    request, size = run.emission_request[with_draft], len(run.request)
    tokens = np.bincount(request, run.emission_tokens[with_draft], minlength=size)
    return np.bincount(request, minlength=size), tokens
