"""Serves many requests with random arrivals, lengths, temperatures and cancellations, and looks for what leaks.

usage: soak.py MODEL REQUESTS SECONDS OUT.json [POLICY [CONTEXT]]     TOY=1: a tiny model on a CPU
SEED draws other requests. A MODEL random:smollm2-135m has that shape and random weights, with :4 behind it 4 layers.
Prompts and outputs have up to half of CONTEXT tokens. It is over after so many SECONDS of serving: an eighth before
that nobody is sent any more, and who is not answered at the end is cut, and stuck if it held pages and got nowhere in
all that time. OUT.json is there from the first seconds on, ``complete`` or not. Exits with 1 where anything leaked,
was stuck or got no answer.
"""

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recguide.engine import smollm2
from recguide.engine.environment import machine_of
from recguide.engine.loading import open_model
from recguide.engine.model import Decoder, ModelConfig
from recguide.engine.policyof import policy_of
from recguide.engine.requests import Live, Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.shapes import SHAPES, add_random_draft_adapter, random_decoder
from recguide.sim.memory import Limits
from recguide.traces.documents import as_json, write_json

GRID = (4, 8, 16, 32)
TOY = ModelConfig("toy", 24, 2, 6, 2, 8, 40, 12, 1e4, 1e-5, False, 512, 3, (2, 7))
IN_FLIGHT, RUNNING = 96, 64
EVERY_S = 1.0 if os.environ.get("TOY") else 5.0
"""Seconds between looks."""


def decoder_of(name: str) -> Decoder:
    """The model, with an adapter."""
    if os.environ.get("TOY"):
        return random_decoder(TOY, "cpu", torch.float32, 0)
    kind, _, shape = name.partition(":")
    if kind == "random":
        layers = int(shape.partition(":")[2] or smollm2.CONFIG.num_layers)
        decoder = random_decoder(replace(smollm2.CONFIG, num_layers=layers), "cuda", torch.bfloat16, 0)
        add_random_draft_adapter(decoder)
        return decoder
    return open_model(name, None if name in SHAPES else name, "cuda", "bf16").decoder


