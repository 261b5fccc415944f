"""Engines as processes, each with its client: one after the other, or started together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import typer

from recguide.engine.sglang_client import GO, POLL_S, READY

LOG = "log.txt"
LAST_WORDS = 2000
"""Characters of a failed engine's log that are shown."""


class Job(Protocol):
    """An engine that is to run."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def folder(self) -> Path:
        """Where its log goes."""

    @property
    def path(self) -> Path:
        """What its client reads."""


class Running:
    """A client and its engine."""

    def __init__(self, job: Job) -> None:
        self.job, self.started = job, time.monotonic()
        command = [sys.executable, "-m", "recguide.engine.sglang_client", str(job.path)]
        with self.log.open("w") as log:
            # a session of its own, so that all of its processes can be ended
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    @property
    def log(self) -> Path:
        """What its processes say."""
        return self.job.folder / LOG

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing more to wait for before others serve: it has started, or never will."""
        return (self.job.folder / READY).exists() or self.process.poll() is not None

    def failed(self, limit: float) -> bool:
        """Wait for its end, so many seconds after its start at most; whether it was no good one."""
        try:
            code = self.process.wait(max(0.0, self.started + limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            typer.echo(f"{self.job.name}: stopped after {limit:g} s", err=True)
            code = -1
        finally:
            self.end()
        if code:
            typer.echo(f"{self.job.name}: failed\n{log_of(self.job)[-LAST_WORDS:]}", err=True)
        typer.echo(f"{self.job.name}: {time.monotonic() - self.started:.0f} s", err=True)
        return code != 0

    def end(self) -> None:
        """End whatever is left of it."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()


def log_of(job: Job) -> str:
    """What the processes of a job have said."""
    return (job.folder / LOG).read_text(encoding="utf-8", errors="replace")


def serve_all(jobs: Sequence[Job], limit: float, together: bool) -> bool:
    """Run all jobs, each within so many seconds of its start; whether one of them failed.

    Together they serve as soon as all are ready, and then in turn: all one repeat, then all the next one.
    """
    if not together:
        failures = []
        for job in jobs:
            (job.folder / GO).touch()
            failures.append(Running(job).failed(limit))
        return any(failures)
    running, until = [Running(job) for job in jobs], time.monotonic() + limit
    while time.monotonic() < until and not all(each.is_ready for each in running):
        time.sleep(POLL_S)
    for job in jobs:
        (job.folder / GO).touch()
    failures = [each.failed(limit) for each in running]
    return any(failures)
