"""Serves many requests with random arrivals, lengths, temperatures and cancellations, and looks for what leaks.

usage: soak.py MODEL REQUESTS SECONDS OUT.json [POLICY [CONTEXT]]     TOY=1: a tiny model on a CPU
A MODEL random:smollm2-135m has that shape and random weights, with :4 behind it 4 layers. Prompts and outputs have up
to half of CONTEXT tokens.
"""

import json
import os
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recguide.engine import smollm2
from recguide.engine.loading import open_model
from recguide.engine.model import Decoder, ModelConfig
from recguide.engine.policyof import policy_of
from recguide.engine.requests import Live, Wish
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.shapes import SHAPES, add_random_draft_adapter, random_decoder
from recguide.sim.memory import Limits

GRID = (4, 8, 16, 32)
TOY = ModelConfig("toy", 24, 2, 6, 2, 8, 40, 12, 1e4, 1e-5, False, 512, 3, (2, 7))
IN_FLIGHT, RUNNING = 96, 64


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
        self.engine, self.requests, self.until = engine, requests, time.monotonic() + seconds
        self.rng = np.random.default_rng(0)
        self.live: list[tuple[Live, int]] = []
        self.sent = self.longest_stay = 0

    @property
    def sending(self) -> bool:
        """Whether more are to come."""
        return self.sent < self.requests and time.monotonic() < self.until

    def send(self) -> None:
        """Some requests arrive."""
        rng, context = self.rng, self.engine.max_context
        while self.sending and self.engine.in_flight < IN_FLIGHT and rng.random() < 0.7:
            prompt = rng.integers(4, self.engine.decoder.config.vocab_size, int(rng.integers(1, context // 2))).tolist()
            wish = Wish(int(rng.integers(1, context // 2)), float(rng.choice([0.0, 0.0, 0.8])), self.sent)
            self.live.append((self.engine.add(prompt, wish), self.engine.steps))
            self.sent += 1

    def leave(self) -> None:
        """Forget who is finished, and cancel somebody now and then."""
        steps = self.engine.steps
        self.longest_stay = max([self.longest_stay, *(steps - since for _, since in self.live)])
        self.live = [pair for pair in self.live if pair[0].finish_reason is None]
        if self.live and self.rng.random() < 0.05:
            self.engine.cancel(self.live.pop(int(self.rng.integers(len(self.live))))[0])


def soak(engine: Engine, requests: int, seconds: float) -> dict[str, Any]:
    """Serve until everybody is answered; what was seen every five seconds."""
    run, seen, started = Soak(engine, requests, seconds), [], time.monotonic()
    last, before = started, 0
    while run.sending or engine.in_flight:
        run.send()
        if not engine.in_flight:
            continue
        engine.step()
        run.leave()
        if engine.steps % 50 == 0:
            engine.check()
        if (passed := time.monotonic() - last) > 5:
            total = engine.log.totals.output_tokens
            device = torch.cuda.memory_allocated() if engine.decoder.device.type == "cuda" else 0
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            seen.append({"tokens_per_s": round((total - before) / passed, 1), "device_bytes": device, "rss_kb": rss})
            last, before = time.monotonic(), total
    engine.check()
    pool, totals = engine.scheduler.pool, engine.log.totals
    return {
        "sent": run.sent,
        "finished": dict(totals.finished),
        "unanswered": run.sent - sum(totals.finished.values()),
        "leaked_pages": pool.num_pages - pool.num_free,
        "preemptions": engine.scheduler.preemptions,
        "longest_stay_steps": run.longest_stay,
        "steps": engine.steps,
        "output_tokens": totals.output_tokens,
        "seconds": round(time.monotonic() - started, 1),
        "every_5_s": seen,
    }


def main() -> None:
    """As the command line says; exits with 1 where anything leaked or was left unanswered."""
    name, requests, seconds, path = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    policy = sys.argv[5] if len(sys.argv) > 5 else "window"
    decoder = decoder_of(name)
    context = min(int(sys.argv[6]) if len(sys.argv) > 6 else 1024, decoder.config.max_context)
    # a third of the pages that the load could use, so that requests lose theirs now and then
    limits = Limits(max_running=RUNNING, kv_pages=RUNNING * context // 16 // 3)
    config = EngineConfig(GRID, limits, context, keep_log=False)
    engine = Engine(decoder, policy_of(policy, GRID, decoder.config.name, None), config)
    found = {"model": name, "policy": policy, **soak(engine, requests, seconds)}
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({key: value for key, value in found.items() if key != "every_5_s"}))
    sys.exit(1 if found["leaked_pages"] or found["unanswered"] else 0)


if __name__ == "__main__":
    main()
