"""Latencies of a replay, the service levels they meet, and how sure the figures are (docs/simulate.md)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.sim.figures import Figures, percentile_name
from recguide.sim.log import Replay
from recguide.sim.windows import steady_window

Seconds = NDArray[np.float64]
Metrics = Mapping[str, float | int | None]
RESAMPLES_AT_ONCE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """Seconds, one entry a request."""

    ttft: Seconds
    tpot: Seconds
    """0 for an output of one token."""
    e2el: Seconds


def latencies_of(run: Replay) -> Latencies:
    """From when each request was sent."""
    decode_s = run.finished_s - run.first_token_s
    tpot = np.where(run.output_tokens > 1, decode_s / np.maximum(run.output_tokens - 1, 1), 0.0)
    return Latencies(run.first_token_s - run.sent_s, tpot, run.finished_s - run.sent_s)


def latency_metrics(run: Replay, gaps: Seconds, figures: Figures) -> Metrics:
    """Their means and percentiles; ``gaps`` are the seconds between two emissions of a request."""
    found = latencies_of(run)
    waited = np.zeros(0) if run.closed else run.sent_s - run.arrival_s
    return {
        **spread("ttft", found.ttft, figures),
        **spread("tpot", found.tpot[run.output_tokens > 1], figures),
        **spread("itl", gaps, figures),
        **spread("e2el", found.e2el, figures),
        **spread("queue", run.started_s - run.sent_s, figures),
        **spread("client_queue", waited, figures),
        **goodput_metrics(run, found, figures),
        **intervals(run, found, figures),
    }


def spread(name: str, seconds: Seconds, figures: Figures) -> Metrics:
    """Mean, median, standard deviation and percentiles in milliseconds; None without any."""
    names = [f"{how}_{name}_ms" for how in ("mean", "median", "std", *map(percentile_name, figures.percentiles))]
    if not len(seconds):
        return dict.fromkeys(names)
    found = [seconds.mean(), np.median(seconds), seconds.std(), *np.percentile(seconds, figures.percentiles)]
    return {name: float(figure) * 1e3 for name, figure in zip(names, found, strict=True)}


def goodput_metrics(run: Replay, found: Latencies, figures: Figures) -> Metrics:
    """Requests per second that meet every service level, in the whole run and in the steady window."""
    if not figures.goodput:
        return {"request_goodput": None, "good_requests": None, "steady_request_goodput": None}
    good = np.ones(len(run.request), np.bool_)
    for name, limit_ms in figures.goodput.items():
        good &= getattr(found, name) * 1e3 <= limit_ms
    duration = float(run.finished_s.max() - run.sent_s.min())
    start, end = steady_window(run) or (0.0, 0.0)
    inside = good & (run.finished_s > start) & (run.finished_s <= end)
    return {
        "request_goodput": int(good.sum()) / duration if duration > 0 else None,
        "good_requests": int(good.sum()),
        "steady_request_goodput": int(inside.sum()) / (end - start) if end > start else None,
    }


def intervals(run: Replay, found: Latencies, figures: Figures) -> Metrics:
    """95% confidence intervals by bootstrap over requests.

    Every policy gets the same resamples of the same requests, so that differences between them are not luck of the
    draw. That of the throughput is the one of tokens per request-second, at the run's mean concurrency.
    """
    if not figures.resamples:
        return {}
    ones, busy_s = np.ones(len(run.request)), run.finished_s - run.sent_s
    duration = float(run.finished_s.max() - run.sent_s.min())
    in_flight = float(busy_s.sum()) / duration if duration > 0 else 0.0
    ratios = {
        "output_throughput": (run.output_tokens * in_flight, busy_s),
        "output_throughput_per_request": (run.output_tokens, busy_s),
        "mean_ttft_ms": (found.ttft * 1e3, ones),
        "mean_tpot_ms": (found.tpot * 1e3, (run.output_tokens > 1).astype(np.float64)),
        "mean_e2el_ms": (found.e2el * 1e3, ones),
    }
    sums = np.stack([column for pair in ratios.values() for column in pair], axis=1)
    resampled = np.concatenate([weights @ sums for weights in resamples(len(run.request), figures)])
    bounds: dict[str, float | None] = {}
    for index, name in enumerate(ratios):
        above, below = resampled[:, 2 * index], resampled[:, 2 * index + 1]
        known = below > 0
        edges = np.percentile(above[known] / below[known], [2.5, 97.5]) if known.any() else (None, None)
        for side, edge in zip(("low", "high"), edges, strict=True):
            bounds[f"{name}_ci_{side}"] = None if edge is None else float(edge)
    return bounds


def resamples(count: int, figures: Figures) -> Iterator[NDArray[np.float64]]:
    """How often each request is in each resample, [resamples, count], some at a time."""
    rng = np.random.default_rng(figures.seed)
    for start in range(0, figures.resamples, RESAMPLES_AT_ONCE):
        size = min(RESAMPLES_AT_ONCE, figures.resamples - start)
        yield rng.multinomial(count, np.full(count, 1 / count), size=size).astype(np.float64)
