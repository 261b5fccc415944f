"""Measurements for tests: simulated runs in the form that the engine writes, and whole folders of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from recguide.sim.campaigns import Manifest, PointKey, manifest_of
from recguide.sim.catalogue import make_policy, rounds_for
from recguide.sim.costs import CostModel
from recguide.sim.measurement import ALL, About, Measurement, write_measurement
from recguide.sim.metrics import metrics_of
from recguide.sim.replay import Replay, replay
from recguide.sim.rounds import rounds_of
from recguide.sim.sweep import only_datasets, serving_order
from recguide.traces.dense import DenseTrace

KEPT = ("model", "weights_sha256", "adapter_sha256", "prompt_set_sha256", "max_output_tokens", "max_context")
ORIGIN = {"model": "tiny", "gpu": "Test GPU", "created": "2026-01-01T00:00:00+00:00"}


def about(trace: DenseTrace, policy: str, concurrency: int, ids: tuple[str, ...], **changes: object) -> About:
    """What a file says of a run; changed by keyword."""
    made = About(
        policy, ALL, concurrency, 1, "point", 1, "forced", "bucket", 2048, None, ids,
        {name: getattr(trace.provenance, name) for name in KEPT}, ORIGIN,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def as_measured(
    trace: DenseTrace, policy: str, concurrency: int, costs: CostModel, host_s: float = 0.0, **changes: object
) -> Measurement:
    """A run of the simulator under these costs, told as the engine tells one: ``host_s`` of each step are the host's.

    Every dataset that ``changes`` name alone is served alone.
    """
    dataset = str(changes.get("dataset", ALL))
    mine = only_datasets(trace, [] if dataset == ALL else [dataset])
    rounds = rounds_for(mine, [policy])
    order = serving_order(len(mine.requests), max(4 * concurrency, 8), 0)
    run = replay(rounds, costs, make_policy(policy, rounds, costs), concurrency=concurrency, order=order)
    ids = tuple(mine.requests[row].request_id for row in order)
    seconds = run.steps["seconds"]
    forward_s = np.maximum(seconds - host_s, 0)
    flags = run.emission_outcome if run.emission_outcome is not None else 0 * run.emission_tokens
    told = replace(run, request=np.arange(len(order)), emission_outcome=flags)
    about_it = about(trace, policy, concurrency, ids, **changes)
    return Measurement(about_it, told, np.zeros(len(seconds)), forward_s)


def write(folder: Path, trace: DenseTrace, measured: Measurement) -> Path:
    """Write one into a folder that is there."""
    path = folder / measured.about.name
    write_measurement(path, measured, metrics_of(measured.run, rounds_of(trace)))
    return path


def stretched(run: Replay, factor: float) -> Replay:
    """The same run with every time multiplied."""
    names = ("sent_s", "started_s", "first_token_s", "finished_s")
    steps = {**run.steps, "start_s": run.steps["start_s"] * factor, "seconds": run.steps["seconds"] * factor}
    return replace(run, steps=steps, **{name: getattr(run, name) * factor for name in names})


def campaign(
    folder: Path,
    trace: DenseTrace,
    costs: CostModel,
    policies: tuple[str, ...],
    concurrencies: tuple[int, ...],
    repeats: tuple[float, ...] = (1.0, 1.01, 0.99),
    datasets: tuple[str, ...] = (ALL,),
) -> Path:
    """A folder whose runs are the simulator's under these costs, each repeat slower or faster by its factor."""
    keys = [PointKey(policy, name, c) for policy in policies for name in datasets for c in concurrencies]
    manifest_of(folder, Manifest(len(repeats), tuple(keys), {"model": "tiny"}))
    for policy, dataset, concurrency in keys:
        for number, factor in enumerate(repeats, 1):
            made = as_measured(trace, policy, concurrency, costs, dataset=dataset, repeat=number)
            slower = replace(made, run=stretched(made.run, factor), forward_s=made.forward_s * factor)
            write(folder, trace, slower)
    return folder
