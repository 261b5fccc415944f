"""Serves a load with one SGLang engine and notes when tokens came: `python -m recguide.engine.sglang_client JOB.json`.

A process of its own for each engine, so that every one finds the GPU empty. What it read and found are JSON files.
"""

import asyncio
import fcntl
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang import Engine

READY, GO, POLL_S = "ready", "go", 0.05
"""Files beside the job: the engine has started, and it may serve; and how often is looked for the second."""
ALIVE, TURN = "alive", "turn"
"""Files that are locked: beside the job as long as its process lives, and above all jobs by whoever serves."""
PATIENCE_S = 20.0
"""How long SGLang may take to find out that nobody is served any more."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    ids: list[int]
    sampling: dict[str, Any]


@dataclass(slots=True)
class Seen:
    """What a client saw of one: seconds since the run began, and how many output tokens had come by then."""

    row: int
    sent_s: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    error: str = ""
    verified: int = 0
    """Rounds, as far as SGLang counts them."""
    output: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """A closed loop of some of the requests."""

    concurrency: int
    rows: list[int]
    warmups: int
    result: str
    repeat: int = 1


class Client:
    """Asks an engine."""

    def __init__(self, engine: "Engine", load: Sequence[Asked], stream: bool) -> None:
        self.engine, self.load, self.stream = engine, load, stream

    def serve(self, rows: Sequence[int], concurrency: int) -> list[Seen]:
        """Requests in this order, so many in flight; what was seen of each."""
        found: list[Seen] = self.engine.loop.run_until_complete(self._serve(rows, concurrency))
        return found

    async def _serve(self, rows: Sequence[int], concurrency: int) -> list[Seen]:
        left, seen, started = iter(rows), list[Seen](), time.perf_counter()
        await asyncio.gather(*(self._place(left, seen, started) for _ in range(concurrency)))
        return sorted(seen, key=lambda each: each.sent_s)

    async def _place(self, left: Iterator[int], seen: list[Seen], started: float) -> None:
        for row in left:
            each = Seen(row, time.perf_counter() - started)
            seen.append(each)
            try:
                await self._ask(each, started)
            except Exception as error:  # whatever SGLang raises of one request is that request's
                each.error = str(error) or type(error).__name__

    async def _ask(self, each: Seen, started: float) -> None:
        asked = self.load[each.row]
        answer = await self.engine.async_generate(
            input_ids=asked.ids, sampling_params=asked.sampling, stream=self.stream
        )
        if not self.stream:
            _note(each, answer, time.perf_counter() - started)
            return
        async for part in answer:
            _note(each, part, time.perf_counter() - started)

    def flush(self) -> None:
        """Empty the cache; a plugin that logs writes what it has served. RuntimeError where SGLang does not."""
        until = time.perf_counter() + PATIENCE_S
        while not self.engine.flush_cache().success:
            if time.perf_counter() > until:
                raise RuntimeError(f"SGLang did not flush its cache within {PATIENCE_S:g} s")
            time.sleep(0.05)


def _note(each: Seen, part: dict[str, Any], now: float) -> None:
    meta = part["meta_info"]
    count = int(meta["completion_tokens"])
    if count > (each.tokens[-1] if each.tokens else 0):
        each.times.append(now)
        each.tokens.append(count)
    reason = meta.get("finish_reason")
    if reason:
        each.finish_reason = str(reason["type"])
        if each.finish_reason == "abort":
            each.error = str(reason.get("message") or "aborted")
    each.verified = int(meta.get("spec_verify_ct") or 0)
    each.output = list(part["output_ids"])


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process has locked this file, and lock it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_alive(folder: Path) -> bool:
    """Whether a process serves the job of this folder."""
    path = folder / ALIVE
    if not path.exists():
        return False
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def turns(folder: Path, runs: Sequence[Run]) -> Iterator[Sequence[Run]]:
    """The runs of one repeat after the other, while no other job is served.

    Other jobs, in the folders beside this one, come in between: a repeat begins when all that live are through the one
    before, so that a drift of the machine meets all alike.
    """
    others = [each for each in folder.parent.iterdir() if each.is_dir() and each != folder]
    for repeat, group in groupby(runs, lambda run: run.repeat):
        while any(is_alive(each) and not (each / _through(repeat - 1)).exists() for each in others if repeat > 1):
            time.sleep(POLL_S)
        with locked(folder.parent / TURN):
            yield list(group)
        (folder / _through(repeat)).touch()


def _through(repeat: int) -> str:
    return f"through-{repeat}"


def main(path: Path) -> None:
    """Start the engine of a job, and serve its runs one after the other, while no other engine serves."""
    with locked(path.parent / ALIVE):
        _serve(path.parent, json.loads(path.read_text(encoding="utf-8")))


def _serve(folder: Path, job: dict[str, Any]) -> None:
    import sglang

    load = [Asked(**asked) for asked in job["load"]]
    engine = sglang.Engine(**job["engine"])
    try:
        print(f"{time.strftime('%T')} ready", flush=True)
        (folder / READY).touch()
        while not (folder / GO).exists():
            time.sleep(POLL_S)
        for runs in turns(folder, [Run(**each) for each in job["runs"]]):
            for run in runs:
                measure(Client(engine, load, job["stream"]), run)
    finally:
        engine.shutdown()


def measure(client: Client, run: Run) -> None:
    """Warm up, serve, and write what was seen."""
    client.serve(run.rows[: run.warmups], run.concurrency)
    client.flush()
    seen = client.serve(run.rows, run.concurrency)
    client.flush()
    # beside it and then in its place, so that a file which is there is whole
    Path(run.result + ".part").write_text(json.dumps([asdict(each) for each in seen]), encoding="utf-8")
    Path(run.result + ".part").replace(run.result)
    print(f"{time.strftime('%T')} {run.result}: {len(seen)} requests", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
