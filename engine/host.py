"""What the host adds to a round: everything between the forwards, measured on rounds driven as a server drives them.

A round and its own forwards are timed together. The difference of two runs would carry the drift of the clock between
them, which for long forwards is more than all that the host does.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recguide.engine.clocks import Stopwatch
from recguide.engine.model import Decoder
from recguide.engine.profiling import CachePool, Effort, Shape, Timing, cache_bytes, summary
from recguide.engine.uniform import UniformForward

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


class Rounds:
    """Draft-verify rounds of a batch on the device, with the bookkeeping of a server: tokens, positions, acceptance.

    At block size 1 a round is one autoregressive step. Acceptance is whatever random drafts get; its bookkeeping costs
    the same.
    """

    def __init__(self, decoder: Decoder, pool: CachePool, requests: int, block_size: int, context: int) -> None:
        kinds = ("decode",) if block_size == 1 else ("draft", "verify")
        cache = pool.cache(Shape("verify", requests, block_size, context))
        self.forwards = [UniformForward(decoder, cache, requests, block_size, context, kind) for kind in kinds]
        self.shift, self.mask_id = decoder.config.draft_shift, decoder.config.mask_id
        self.outputs: list[list[int]] = [[] for _ in range(requests)]
        self.lengths = [context] * requests
        self.seeds = torch.zeros(requests, dtype=torch.long, device=decoder.device)
        self.stopwatch = Stopwatch(decoder.device)

    def capture(self, memory: "_POOL_HANDLE") -> None:
        """Record the forwards as CUDA graphs."""
        for forward in self.forwards:
            forward.capture(memory)

    def round(self) -> None:
        """One round: draft, fill, verify, accept, and bring the accepted tokens to the requests."""
        verify = self.forwards[-1]
        if len(self.forwards) == 2:
            self._draft(self.forwards[0], verify)
        else:
            verify.ids[:, 0] = self.seeds
        self.stopwatch.run(verify.replay)
        picked = verify.picked
        matched = (verify.ids[:, 1:] == picked[:, :-1]).long().cumprod(1).sum(1)
        self.seeds = picked.gather(1, matched[:, None])[:, 0]
        # one transfer a round, as a server needs to know what to stream and who has finished
        report = torch.cat([matched[:, None] + 1, picked], 1).tolist()
        for index, (accepted, *tokens) in enumerate(report):
            self.outputs[index] += tokens[:accepted]
            self.lengths[index] += accepted

    def _draft(self, draft: UniformForward, verify: UniformForward) -> None:
        draft.ids.fill_(self.mask_id)
        draft.ids[:, 0] = self.seeds
        self.stopwatch.run(draft.replay)
        drafted: Tensor = draft.picked[:, :-1] if self.shift else draft.picked[:, 1:]
        verify.ids[:, 0] = self.seeds
        verify.ids[:, 1:] = drafted


def measure_host(
    decoder: Decoder,
    requests: Sequence[int],
    block_sizes: Sequence[int],
    effort: Effort,
    say: Callable[[str], None],
    context: int = 64,
) -> dict[Shape, Timing]:
    """Wall time of a round less that of its own forwards, for each batch and block size (1 is a one-token step).

    The effort's seconds are shared out evenly; a shape that has used up its share is measured twice at least.
    """
    biggest = Shape("verify", max(requests), max(block_sizes), context)
    pool = CachePool(decoder, cache_bytes(decoder.config, biggest, decoder.dtype.itemsize))
    memory = torch.cuda.graph_pool_handle() if decoder.device.type == "cuda" else None
    shapes = [Shape("host", count, block_size, 0) for count in requests for block_size in block_sizes]
    share = replace(effort, seconds=effort.seconds / len(shapes))
    # all are kept: the memory of graphs goes when the last that shares it goes
    all_rounds = {shape: Rounds(decoder, pool, shape.requests, shape.tokens, context) for shape in shapes}
    found = {}
    for shape, rounds in all_rounds.items():
        if memory is not None:
            rounds.capture(memory)
        found[shape] = summary(list(_host_times(rounds, share, decoder)))
    say(f"host: {len(found)} shapes")
    return found


def _host_times(rounds: Rounds, effort: Effort, decoder: Decoder) -> Iterator[float]:
    started, done = time.monotonic(), 0
    rounds.round()
    while effort.another(done, time.monotonic() - started):
        yield _host_time(rounds, decoder, effort)
        done += 1


def _host_time(rounds: Rounds, decoder: Decoder, effort: Effort) -> float:
    """Seconds of a round beside its forwards, the device idle before and after: of one, or a mean of up to 20."""
    _wait(decoder)
    rounds.stopwatch.take()
    started, count = time.perf_counter(), 0
    while count == 0 or (count < 20 and time.perf_counter() - started < effort.least_s):
        rounds.round()
        _wait(decoder)
        count += 1
    whole = time.perf_counter() - started
    return (whole - rounds.stopwatch.take()) / count


def _wait(decoder: Decoder) -> None:
    if decoder.device.type == "cuda":
        torch.cuda.synchronize()
