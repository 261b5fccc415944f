"""What was served under SGLang, as files that the simulator replays and the validation report takes as measured."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from recguide.engine.environment import machine_of
from recguide.engine.policyof import rounds_named
from recguide.engine.runlog import answered
from recguide.engine.served import NOTE
from recguide.engine.sglang_forwards import SglangForwards
from recguide.engine.sglang_options import Plan
from recguide.engine.sglang_rounds import ScheduledRounds
from recguide.engine.shared_options import told_of_drafts
from recguide.sim.log import Replay
from recguide.sim.measurement import ACCEPTANCE, ALL, ROLES, About, Measurement, served_path, write_measurement
from recguide.sim.metrics import metrics_of
from recguide.sim.rounds import rounds_of
from recguide.traces.dense import Provenance
from recguide.traces.files import write_trace

UNKNOWN = "unknown"
"""What SGLang does not say of a model."""
NO_HASH = "0" * 64


class Server(NamedTuple):
    """What is said of SGLang."""

    command: str
    max_batched_tokens: int


def write_run(folder: Path, rounds: ScheduledRounds, plan: Plan, forwards: SglangForwards, server: Server) -> Path:
    """Write a run into the next file of a folder: ``run-0001.json.gz``, and beside it its own trace; gives its path.

    Requests without a whole answer are left out. There is a trace where the model says what is accepted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"run-{1 + len(list(folder.glob('run-*.json.gz'))):04d}.json.gz"
    whole = from_first(answered(rounds.log.replay(rounds.preemptions, rounds.recomputed_tokens)))
    config = forwards.decoder.config
    if plan.trace is None:
        names = tuple(f"served/{number:06d}" for number in _answered(rounds))
        known = rounds_named(plan.block_sizes, config.name)
        write_trace(rounds.served.trace(_provenance(rounds, plan, forwards, server)), served_path(path))
    else:
        names = tuple(plan.trace.requests[row].request_id for row in whole.request.tolist())
        known = rounds_of(plan.trace)
    run = replace(whole, request=np.arange(len(whole.request)))
    about = _about(rounds, plan, forwards, server, names)
    # of a step that drafts alone the log has the whole time, and the host's around a draft is no forward's
    forward_s = np.array(rounds.log.forward_s)
    measured = Measurement(about, run, np.minimum(rounds.log.draft_s, forward_s), forward_s)
    write_measurement(path, measured, metrics_of(run, known))
    return path


def _answered(rounds: ScheduledRounds) -> list[int]:
    return [story.live.number for story in rounds.served.answered()]


def from_first(run: Replay) -> Replay:
    """The same with times counted from the first request."""
    first = float(run.sent_s.min()) if len(run.sent_s) else 0.0
    names = ("arrival_s", "sent_s", "started_s", "first_token_s", "finished_s")
    times = {name: getattr(run, name) - first for name in names}
    return replace(run, **times, steps={**run.steps, "start_s": run.steps["start_s"] - first})


def _about(
    rounds: ScheduledRounds, plan: Plan, forwards: SglangForwards, server: Server, names: tuple[str, ...]
) -> About:
    config = forwards.decoder.config
    trace = {} if plan.trace is None else {"model": plan.trace.provenance.model}
    steps = rounds.log.log.steps if rounds.log.log is not None else []
    return About(
        policy=plan.options.policy,
        dataset=ALL,
        concurrency=max((step.in_flight for step in steps), default=1),
        repeat=1,
        role=ROLES[0],
        session=1,
        acceptance=ACCEPTANCE[plan.trace is not None],
        batching=plan.options.batching,
        max_batched_tokens=server.max_batched_tokens,
        kv_tokens=None,
        request_ids=names,
        trace=trace,
        origin={
            "model": config.name,
            "weights_sha256": UNKNOWN,
            "adapter_sha256": UNKNOWN,
            "dtype": str(forwards.decoder.dtype).removeprefix("torch."),
            **told_of_drafts(plan.options.merge_drafts),
            **machine_of(forwards.device),
            **forwards.told(),
            "command": server.command,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )


def _provenance(rounds: ScheduledRounds, plan: Plan, forwards: SglangForwards, server: Server) -> Provenance:
    config = forwards.decoder.config
    stories = rounds.served.answered()
    return Provenance(
        model=config.name,
        weights_sha256=NO_HASH,
        adapter_sha256=None,
        dtype=str(forwards.decoder.dtype).removeprefix("torch."),
        draft_shift=config.draft_shift,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        dropped={},
        base_agreement=None,
        **machine_of(forwards.device),
        prompt_set_sha256=NO_HASH,
        block_sizes=plan.block_sizes,
        max_output_tokens=max((story.live.wish.max_new_tokens for story in stories), default=1),
        max_context=rounds.setup.max_context,
        command=server.command,
        note=NOTE,
    )
