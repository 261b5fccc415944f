"""What fitted tables expect of the next round of requests at every block size: V_B(s, z) (paper, section 5.2)."""

import math
from bisect import bisect_right

import numpy as np

from recguide.sim.adaptive import ALL, Adaptive, certainty, stratum
from recguide.sim.history import Floats
from recguide.sim.policies import Outcomes
from recguide.sim.rounds import Ints


class Expected:
    """V_B(s, z) as an array; a request without a round behind it has the mean over the bins of all rounds."""

    def __init__(self, fitted: Adaptive) -> None:
        self.sizes = np.array(fitted.candidates)
        names = [ALL, *(stratum(size, full) for size in fitted.candidates for full in (False, True))]
        tables = [fitted.values.get(name, fitted.values[ALL]) for name in names]
        known = np.array([[table[size] for size in fitted.candidates] for table in tables])
        # what is no number sorts behind the last edge, which is infinite
        unknown = np.broadcast_to(known[0].mean(axis=1), known.shape[:2])
        self.values = np.concatenate([known, unknown[:, :, None]], axis=2).transpose(0, 2, 1).copy()
        """[strata, bins, sizes], the last bin that of requests without history."""
        self.edges = np.array([*fitted.edges, np.inf])
        self.place = np.zeros((64, 2), np.int64)
        for i, size in enumerate(fitted.candidates):
            self.place[size] = 2 * i + 1, 2 * i + 2
        self._values, self._edges, self._places = self.values.tolist(), self.edges.tolist(), self.place.tolist()

    def places(self, entropy: Floats, entropy_before: Floats, block_size: Ints, accept_len: Ints) -> tuple[Ints, Ints]:
        """Stratum and bin of requests that stand so."""
        where: Ints = self.place[block_size, (accept_len == block_size).astype(np.int64)]
        return where, self.edges.searchsorted(certainty(entropy, entropy_before), side="right")

    def places_of(self, seen: Outcomes) -> tuple[Ints, Ints]:
        """The same of the running requests."""
        if seen.entropy is None or seen.entropy_before is None:
            raise ValueError("this policy looks at entropies, and nobody keeps them")
        return self.places(seen.entropy, seen.entropy_before, seen.block_size, seen.accept_len)

    def tokens(self, entropy: Floats, entropy_before: Floats, block_size: Ints, accept_len: Ints) -> Floats:
        """[requests, sizes] Expected tokens of the next round of requests that stand so."""
        found: Floats = self.values[self.places(entropy, entropy_before, block_size, accept_len)]
        return found

    def tokens_of_one(self, entropy: float, entropy_before: float, block_size: int, accept_len: int) -> list[float]:
        """The same of one request, for the engine."""
        s = -entropy if math.isnan(entropy_before) else -(entropy + entropy_before) / 2
        values: list[float] = self._values[self._places[block_size][accept_len == block_size]][
            bisect_right(self._edges, s)
        ]
        return values
