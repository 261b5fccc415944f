"""A run that is stopped where it stands: its first steps, and of each request what they emitted."""

from dataclasses import replace

import numpy as np

from recguide.sim.log import Replay


def first_steps(run: Replay, count: int) -> Replay:
    """The run up to the end of its step ``count``, from 1; requests that emitted nothing by then were never sent.

    Whoever was in flight then ends with its last emission. Counts of preemptions stay those of the whole run.
    """
    if count >= len(run.steps["seconds"]):
        return run
    kept = run.emission_step < count
    tokens = np.bincount(run.emission_request[kept], run.emission_tokens[kept], len(run.request)).astype(np.int64)
    sent = np.flatnonzero(tokens)
    number = np.cumsum(tokens > 0) - 1
    columns = ("request", "prompt_tokens", "arrival_s", "sent_s", "started_s", "first_token_s")
    parts = ("emission_tokens", "emission_step", "emission_block_size")
    return ended(
        replace(
            run,
            **{name: getattr(run, name)[sent] for name in columns},
            **{name: getattr(run, name)[kept] for name in parts},
            output_tokens=tokens[sent],
            finished_s=run.finished_s[sent],
            steps={name: column[:count] for name, column in run.steps.items()},
            emission_request=number[run.emission_request[kept]],
            emission_outcome=None if run.emission_outcome is None else run.emission_outcome[kept],
            kv_pages=None if run.kv_pages is None else run.kv_pages[:count],
            cut_rounds=None,
        )
    )


def ended(run: Replay) -> Replay:
    """The same run whose first tokens and finishes are at the ends of their steps, to the last bit.

    Figures compare these times with each other; a clock that was shifted or rounded has them apart.
    """
    ends = (run.steps["start_s"] + run.steps["seconds"])[run.emission_step]
    first, last = np.full(len(run.request), np.inf), np.zeros(len(run.request))
    np.minimum.at(first, run.emission_request, ends)
    np.maximum.at(last, run.emission_request, ends)
    return replace(run, first_token_s=first, finished_s=last)