class Soak:
    """Requests as they come and go."""

    def __init__(self, engine: Engine, requests: int, seconds: float) -> None:
        self.engine, self.requests, self.started = engine, requests, time.monotonic()
        self.until = self.started + seconds * 7 / 8
        self.end = self.started + seconds
        self.rng = np.random.default_rng(int(os.environ.get("SEED", "0")))
        self.live: list[tuple[Live, int]] = []
        self.moved: dict[int, tuple[int, float]] = {}
        """What each request that holds pages had, by its number, and since when."""
        self.sent = self.longest_stay = 0
        self.longest_still = 0.0

    @property
    def sending(self) -> bool:
        """Whether more are to come."""
        return self.sent < self.requests and time.monotonic() < self.until

    def send(self) -> None:
        """Some requests arrive."""
        rng, context = self.rng, self.engine.max_context
        while self.sending and self.engine.in_flight < IN_FLIGHT and rng.random() < 0.7:
            prompt = rng.integers(4, self.engine.decoder.config.vocab_size, int(rng.integers(1, context // 2))).tolist()
            # half of them end at their limit alone
            eos_ids = None if rng.random() < 0.5 else ()
            heat = float(rng.choice([0.0, 0.0, 0.8]))
            wish = Wish(int(rng.integers(1, context // 2)), heat, self.sent, eos_ids)
            self.live.append((self.engine.add(prompt, wish), self.engine.steps))
            self.sent += 1

    def leave(self) -> None:
        """Forget who is finished, and cancel somebody now and then."""
        steps = self.engine.steps
        self.longest_stay = max([self.longest_stay, *(steps - since for _, since in self.live)])
        self.live = [pair for pair in self.live if pair[0].finish_reason is None]
        if self.live and self.rng.random() < 0.05:
            self.engine.cancel(self.live.pop(int(self.rng.integers(len(self.live))))[0])

    def look(self) -> None:
        """See who has got further."""
        now, before = time.monotonic(), self.moved
        self.moved = {}
        for live in (live for live, _ in self.live if len(live.pages)):
            have = live.done + len(live.tokens)
            known = before.get(live.number, (-1, now))
            self.moved[live.number] = known if known[0] == have else (have, now)
            self.longest_still = max(self.longest_still, now - self.moved[live.number][1])

    def cut(self) -> dict[str, int]:
        """End whoever is still there, and say how many there were and how many were stuck."""
        self.look()
        left = [live for live, _ in self.live if live.finish_reason is None]
        stuck = sum(since <= self.until for _, since in self.moved.values())
        for live in left:
            self.engine.cancel(live)
        return {"cut": len(left), "stuck": stuck}


def resident_bytes() -> int:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Samples:
    """What was seen every few seconds, and what that comes to."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.seen = engine, []
        self.last, self.tokens, self.steps = time.monotonic(), 0, 0

    def take(self, sending: bool) -> bool:
        """Look if it is time; whether it was."""
        passed, totals = time.monotonic() - self.last, self.engine.log.totals
        if passed < EVERY_S:
            return False
        on_gpu, pool = self.engine.decoder.device.type == "cuda", self.engine.scheduler.pool
        self.seen.append(
            {
                "sending": sending,
                "tokens_per_s": round((totals.output_tokens - self.tokens) / passed, 1),
                "steps_per_s": round((totals.steps - self.steps) / passed, 1),
                "device_bytes": torch.cuda.memory_allocated() if on_gpu else 0,
                "reserved_bytes": torch.cuda.memory_reserved() if on_gpu else 0,
                "resident_bytes": resident_bytes(),
                "pages_in_use": pool.num_pages - pool.num_free,
                "graphs": len(self.engine.forwards.captured),
            }
        )
        self.last, self.tokens, self.steps = time.monotonic(), totals.output_tokens, totals.steps
        return True

    def thirds(self) -> dict[str, Any]:
        """Means of the first third and of the last one, of the time in which requests were sent, less its beginning."""
        steady = [sample for sample in self.seen if sample["sending"]][1:]
        third = len(steady) // 3
        if not third:
            return {}
        names = [name for name in steady[0] if name != "sending"]
        first, last = (
            {name: round(float(np.mean([sample[name] for sample in part])), 1) for name in names}
            for part in (steady[:third], steady[-third:])
        )
        ratio = {name: round(last[name] / first[name], 4) for name in names if first[name]}
        return {"first_third": first, "last_third": last, "last_over_first": ratio}


def soak(engine: Engine, requests: int, seconds: float, write: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Serve until everybody is answered or the time is up; what is known is written every few seconds."""
    run, samples = Soak(engine, requests, seconds), Samples(engine)
    while (run.sending or engine.in_flight) and time.monotonic() < run.end:
        run.send()
        if not engine.in_flight:
            continue
        engine.step()
        run.leave()
        if engine.steps % 50 == 0:
            engine.check()
            run.look()
        if samples.take(run.sending):
            write(told(run, samples))
    cut = run.cut()
    engine.check()
    return told(run, samples, **cut)


def told(run: Soak, samples: Samples, **cut: int) -> dict[str, Any]:
    """What is known so far."""
    engine = run.engine
    pool, totals = engine.scheduler.pool, engine.log.totals
    return {
        "complete": bool(cut),
        "sent": run.sent,
        "finished": dict(totals.finished),
        "unanswered": run.sent - sum(totals.finished.values()),
        **cut,
        "leaked_pages": pool.num_pages - pool.num_free if cut else None,
        "preemptions": engine.scheduler.preemptions,
        "longest_stay_steps": run.longest_stay,
        "longest_standstill_s": round(run.longest_still, 2),
        "steps": engine.steps,
        "output_tokens": totals.output_tokens,
        "seconds": round(time.monotonic() - run.started, 1),
        **samples.thirds(),
        "samples": samples.seen,
    }


def main() -> None:
    """As the command line says."""
    name, requests, seconds, path = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    policy = sys.argv[5] if len(sys.argv) > 5 else "window"
    decoder = decoder_of(name)
    context = min(int(sys.argv[6]) if len(sys.argv) > 6 else 1024, decoder.config.max_context)
    # a third of the pages that the load could use, so that requests lose theirs now and then
    limits = Limits(max_running=RUNNING, kv_pages=RUNNING * context // 16 // 3)
    config = EngineConfig(GRID, limits, context, keep_log=False)
    engine = Engine(decoder, policy_of(policy, GRID, decoder.config.name, None), config)
    about = {"model": name, "policy": policy, "context": context, **machine_of(decoder.device)}
    found = soak(engine, requests, seconds, lambda known: write_json(path, {**about, **known}))
    write_json(path, {**about, **found})
    print(as_json({**about, **{key: value for key, value in found.items() if key != "samples"}}))
    sys.exit(1 if found["leaked_pages"] or found["unanswered"] or found["stuck"] else 0)


if __name__ == "__main__":
    main()
