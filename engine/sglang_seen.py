"""What clients saw of a run, in the simulator's own form, and the figures that clients can know."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.engine.policyof import rounds_named
from recguide.engine.sglang_client import Seen
from recguide.sim.figures import Figures
from recguide.sim.log import PREFILL_STEP, Replay, Step
from recguide.sim.metrics import metrics_of
from recguide.sim.rounds import AR
from recguide.traces.documents import read_json

WHOLE = re.compile(
    r"(mean|median|std|p[\d.]+)_e2el_ms|num_prompts|completed|total_(in|out)put_tokens|max_concurren(cy|t_requests)"
    r"|duration|concurrency|(request|output|total_token)_throughput|output_throughput_per_request"
)
STREAMED = re.compile(rf"{WHOLE.pattern}|(mean|median|std|p[\d.]+)_(ttft|tpot|itl)_ms|steady_.*")
"""What clients know, and what they know where they see tokens as they come."""
SERVER = ("accept_length", "accept_length_macro", "matched_length", "draft_acceptance_rate", "num_rounds", "cut_rounds",
          "tpf", "forwards", "draft_forwards", "verify_forwards", "decode_forwards", "prefill_forwards", "query_tokens",
          "padding_query_tokens", "wasted_query_tokens", "preemptions")  # fmt: skip
"""What the plugin's own log knows, too."""


def read_seen(path: Path) -> list[Seen]:
    """A client's file."""
    return [Seen(**each) for each in read_json(path)]


def client_run(seen: Sequence[Seen], prompt_tokens: Sequence[int], concurrency: int) -> Replay:
    """Requests with a whole answer; every arrival of tokens stands as a step of no length.

    ``prompt_tokens`` are those of the rows of the load.
    """
    whole = [each for each in seen if each.times and not each.error]
    events = sorted(
        (time, number, count - before, at == 0)
        for number, each in enumerate(whole)
        for at, (time, count, before) in enumerate(zip(each.times, each.tokens, [0, *each.tokens], strict=False))
    )
    sent, first, finished = (np.array(column) for column in _times(whole))
    when = np.array([event[0] for event in events])
    return Replay(
        concurrency=concurrency,
        closed=True,
        request=np.arange(len(whole)),
        prompt_tokens=np.array([prompt_tokens[each.row] for each in whole]),
        output_tokens=np.array([each.tokens[-1] for each in whole]),
        arrival_s=sent,
        sent_s=sent,
        started_s=sent,
        first_token_s=first,
        finished_s=finished,
        steps=_steps(when, sent, finished),
        emission_request=np.array([event[1] for event in events]),
        emission_tokens=np.array([event[2] for event in events]),
        emission_step=np.arange(len(events)),
        emission_block_size=np.array([PREFILL_STEP if event[3] else AR for event in events]),
        emission_outcome=None,
        kv_pages=None,
        preemptions=0,
        recomputed_tokens=0,
        seams=0,
        cut_rounds=0,
    )


def _times(whole: Sequence[Seen]) -> tuple[list[float], list[float], list[float]]:
    return [each.sent_s for each in whole], [each.times[0] for each in whole], [each.times[-1] for each in whole]


def _steps(when: NDArray[np.float64], sent: NDArray[np.float64], finished: NDArray[np.float64]) -> dict[str, Any]:
    none = np.zeros(len(when), np.int64)
    in_flight = np.searchsorted(np.sort(sent), when, "left") - np.searchsorted(np.sort(finished), when, "left")
    known = {"start_s": when, "seconds": none.astype(float), "in_flight": in_flight, "outside": none.astype(bool)}
    return {name: known.get(name, none) for name in Step._fields}


def client_figures(run: Replay, figures: Figures, streamed: bool) -> dict[str, float | int | None]:
    """By vLLM's names; without those that would be about steps, or about first tokens that were not streamed."""
    known = STREAMED if streamed else WHOLE
    return {
        name: value for name, value in metrics_of(run, rounds_named((), ""), figures).items() if known.fullmatch(name)
    }


def same_outputs(seen: Sequence[Seen], known: Mapping[int, list[int]]) -> float | None:
    """Share of answers that are, token by token, those that another engine gave to the same rows of the load."""
    same = [each.output == known[each.row] for each in seen if each.row in known and not each.error]
    return sum(same) / len(same) if same else None


def server_figures(found: Mapping[str, float | int | None]) -> dict[str, float | int | None]:
    """Of a run of the plugin's, those that clients do not know."""
    return {name: found[name] for name in SERVER if name in found}
