"""What the server tells Prometheus: counts and latencies of requests, and where the engine stands."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from recguide.engine.serving import Engine

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics")


class Metrics:
    """Everything under /metrics, in a registry of its own."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self._responses = Counter(
            "recguide_http_responses", "Responses by path and status", ["path", "status"], registry=self.registry
        )
        self.disconnects = Counter(
            "recguide_client_disconnects",
            "Clients that left before their answer's end, or took nothing of it",
            registry=self.registry,
        )
        self.first_token = Histogram(
            "recguide_time_to_first_token_seconds",
            "From request to first token",
            registry=self.registry,
            buckets=SECONDS,
        )
        self.latency = Histogram(
            "recguide_request_latency_seconds", "From request to last token", registry=self.registry, buckets=SECONDS
        )
        self.registry.register(EngineCollector(engine))
        ProcessCollector(registry=self.registry)

    def responded(self, path: str, status: int) -> None:
        """One more response; paths that are none of ours are counted together."""
        known = next((one for one in PATHS if path == one or path.startswith(one + "/")), "other")
        self._responses.labels(known, status).inc()

    def text(self) -> bytes:
        """All of it as Prometheus reads it."""
        return generate_latest(self.registry)


class EngineCollector(Collector):
    """Reads the engine when asked; between two of its steps or in the middle of one, whole numbers all the same."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[Metric]:
        """Gauges of now, counters since the start."""
        for name, what, value in self._now():
            yield GaugeMetricFamily(f"recguide_{name}", what, value)
        for name, what, value in self._so_far():
            yield CounterMetricFamily(f"recguide_{name}", what, value)
        finished = CounterMetricFamily(
            "recguide_requests_finished",
            "Requests by why the engine ended them; a stop string cancels, too",
            labels=["reason"],
        )
        for reason, count in dict(self.engine.log.totals.finished).items():
            finished.add_metric([reason], count)
        yield finished

    def _now(self) -> list[tuple[str, str, float]]:
        scheduler = self.engine.scheduler
        return [
            ("requests_running", "Requests that take part in rounds", len(scheduler.running)),
            ("requests_waiting", "Requests before their prefill's end", len(scheduler.waiting)),
            ("kv_pages", "KV pages", scheduler.pool.num_pages),
            ("kv_pages_free", "KV pages that nobody holds", scheduler.pool.num_free),
        ]

    def _so_far(self) -> list[tuple[str, str, float]]:
        totals, scheduler = self.engine.log.totals, self.engine.scheduler
        return [
            ("prompt_tokens", "Prompt tokens of all requests", totals.prompt_tokens),
            ("output_tokens", "Tokens emitted", totals.output_tokens),
            ("steps", "Prefills and rounds", totals.steps),
            ("step_seconds", "Time in these", totals.seconds),
            ("drafted_rounds", "Drafts that were verified, one a request and round", totals.rounds),
            ("drafted_round_tokens", "Tokens that these emitted", totals.round_tokens),
            ("preemptions", "Requests that lost their pages", scheduler.preemptions),
            ("recomputed_tokens", "Tokens prefilled again after that", scheduler.recomputed_tokens),
        ]
