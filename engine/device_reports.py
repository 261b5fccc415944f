"""How far requests on the device are, brought to the host without making the device wait."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.kernels import round_state as rs


@dataclass(frozen=True, slots=True)
class Report:
    """Where all requests stood when it was taken, on the host; ``ready`` says when it is."""

    state: Tensor
    tokens: Tensor
    log: Tensor
    ready: torch.cuda.Event | None

    @classmethod
    def room_for(cls, requests: rs.Requests) -> "Report":
        """A report to be taken over and over; pinned where a GPU writes it."""
        cuda = requests.state.is_cuda
        state, tokens, log = (
            torch.empty_like(column, device="cpu", pin_memory=cuda)
            for column in (requests.state, requests.tokens, requests.log)
        )
        return cls(state, tokens, log, torch.cuda.Event() if cuda else None)

    def take(self, requests: rs.Requests) -> None:
        """Copy, without waiting."""
        for mine, theirs in ((self.state, requests.state), (self.tokens, requests.tokens), (self.log, requests.log)):
            mine.copy_(theirs, non_blocking=True)
        if self.ready is not None:
            self.ready.record()

    def wait(self) -> NDArray[np.int32]:
        """The state, once it has arrived."""
        if self.ready is not None:
            self.ready.synchronize()
        state: NDArray[np.int32] = self.state.numpy()
        return state


class Outputs:
    """What requests have emitted, drained from the rings report by report."""

    def __init__(self, num_requests: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(num_requests)]
        self.rounds: list[list[list[int]]] = [[] for _ in range(num_requests)]

    def drain(self, report: Report, state: NDArray[np.int32]) -> None:
        """Take over what is new."""
        for row, (tokens, rounds) in enumerate(zip(self.tokens, self.rounds, strict=True)):
            tokens += _new(report.tokens[row], len(tokens), int(state[row, rs.WRITTEN]))
            rounds += _new(report.log[row], len(rounds), int(state[row, rs.ROUNDS]))


def _new(ring: Tensor, have: int, count: int) -> list[Any]:
    """The entries from ``have`` to ``count`` of a ring; RuntimeError where it has gone round since."""
    if count - have > len(ring):
        raise RuntimeError(f"{count - have} entries since the last report, and a ring of {len(ring)}")
    entries: list[Any] = ring.numpy()[np.arange(have, count) % len(ring)].tolist()
    return entries
