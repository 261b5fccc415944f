"""Figures of a replay, named as vLLM and SGLang name them where they do; docs/simulate.md defines every one."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.sim.branches import branch_metrics, forwards_each
from recguide.sim.figures import Figures
from recguide.sim.latencies import latency_metrics
from recguide.sim.log import PREFILL_STEP, Replay
from recguide.sim.overlap import Outcome
from recguide.sim.rounds import AR, Ints, Rounds
from recguide.sim.windows import in_flight_s, steady_window

Metrics = Mapping[str, float | int | None]
"""None where there is nothing to take a figure of, as the acceptance length of a run without drafts."""
Seconds = NDArray[np.float64]


def metrics_of(run: Replay, rounds: Rounds, figures: Figures | None = None) -> dict[str, float | int | None]:
    """All figures of a run, whole and in its steady window."""
    emissions = _emissions(run)
    return {
        **_load(run),
        **_throughput(run),
        **_steady(run, emissions),
        **latency_metrics(run, np.diff(emissions.time_s)[~emissions.last[:-1]], figures or Figures()),
        **_kv(run),
        **_forwards(run),
        **branch_metrics(run),
        **_acceptance(run, emissions, rounds),
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Emissions:
    """Emissions sorted by request, each request's in order of time."""

    request: Ints
    tokens: Ints
    block_size: Ints
    time_s: Seconds
    start_s: Seconds
    """Of the step that it ends."""
    last: NDArray[np.bool_]
    """Whether it is its request's last one."""


def _emissions(run: Replay) -> _Emissions:
    order = np.argsort(run.emission_request, kind="stable")
    request, step = run.emission_request[order], run.emission_step[order]
    start_s = run.steps["start_s"]
    end_s = start_s + run.steps["seconds"]
    last = np.append(request[1:] != request[:-1], True)
    return _Emissions(
        request, run.emission_tokens[order], run.emission_block_size[order], end_s[step], start_s[step], last
    )


def _load(run: Replay) -> Metrics:
    return {
        "max_concurrency": run.concurrency,
        "num_prompts": len(run.request),
        "completed": int(np.isfinite(run.finished_s).sum()),
        "total_input_tokens": int(run.prompt_tokens.sum()),
        "total_output_tokens": int(run.output_tokens.sum()),
        "max_concurrent_requests": int(run.steps["in_flight"].max()),
    }


def _throughput(run: Replay) -> Metrics:
    duration = float(run.finished_s.max() - run.sent_s.min())
    busy_s = float((run.finished_s - run.sent_s).sum())
    tokens = int(run.output_tokens.sum())
    return {
        "duration": duration,
        "concurrency": _ratio(busy_s, duration),
        "request_throughput": _ratio(len(run.request), duration),
        "output_throughput": _ratio(tokens, duration),
        "total_token_throughput": _ratio(tokens + int(run.prompt_tokens.sum()), duration),
        "output_throughput_per_request": _ratio(tokens, busy_s),
    }


def _steady(run: Replay, emissions: _Emissions) -> Metrics:
    start, end = steady_window(run) or (0.0, 0.0)
    tokens = int(emissions.tokens[(emissions.time_s > start) & (emissions.time_s <= end)].sum())
    return {
        "steady_duration": end - start,
        "steady_output_tokens": tokens,
        "steady_output_throughput": _ratio(tokens, end - start),
        "steady_output_throughput_per_request": _ratio(tokens, in_flight_s(run, start, end)),
    }


def _kv(run: Replay) -> Metrics:
    return {
        "max_kv_pages": None if run.kv_pages is None else int(run.kv_pages.max()),
        "preemptions": run.preemptions,
        "recomputed_tokens": run.recomputed_tokens,
        "reused_tokens": run.reused_tokens,
    }


