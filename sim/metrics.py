"""Figures of a replay, named as vLLM and SGLang name them where they do; docs/simulate.md defines every one."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.sim.replay import PREFILL_STEP, Replay
from recguide.sim.rounds import AR, Ints, Rounds

Metrics = Mapping[str, float | int | None]
"""None where there is nothing to take a figure of, as the acceptance length of a run without drafts."""
Seconds = NDArray[np.float64]


def metrics_of(run: Replay, rounds: Rounds) -> dict[str, float | int | None]:
    """All figures of a run, whole and in its steady window."""
    emissions = _emissions(run)
    return {
        **_load(run),
        **_throughput(run),
        **_steady(run, emissions),
        **_latencies(run, emissions),
        **_forwards(run, emissions),
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
        "failed": 0,
        "total_input_tokens": int(run.prompt_tokens.sum()),
        "total_output_tokens": int(run.output_tokens.sum()),
        "max_concurrent_requests": int(run.steps["in_flight"].max()),
    }


def _throughput(run: Replay) -> Metrics:
    duration = float(run.finished_s.max())
    in_flight_s = float((run.finished_s - run.sent_s).sum())
    tokens = int(run.output_tokens.sum())
    return {
        "duration": duration,
        "concurrency": _ratio(in_flight_s, duration),
        "request_throughput": _ratio(len(run.request), duration),
        "output_throughput": _ratio(tokens, duration),
        "total_token_throughput": _ratio(tokens + int(run.prompt_tokens.sum()), duration),
        "output_throughput_per_request": _ratio(tokens, in_flight_s),
    }


def steady_window(run: Replay) -> tuple[float, float] | None:
    """From the first tokens of the first C requests to the first finish that no new request follows."""
    if len(run.request) < run.concurrency:
        return None
    start = float(run.first_token_s[: run.concurrency].max())
    end = float(np.sort(run.finished_s)[len(run.request) - run.concurrency])
    return (start, end) if end > start else None


def _steady(run: Replay, emissions: _Emissions) -> Metrics:
    start, end = steady_window(run) or (0.0, 0.0)
    tokens = int(emissions.tokens[(emissions.time_s > start) & (emissions.time_s <= end)].sum())
    return {
        "steady_duration": end - start,
        "steady_output_tokens": tokens,
        "steady_output_throughput": _ratio(tokens, end - start),
        "steady_output_throughput_per_request": _ratio(tokens, run.concurrency * (end - start)),
    }


def _latencies(run: Replay, emissions: _Emissions) -> Metrics:
    several = run.output_tokens > 1
    gaps = np.diff(emissions.time_s)[~emissions.last[:-1]]
    decode_s = run.finished_s - run.first_token_s
    return {
        **_spread("ttft", run.first_token_s - run.sent_s),
        **_spread("tpot", decode_s[several] / (run.output_tokens[several] - 1)),
        **_spread("itl", gaps),
        **_spread("e2el", run.finished_s - run.sent_s),
    }


def _spread(name: str, seconds: Seconds) -> Metrics:
    if not len(seconds):
        return dict.fromkeys(f"{how}_{name}_ms" for how in ("mean", "median", "std", "p99"))
    figures = {
        "mean": seconds.mean(),
        "median": np.median(seconds),
        "std": seconds.std(),
        "p99": np.percentile(seconds, 99),
    }
    return {f"{how}_{name}_ms": float(figure) * 1e3 for how, figure in figures.items()}


def _forwards(run: Replay, emissions: _Emissions) -> Metrics:
    sizes, seconds, queries = (run.steps[name] for name in ("block_size", "seconds", "query_tokens"))
    drafted = run.steps["draft_tokens"]
    decodes, verifies, drafts = int((sizes == AR).sum()), int((sizes > AR).sum()), int((drafted > 0).sum())
    decoding = emissions.block_size != PREFILL_STEP
    per_request = np.where(emissions.block_size[decoding] == AR, 1, 2)
    busy_s = float(seconds.sum())
    return {
        "prefill_forwards": int((sizes == PREFILL_STEP).sum()),
        "decode_forwards": decodes,
        "draft_forwards": drafts,
        "verify_forwards": verifies,
        "forwards": decodes + verifies + drafts,
        "tpf": _ratio(int(emissions.tokens[decoding].sum()), int(per_request.sum())),
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
        "accept_length_macro": _macro(emissions.request[drafted], tokens),
        # a cut round lost its verifier's token at least, so all that it emitted are drafts
        "draft_acceptance_rate": _ratio(int(tokens.sum()) - count + cut, int((sizes - 1).sum())),
        **_waste(run, emissions),
        **_block_shares(emissions, rounds),
        **_waits(emissions, rounds),
    }


def _cut_rounds(run: Replay, emissions: _Emissions, rounds: Rounds) -> int:
    """Rounds that emitted less than they accepted; only a request's last round can."""
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
