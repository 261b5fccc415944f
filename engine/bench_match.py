"""The steps behind `recguide bench match`."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import typer
from rich.table import Table

from recguide.engine.adapters import drafts_merged
from recguide.engine.bench_match_command import MatchOptions
from recguide.engine.bench_outputs import Outputs, read_outputs
from recguide.engine.environment import command_line, machine_of
from recguide.engine.loading import LoadedModel, open_model
from recguide.engine.matching import Run, divergences, judged, told_of
from recguide.engine.measure_command import AGAIN
from recguide.engine.policyof import costs_of, policy_of
from recguide.engine.requests import Live, Wish
from recguide.engine.rereading import Reading, Ruler, Shape, Text, reread
from recguide.engine.served_reading import reread_served
from recguide.engine.serving import EngineConfig
from recguide.engine.turning import TurningEngine
from recguide.sim.batching import batching_named
from recguide.sim.costs import CostModel
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy
from recguide.sim.tables import screen
from recguide.traces.checks import require
from recguide.traces.datasets import Prompt, prompt_set_sha256, read_prompts
from recguide.traces.documents import write_json
from recguide.traces.errors import InputError

REFERENCE = "ar"
COLUMNS = {
    "policy": "policy",
    "concurrency": "C",
    "requests": "requests",
    "equal": "equal",
    "first_divergence_p50": "first\ndivergence",
    "largest_gap": "largest\ngap",
    "largest_exact_gap": "in fp32",
    "above_usual_noise": "above 99.9 %\nof noise",
    "above_noise": "above\nall noise",
}
"""Of the table, by the names of the file."""


@dataclass(slots=True)
class Bench:
    """Everything that the runs need."""

    options: MatchOptions
    model: LoadedModel
    costs: CostModel | None
    prompts: Sequence[Prompt]
    ids: Sequence[Sequence[int]]
    engine: TurningEngine
    given: Sequence[Outputs]
    """Of other servers; rows are places in ``ids``."""
    started: float
    runs: list[Run] = field(default_factory=list)

    def policy(self, name: str) -> Policy:
        """A fresh policy: one that learns must not remember other runs."""
        return _policy(self.options, self.model, self.costs, name)

    @property
    def late(self) -> bool:
        """Whether no further run is to begin."""
        return time.monotonic() - self.started > self.options.time_limit


def run(options: MatchOptions) -> int:
    """Serve, compare, write; gives the exit code."""
    bench = _prepared(options)
    _say(f"{len(bench.ids)} prompts; the reference is served one by one")
    reference, seconds = _served(bench, REFERENCE, 1, len(bench.ids))
    texts = [Text(prompt, live.tokens) for prompt, live in zip(bench.ids, reference, strict=True)]
    tokens = sum(len(text.output) for text in texts)
    _say(f"{tokens} tokens in {seconds:.1f} s, now they are read again")
    shapes = _shapes(options)
    ruler = _ruler(bench, texts, shapes)
    _say(f"read in {len(shapes)} shapes, and in fp32")
    for outputs in bench.given:
        _judge(bench, ruler, outputs)
    write_json(options.output, document := _document(bench, ruler))
    for name, concurrency in _points(options):
        if bench.late:
            _say("the time is over")
            break
        _run(bench, ruler, name, concurrency)
        write_json(options.output, document := _document(bench, ruler))
    _show(document)
    if any(row["above_noise"] for row in document["runs"]):
        return 1
    return 0 if document["complete"] else AGAIN


def _prepared(options: MatchOptions) -> Bench:
    started = time.monotonic()
    batching, costs = batching_named(options.batching), costs_of(options.profile)
    prompts = read_prompts(options.dataset_path, options.limit)
    given, order = [read_outputs(path) for path in options.outputs], _mixed(prompts)
    points = [(outputs.policy, outputs.concurrency) for outputs in given]
    require(len(set(points)) == len(points), "--outputs", points, "each policy and concurrency once")
    model = open_model(options.model, options.adapter, options.device, options.dtype, options.merge_drafts)
    if model.tokenizer is None:
        raise InputError(f"model {options.model!r}: has no tokenizer, so it cannot read prompts")
    ids = [model.tokenizer.encode_chat(prompt.text) for prompt in prompts]
    given = [_placed(outputs, ids, order, options.output_len) for outputs in given]
    prompts, ids = [prompts[row] for row in order], [ids[row] for row in order]
    policies = [_policy(options, model, costs, name) for name in (REFERENCE, *options.policy)]
    context = min(max(map(len, ids)) + options.output_len + 2 * options.block_sizes[-1], model.config.max_context)
    most = options.levels[-1]
    pages = most * Limits().pages(context + options.block_sizes[-1])
    limits = Limits(max_running=most, kv_pages=pages)
    config = EngineConfig(options.block_sizes, limits, context, batching)
    engine = TurningEngine(model.decoder, policies, config)
    for prompt in ids:
        engine.check_request(prompt, Wish(options.output_len))
    return Bench(options, model, costs, prompts, ids, engine, given, started)


def _policy(options: MatchOptions, model: LoadedModel, costs: CostModel | None, name: str) -> Policy:
    return policy_of(name, options.block_sizes, model.config.name, costs, model.state)


def _mixed(prompts: Sequence[Prompt]) -> list[int]:
    """The first prompt of each dataset, the second ones, and so on: runs of a few are of all datasets too."""
    seen: dict[str, int] = {}
    turns = []
    for prompt in prompts:
        seen[prompt.dataset] = seen.get(prompt.dataset, 0) + 1
        turns.append(seen[prompt.dataset])
    return sorted(range(len(prompts)), key=lambda at: turns[at])


def _placed(outputs: Outputs, ids: Sequence[Sequence[int]], order: Sequence[int], most: int) -> Outputs:
    """Outputs of the prompts as they are in the files, told by their places in this order; InputError for others."""
    outputs.check(ids, most)
    return replace(outputs, rows=[order.index(row) for row in outputs.rows])


def _shapes(options: MatchOptions) -> list[Shape]:
    """What texts are read in: as many requests as at most and at least, one token each and the largest block."""
    few, many, size = options.levels[0], options.levels[-1], options.block_sizes[-1]
    return list(dict.fromkeys(Shape(*shape) for shape in ((many, size), (many, 1), (few, size), (few, 1))))


def _ruler(bench: Bench, texts: Sequence[Text], shapes: Sequence[Shape]) -> Ruler:
    """Texts read by the engine's own forwards, and by the same weights in fp32."""
    decoder, exact = bench.model.decoder, copy.deepcopy(bench.model.decoder)
    exact.float()
    served = [Reading(decoder, partial(reread_served, bench.engine), texts, shape) for shape in shapes]
    return Ruler(texts, served, Reading(exact, partial(reread, exact), texts, shapes[0]))


