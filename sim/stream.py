"""The figures of a run that is too long to be kept: memory grows with the requests in flight, not with their number."""

from dataclasses import dataclass

from recguide.sim.arrivals import Arrival, Clients
from recguide.sim.figures import Figures, percentile_name
from recguide.sim.log import PREFILL_STEP, Step
from recguide.sim.rounds import AR
from recguide.sim.sketch import Sketch
from recguide.sim.steady import Mark, Steady


@dataclass(slots=True)
class _Flying:
    """A request in flight."""

    sent_s: float
    output_tokens: int
    started_s: float | None = None
    first_s: float | None = None
    last_s: float = 0.0
    rounds: int = 0
    tokens: int = 0
    """Of its rounds with a draft."""


class Stream:
    """Takes what happens as ``recguide.sim.log.Log`` does, adds it up, and forgets it."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        self.flying: dict[int, _Flying] = {}
        self.sketches = {name: Sketch() for name in ("ttft", "tpot", "itl", "e2el", "queue", "client_queue")}
        self.num_sent = self.completed = self.good = self.num_steps = 0
        self.input_tokens = self.output_tokens = 0
        self.first_sent_s = self.last_s = 0.0
        self.in_flight_s = 0.0
        self.most_in_flight = self.most_pages = 0
        self.steps = dict.fromkeys(("prefill", "decode", "draft", "verify", "queries", "prompt", "padding"), 0)
        self.busy_s = self.prefill_s = self.outside_s = 0.0
        self.blocks: dict[int, list[int]] = {}
        """Rounds and tokens of requests, by block size."""
        self.macro = Sketch()
        self.steady: Steady | None = None

    def watch(self, clients: Clients) -> None:
        """These are the clients whose requests are told of."""
        self.steady = Steady(clients)

    def send(self, arrival: Arrival, now: float) -> int:
        """A request is sent; gives its number."""
        sent = self.num_sent
        self.first_sent_s = now if sent == 0 else self.first_sent_s
        self.num_sent += 1
        self.input_tokens += arrival.prompt_tokens
        self.output_tokens += arrival.output_tokens
        self.sketches["client_queue"].add(now - arrival.arrival_s)
        self.flying[sent] = _Flying(now, arrival.output_tokens)
        if self.steady is not None:
            self.steady.send(now)
        return sent

    def add_step(self, step: Step) -> None:
        """A step starts."""
        self.num_steps += 1
        prefill, counts = step.block_size == PREFILL_STEP, self.steps
        self.most_in_flight = max(self.most_in_flight, step.in_flight)
        self.busy_s += step.seconds
        self.prefill_s += step.seconds * prefill
        self.outside_s += step.seconds * step.outside
        counts["prefill"] += prefill
        counts["decode"] += step.block_size == AR
        counts["verify"] += step.block_size > AR and step.query_tokens > 0
        counts["draft"] += step.draft_tokens > 0
        counts["prompt" if prefill else "queries"] += step.query_tokens + step.draft_tokens
        counts["padding"] += step.padding

    def add_pages(self, pages: int) -> None:
        """So many KV pages are in use during the current step."""
        self.most_pages = max(self.most_pages, pages)

    def start(self, sent: int, now: float) -> None:
        """A step takes up a request's prefill, or a part of it."""
        request = self.flying[sent]
        if request.started_s is None:
            request.started_s = now
            self.sketches["queue"].add(now - request.sent_s)

    def emit(self, requests: list[int], tokens: list[int], block_sizes: list[int], now: float) -> None:
        """The current step ended, and these requests emitted."""
        if self.steady is not None:
            self.steady.emit(sum(tokens), now)
        for sent, count, block_size in zip(requests, tokens, block_sizes, strict=True):
            request = self.flying[sent]
            if request.first_s is None:
                request.first_s = now
                self.sketches["ttft"].add(now - request.sent_s)
                if self.steady is not None:
                    self.steady.start(sent, now)
            else:
                self.sketches["itl"].add(now - request.last_s)
            request.last_s = now
            if block_size != PREFILL_STEP:
                rounds = self.blocks.setdefault(block_size, [0, 0])
                rounds[0] += 1
                rounds[1] += count
            if block_size > AR:
                request.rounds += 1
                request.tokens += count

    def finish(self, sent: int, now: float) -> None:
        """A request has its last token."""
        request = self.flying.pop(sent)
        self.completed += 1
        self.last_s = now
        took, ttft = now - request.sent_s, (request.first_s or now) - request.sent_s
        self.in_flight_s += took
        self.sketches["e2el"].add(took)
        tpot = (took - ttft) / (request.output_tokens - 1) if request.output_tokens > 1 else 0.0
        if request.output_tokens > 1:
            self.sketches["tpot"].add(tpot)
        if request.rounds:
            self.macro.add(request.tokens / request.rounds)
        found = {"ttft": ttft, "tpot": tpot, "e2el": took}
        good = all(found[name] * 1e3 <= limit for name, limit in self.figures.goodput.items())
        self.good += good
        if self.steady is not None:
            self.steady.finish(good, now)

    def metrics(
        self, preemptions: int, recomputed_tokens: int, reused_tokens: int | None, cut: int, closed: bool
    ) -> dict[str, float | int | None]:
        """The figures that a stream can have, named as those of a whole run."""
        duration = self.last_s - self.first_sent_s
        return {
            **self._load(duration),
            **self._steady(closed),
            **self._latencies(closed),
            "max_kv_pages": self.most_pages or None,
            "preemptions": preemptions,
            "recomputed_tokens": recomputed_tokens,
            "reused_tokens": reused_tokens,
            **self._forwards(),
            **self._acceptance(cut),
        }

    def _load(self, duration: float) -> dict[str, float | int | None]:
        whole = self.output_tokens + self.input_tokens
        return {
            "num_prompts": self.num_sent,
            "completed": self.completed,
            "total_input_tokens": self.input_tokens,
            "total_output_tokens": self.output_tokens,
            "max_concurrent_requests": self.most_in_flight,
            "duration": duration,
            "concurrency": _ratio(self.in_flight_s, duration),
            "request_throughput": _ratio(self.completed, duration),
            "output_throughput": _ratio(self.output_tokens, duration),
            "total_token_throughput": _ratio(whole, duration),
            "output_throughput_per_request": _ratio(self.output_tokens, self.in_flight_s),
            "request_goodput": _ratio(self.good, duration) if self.figures.goodput else None,
            "good_requests": self.good if self.figures.goodput else None,
        }

    def _steady(self, closed: bool) -> dict[str, float | int | None]:
        window = self.steady.window(closed) if self.steady is not None else None
        start, end = window or (Mark(), Mark())
        seconds, tokens, good = end.time_s - start.time_s, end.tokens - start.tokens, end.good - start.good
        return {
            "steady_duration": seconds,
            "steady_output_tokens": tokens,
            "steady_output_throughput": _ratio(tokens, seconds),
            "steady_output_throughput_per_request": _ratio(tokens, end.in_flight_s - start.in_flight_s),
            "steady_request_goodput": _ratio(good, seconds) if self.figures.goodput else None,
        }

    def _latencies(self, closed: bool) -> dict[str, float | int | None]:
        found: dict[str, float | int | None] = {}
        for name, sketch in self.sketches.items():
            known = sketch if name != "client_queue" or not closed else Sketch()
            values = {"mean": known.mean, "median": known.percentile(50), "std": known.std}
            values |= {percentile_name(each): known.percentile(each) for each in self.figures.percentiles}
            found |= {f"{how}_{name}_ms": None if value is None else value * 1e3 for how, value in values.items()}
        return found

    def _forwards(self) -> dict[str, float | int | None]:
        counts = self.steps
        return {
            **{f"{kind}_forwards": counts[kind] for kind in ("prefill", "decode", "draft", "verify")},
            "forwards": counts["decode"] + counts["draft"] + counts["verify"],
            "query_tokens": counts["queries"],
            "prefill_query_tokens": counts["prompt"],
            "padding_query_tokens": counts["padding"],
            "prefill_share": _ratio(self.prefill_s, self.busy_s),
            "extrapolated_share": _ratio(self.outside_s, self.busy_s),
        }

    def _acceptance(self, cut: int) -> dict[str, float | int | None]:
        drafted = {size: rounds for size, rounds in self.blocks.items() if size > AR}
        count, tokens = (sum(rounds[i] for rounds in drafted.values()) for i in (0, 1))
        made = sum((size - 1) * rounds[0] for size, rounds in drafted.items())
        every = sum(rounds[0] for rounds in self.blocks.values())
        return {
            "num_rounds": count,
            "cut_rounds": cut,
            "accept_length": _ratio(tokens, count),
            "matched_length": _ratio(tokens - count + cut, count),
            "accept_length_macro": self.macro.mean,
            "draft_acceptance_rate": _ratio(tokens - count + cut, made),
            **{f"block_share_{size}": _ratio(rounds[0], every) for size, rounds in self.blocks.items()},
        }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
