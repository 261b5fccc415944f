"""What the host adds to a round: everything between the forwards, measured on rounds driven as a server drives them."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from recguide.engine.model import Decoder
from recguide.engine.profiling import CachePool, Shape, Timing, cache_bytes, summary
from recguide.engine.uniform import UniformForward


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

    def capture(self, memory: tuple[int, int]) -> None:
        """Record the forwards as CUDA graphs."""
        for forward in self.forwards:
            forward.capture(memory)

    def forwards_only(self) -> None:
        """The forwards of a round and nothing else."""
        for forward in self.forwards:
            forward.replay()

    def round(self) -> None:
        """One round: draft, fill, verify, accept, and bring the accepted tokens to the requests."""
        verify = self.forwards[-1]
        if len(self.forwards) == 2:
            self._draft(self.forwards[0], verify)
        else:
            verify.ids[:, 0] = self.seeds
        verify.replay()
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
        draft.replay()
        drafted: Tensor = draft.picked[:, :-1] if self.shift else draft.picked[:, 1:]
        verify.ids[:, 0] = self.seeds
        verify.ids[:, 1:] = drafted


def measure_host(
    decoder: Decoder,
    requests: Sequence[int],
    block_sizes: Sequence[int],
    repeats: int,
    say: Callable[[str], None],
    context: int = 64,
) -> dict[Shape, Timing]:
    """Wall time of a round less that of its forwards alone, for each batch and block size (1 is a one-token step)."""
    biggest = Shape("verify", max(requests), max(block_sizes), context)
    pool = CachePool(decoder, cache_bytes(decoder.config, biggest, decoder.dtype.itemsize))
    memory = torch.cuda.graph_pool_handle() if decoder.device.type == "cuda" else None
    found = {}
    for count in requests:
        for block_size in block_sizes:
            rounds = Rounds(decoder, pool, count, block_size, context)
            if memory is not None:
                rounds.capture(memory)
            samples = [_clock(rounds.round, decoder) - _clock(rounds.forwards_only, decoder) for _ in range(repeats)]
            found[Shape("host", count, block_size, 0)] = summary([max(0.0, sample) for sample in samples])
    say(f"host: {len(found)} shapes")
    return found


def _clock(run: Callable[[], None], decoder: Decoder, count: int = 5) -> float:
    run()
    _wait(decoder)
    started = time.perf_counter()
    for _ in range(count):
        run()
        _wait(decoder)
    return (time.perf_counter() - started) / count


def _wait(decoder: Decoder) -> None:
    if decoder.device.type == "cuda":
        torch.cuda.synchronize()