def _forwards(run: Replay) -> Metrics:
    sizes, seconds, queries = (run.steps[name] for name in ("block_size", "seconds", "query_tokens"))
    drafted = run.steps["draft_tokens"]
    decodes, drafts = int((sizes == AR).sum()), int((drafted > 0).sum())
    verifies = int(((sizes > AR) & (queries > 0)).sum())
    decoding = run.emission_block_size != PREFILL_STEP
    busy_s = float(seconds.sum())
    return {
        "prefill_forwards": int((sizes == PREFILL_STEP).sum()),
        "decode_forwards": decodes,
        "draft_forwards": drafts,
        "verify_forwards": verifies,
        "forwards": decodes + verifies + drafts,
        "tpf": _ratio(int(run.emission_tokens[decoding].sum()), int(forwards_each(run).sum())),
        "query_tokens": int((queries * (sizes != PREFILL_STEP) + drafted).sum()),
        "prefill_query_tokens": int(queries[sizes == PREFILL_STEP].sum()),
        "prefill_share": _ratio(float(seconds[sizes == PREFILL_STEP].sum()), busy_s),
        "extrapolated_share": _ratio(float(seconds[run.steps["outside"]].sum()), busy_s),
    }


def _acceptance(run: Replay, emissions: _Emissions, rounds: Rounds) -> Metrics:
    drafted = emissions.block_size > AR
    tokens, sizes, count = emissions.tokens[drafted], emissions.block_size[drafted], int(drafted.sum())
    cut = _cut_rounds(run, emissions, rounds)
    return {
        "num_rounds": count,
        "cut_rounds": cut,
        "accept_length": _ratio(int(tokens.sum()), count),
        "matched_length": _ratio(int(tokens.sum()) - count + cut, count),
        "accept_length_macro": _macro(emissions.request[drafted], tokens),
        # a cut round lost its verifier's token at least, so all that it emitted are drafts
        "draft_acceptance_rate": _ratio(int(tokens.sum()) - count + cut, int((sizes - 1).sum())),
        **_waste(run, emissions),
        **_block_shares(emissions, rounds),
        **_waits(emissions, rounds),
    }


def _cut_rounds(run: Replay, emissions: _Emissions, rounds: Rounds) -> int:
    """Rounds that emitted less than they accepted; only a request's last round can."""
    if run.cut_rounds is not None:
        return run.cut_rounds
    if run.emission_outcome is not None:
        return int((run.emission_outcome & Outcome.CUT != 0).sum())
    cut = 0
    for size in rounds.block_sizes:
        here = emissions.last & (emissions.block_size == size)
        sent, tokens = emissions.request[here], emissions.tokens[here]
        row = rounds.first[run.request[sent]] + run.output_tokens[sent] - tokens
        cut += int((rounds.accept_len[size][row] > tokens).sum())
    return cut


def _macro(request: Ints, tokens: Ints) -> float | None:
    if not len(request):
        return None
    count = np.bincount(request)
    return float((np.bincount(request, tokens)[count > 0] / count[count > 0]).mean())


def _block_shares(emissions: _Emissions, rounds: Rounds) -> Metrics:
    decoding = emissions.block_size[emissions.block_size != PREFILL_STEP]
    return {
        f"block_share_{size}": _ratio(int((decoding == size).sum()), len(decoding))
        for size in (AR, *rounds.block_sizes)
    }


def _waste(run: Replay, emissions: _Emissions) -> Metrics:
    """Query tokens of draft and verify that an emitted token did not need: each needs one of both."""
    decoding = run.steps["block_size"] != PREFILL_STEP
    paid = int((run.steps["query_tokens"] * decoding + run.steps["draft_tokens"]).sum())
    tokens, sizes = emissions.tokens, emissions.block_size
    needed = int(tokens[sizes == AR].sum()) + 2 * int(tokens[sizes > AR].sum())
    return {"wasted_query_tokens": paid - needed, "padding_query_tokens": int(run.steps["padding"].sum())}


def _waits(emissions: _Emissions, rounds: Rounds) -> Metrics:
    """From a request's last emission to the start of its round, by the round's block size."""
    gaps = emissions.start_s[1:] - emissions.time_s[:-1]
    figures: dict[str, float | None] = {}
    for size in (AR, *rounds.block_sizes):
        waits = gaps[(emissions.block_size[1:] == size) & ~emissions.last[:-1]] * 1e3
        figures[f"mean_wait_ms_{size}"] = float(waits.mean()) if len(waits) else None
        figures[f"max_wait_ms_{size}"] = float(waits.max()) if len(waits) else None
    return figures


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