def _points(options: MatchOptions) -> list[tuple[str, int]]:
    """Policies in their order, each with many requests first, which take the least time."""
    return [(name, concurrency) for name in options.policy for concurrency in reversed(options.levels)]


def _run(bench: Bench, ruler: Ruler, name: str, concurrency: int) -> None:
    each = bench.options.requests_each
    count = len(bench.ids) if each is None else min(len(bench.ids), each * concurrency)
    lives, seconds = _served(bench, name, concurrency, count)
    parted = divergences(ruler, ((row, live.tokens) for row, live in enumerate(lives)))
    errors = sum(live.finish_reason == "error" for live in lives)
    tokens = sum(len(live.tokens) for live in lives)
    bench.runs.append(Run(name, concurrency, count, seconds, tokens, errors, parted))
    _say(f"{name} at C = {concurrency}: {count - len(parted)} of {count} equal, {seconds:.1f} s")


def _judge(bench: Bench, ruler: Ruler, outputs: Outputs) -> None:
    """Outputs of another server as a run."""
    run = judged(ruler, outputs)
    bench.runs.append(run)
    _say(f"{outputs.path}: {run.requests - len(run.parted)} of {run.requests} equal")


def _served(bench: Bench, name: str, concurrency: int, count: int) -> tuple[list[Live], float]:
    """The first prompts in a closed loop, and the seconds that took."""
    engine, started = bench.engine, time.monotonic()
    lives: list[Live] = []
    engine.turn_to(bench.policy(name), concurrency)
    while len(lives) < count or engine.in_flight:
        while len(lives) < count and engine.in_flight < concurrency:
            lives.append(engine.add(bench.ids[len(lives)], Wish(bench.options.output_len)))
        engine.step()
    engine.check()
    return lives, time.monotonic() - started


def _document(bench: Bench, ruler: Ruler) -> dict[str, Any]:
    return {
        **_about(bench),
        "complete": len(bench.runs) == len(bench.given) + len(_points(bench.options)),
        "reference": f"{REFERENCE}, one request at a time",
        "reference_tokens": sum(len(text.output) for text in ruler.texts),
        **told_of(ruler, bench.runs),
        "prompts": [prompt.prompt_id for prompt in bench.prompts],
    }


def _about(bench: Bench) -> Mapping[str, Any]:
    options, model = bench.options, bench.model
    return {
        **model.named,
        "merge_drafts": drafts_merged(model.decoder),
        "dtype": options.dtype,
        **machine_of(model.decoder.device),
        "command": command_line(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "batching": options.batching,
        "block_sizes": ",".join(map(str, options.block_sizes)),
        "output_len": options.output_len,
        "prompt_set_sha256": prompt_set_sha256(bench.prompts),
    }


def _show(document: Mapping[str, Any]) -> None:
    table = Table(title="noise of logits: " + _told(document["noise"]) + "; against fp32: "
                  + _told(document["noise_against_fp32"]), title_justify="left")  # fmt: skip
    for heading in COLUMNS.values():
        table.add_column(heading, justify="left" if heading == "policy" else "right", overflow="fold")
    for row in document["runs"]:
        table.add_row(*(_cell(row[name]) for name in COLUMNS))
    screen(120).print(table)


def _told(noise: Mapping[str, float]) -> str:
    return f"99.9 % up to {noise['p999']:.3g}, all up to {noise['max']:.3g}"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _say(text: str) -> None:
    typer.echo(f"{datetime.now():%H:%M:%S} {text}", err=True)
