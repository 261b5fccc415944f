"""Rounds that SGLang served, drafted and verified once more by our own engine behind the same tokens.

    python benchmarks/served_rounds.py smollm2-135m campaign/fixed_16-*.figures.json --adapter smollm2-135m \
        --dataset-path prompts.jsonl [--dtype fp32] [--limit ROUNDS] [--output rounds.json]

Outputs of two servers part at ties in bf16, and what is accepted behind that is of another text. So the output that was
served stands as it is: behind as much of it as was there before each round, our engine's own forwards draft a block of
the size that the round had and verify it, and what they emit is held against what was served. ``drafts`` is what the
served text itself makes of these drafts, so that a tie that our verifier breaks otherwise does not count. And each text
is read once: ``largest_gap`` is by how much another token is above a served one, behind the same tokens. Reads the
`.figures.json` of `recguide bench sglang` for outputs, and the measurement beside it for rounds. Rounds of a
continuation branch, whose draft was made without the seed, and AR steps are left out, and counted.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recguide.engine.bench_load import prompts_of
from recguide.engine.bench_outputs import Outputs, read_outputs
from recguide.engine.environment import machine_of
from recguide.engine.forwards import Forwards
from recguide.engine.linear import LinearWay
from recguide.engine.loading import LoadedModel, open_model
from recguide.engine.outcomes import Change
from recguide.engine.pages import PagedCache, PagePool
from recguide.engine.planning import Piece, verifying
from recguide.engine.prefilling import Prefills
from recguide.engine.requests import Live, Roster, Wish
from recguide.engine.rereading import Reading, Shape, Text, reread
from recguide.engine.scores import Unmade
from recguide.engine.ways import AsFound, Setup
from recguide.sim.batching import BUCKETED
from recguide.sim.measurement import read_measurement
from recguide.sim.overlap import Outcome
from recguide.sim.policies import Fixed
from recguide.sim.rounds import AR
from recguide.traces.documents import read_json, write_json

TOGETHER, PAGE_SIZE = 8, 16
"""Requests that are read at a time, and tokens of a page."""


@dataclass(frozen=True, slots=True)
class Round:
    """One that was served: output tokens before it, its block size, and what it emitted."""

    position: int
    block_size: int
    emitted: int
    continued: bool
    """Whether a continuation branch had drafted it."""


@dataclass(slots=True)
class Request:
    """A prompt, what was answered, and in which rounds."""

    prompt: list[int]
    output: list[int]
    rounds: list[Round] = field(default_factory=list)


def requests_of(outputs: Outputs, prompts: Sequence[list[int]]) -> list[Request]:
    """Those of a run, with the rounds of its measurement."""
    figures = outputs.path
    outputs.check(prompts, max(map(len, outputs.tokens)))
    found = [Request(prompts[row], list(told)) for row, told in zip(outputs.rows, outputs.tokens, strict=True)]
    run = read_measurement(figures.parent / read_json(figures)["measurement"]).run
    lengths = [(len(each.prompt), len(each.output)) for each in found]
    if lengths != list(zip(run.prompt_tokens.tolist(), run.output_tokens.tolist(), strict=True)):
        raise SystemExit(f"{figures}: its requests are not in the order of its measurement's")
    outcomes = run.emission_outcome if run.emission_outcome is not None else np.zeros(len(run.emission_tokens), int)
    columns = run.emission_request, run.emission_block_size, run.emission_tokens, outcomes
    done, before = [0] * len(found), [0] * len(found)
    for request, size, emitted, outcome in zip(*(column.tolist() for column in columns), strict=True):
        if size:
            continued = bool(before[request] & Outcome.CONTINUATION_REUSED)
            found[request].rounds.append(Round(done[request], size, emitted, continued))
        done[request], before[request] = done[request] + emitted, outcome
    return found


Told = tuple[Round, Change, list[int], list[int]]
"""A round, what became of it here, the tokens that were served, and the output from there on."""


class Replayer:
    """Our engine's forwards over a few requests."""

    def __init__(self, model: LoadedModel, requests: Sequence[Request]) -> None:
        decoder = model.decoder
        longest = max(len(each.prompt) + len(each.output) for each in requests) + 64
        self.pages = -(-longest // PAGE_SIZE)
        room = TOGETHER * self.pages
        cache = PagedCache(decoder.config, room, PAGE_SIZE, TOGETHER, 0, decoder.device, decoder.dtype)
        self.forwards = Forwards(decoder, cache)
        sizes = tuple(sorted({one.block_size for each in requests for one in each.rounds} - {AR}))
        self.setup = Setup(self.forwards, AsFound(), sizes, longest)
        self.ways = {size: LinearWay(self.setup, Fixed(size), BUCKETED) for size in sizes}

    def compare(self, requests: Sequence[Request]) -> Iterator[Told]:
        """Each round, and what became of it here."""
        pool = PagePool(TOGETHER * self.pages)
        lives = [Live(row, each.prompt, Wish(len(each.output)), frozenset(), 0) for row, each in enumerate(requests)]
        for live in lives:
            pool.resize(live.pages, self.pages)
        Prefills(self.setup, 0).run([(live, len(live.prompt)) for live in lives])
        for number in range(max(len(each.rounds) for each in requests)):
            taken = [(live, each) for live, each in zip(lives, requests, strict=True) if number < len(each.rounds)]
            for size in {each.rounds[number].block_size for _, each in taken}:
                same = [(live, each) for live, each in taken if each.rounds[number].block_size == size]
                yield from self._round(number, size, same)

    def _round(self, number: int, size: int, taken: Sequence[tuple[Live, Request]]) -> Iterator[Told]:
        running, known = Roster(), []
        for live, each in taken:
            at = each.rounds[number].position
            live.tokens, live.tokens_left = each.output[:at], len(each.output) - at
            known.append(each.output[at : at + each.rounds[number].emitted])
        running.extend(live for live, _ in taken)
        changes = self._drafted(size, running)
        # keys of what was served, where something else was accepted
        other = [
            Piece(live, live.cached, verifying(len(told)), np.array([live.tokens[-1], *told[:-1]]))
            for live, told, change in zip(running, known, changes, strict=True)
            if change is None or list(change.tokens)[: len(told)] != told
        ]
        if other:
            self.forwards.read(self.forwards.run(other))
        for (_, each), told, change in zip(taken, known, changes, strict=True):
            if change is not None:
                one = each.rounds[number]
                yield one, change, told, each.output[one.position :]

    def _drafted(self, size: int, running: Roster) -> Sequence[Change | None]:
        if size == AR:
            return [None] * len(running)
        way = self.ways[size]
        changes: list[Change] = way.run(way.plan(running, 0))
        return changes


@dataclass(slots=True)
class Compared:
    """Tokens of rounds: as served, as emitted here, and as the served text accepts our drafts."""

    served: list[int] = field(default_factory=list)
    ours: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    """Whether the tokens are the same, as far as both emit any."""

    def add(self, one: Round, change: Change, told: Sequence[int], ahead: Sequence[int]) -> None:
        """A round, the tokens that were served, and the rest of the output from there on."""
        both = min(len(told), len(change.tokens))
        self.served.append(one.emitted)
        self.ours.append(len(change.tokens))
        self.same.append(list(change.tokens)[:both] == list(told)[:both])
        assert isinstance(change.verified, Unmade)
        draft = change.verified.made(change.place).tokens[1:].tolist()
        matched = next((at for at, (x, y) in enumerate(zip(draft, ahead, strict=False)) if x != y), len(draft))
        self.drafts.append(min(matched + 1, len(ahead)))

    def told(self) -> dict[str, Any]:
        """Shares of rounds, and means."""
        served, ours, drafts = (np.array(each) for each in (self.served, self.ours, self.drafts))
        return {
            "compared": len(served),
            "equal": float((served == ours).mean()),
            "equal_drafts": float((served == drafts).mean()),
            "same_tokens": float(np.mean(self.same)),
            "accept_length_served": float(served.mean()),
            "accept_length_ours": float(ours.mean()),
            "accept_length_drafts": float(drafts.mean()),
            "ratio": float(ours.mean() / served.mean()),
            "ratio_drafts": float(drafts.mean() / served.mean()),
        }


def figures_of(model: LoadedModel, requests: Sequence[Request], limit: int | None) -> dict[str, Any]:
    """What is told of a run."""
    rounds, requests_read, found, replayer = 0, 0, Compared(), Replayer(model, requests)
    for first in range(0, len(requests), TOGETHER):
        if limit is not None and len(found.served) >= limit:
            break
        group = requests[first : first + TOGETHER]
        rounds, requests_read = rounds + sum(len(each.rounds) for each in group), requests_read + len(group)
        for one, change, told, ahead in replayer.compare(group):
            if not one.continued:
                found.add(one, change, told, ahead)
    about = {"requests": requests_read, "rounds": rounds, "left_out": rounds - len(found.served)}
    return {**about, **found.told()}


def texts_of(model: LoadedModel, outputs: Outputs, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Whether every served token is the best one behind those before it, and by how much another one is better."""
    gaps = []
    texts = [Text(prompts[row], told) for row, told in zip(outputs.rows, outputs.tokens, strict=True)]
    for text in texts:
        reading = Reading(model.decoder, partial(reread, model.decoder), [text], Shape(1, 64))
        others = reading.runners_up(0, text.output)
        gaps.append(-reading.gaps(0, range(len(text.output)), text.output, others))
    found = np.concatenate(gaps)
    return {
        "tokens": len(found),
        "best_tokens": float((found <= 0).mean()),
        "largest_gap": float(found.max(initial=0)),
        "largest_gap_of_outputs": sorted(round(float(gap.max(initial=0)), 4) for gap in gaps),
    }


def main() -> None:
    """Compare runs, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("figures", nargs="+", type=Path)
    parser.add_argument("--adapter")
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--dataset-path", action="append", type=Path)
    load.add_argument("--random-input-len", type=int, help="of the random prompts of seed 0")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--limit",
        type=int,
        help="end behind the group of requests in which so many rounds are over; 0 reads texts alone",
    )
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    # as what served them drafts
    model = open_model(given.model, given.adapter, given.device, given.dtype, merged_drafts=False)
    prompts = prompts_of(model, given.dataset_path, given.random_input_len)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    origin = {**model.named, "dtype": given.dtype, **machine_of(model.decoder.device)}
    origin |= {"command": shlex.join(["python", *sys.argv]), "created": created}
    runs = []
    for path in given.figures:
        started, outputs = time.process_time(), read_outputs(path)
        outputs.check(prompts, max(map(len, outputs.tokens)))
        with torch.no_grad():
            found = texts_of(model, outputs, prompts)
            if given.limit != 0:
                found |= figures_of(model, requests_of(outputs, prompts), given.limit)
        seconds = round(time.process_time() - started)
        point = {"policy": outputs.policy, "concurrency": outputs.concurrency}
        runs.append({**point, **found, "cpu_s": seconds, "served_by": outputs.about})
        print(json.dumps(runs[-1]), flush=True)
        if given.output is not None:
            write_json(given.output, {**origin, "runs": runs})


if __name__ == "__main__":
    main()
