"""What matrix products take of a forward, at every size that forwards are filled up to.

Their time jumps with the number of tiles that a GPU computes at once, so forwards between two sizes that were profiled
take longer than both foretell. What is left of a forward without its products has no such jumps.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from recguide.sim.curves import MOST_OF_FORWARD, PartOf, nothing
from recguide.sim.profile_rows import PRODUCTS, Row, is_host
from recguide.sim.sizes import filled_up
from recguide.traces.errors import InputError


class Products:
    """Seconds of all matrix products of a forward of so many tokens that are all scored; 0 where none are known.

    ``seconds`` has every size that forwards are filled up to, up to a largest one. Beyond that they are proportional to
    tokens.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self._seconds, self._largest = seconds, max(seconds, default=0)

    def __call__(self, tokens: int) -> float:
        """Of a forward of so many tokens, which is filled up."""
        size = filled_up(tokens)
        if size <= self._largest:
            return self._seconds[size]
        return self._seconds[self._largest] * size / self._largest if self._largest else 0.0

    def part_of(self, kind: str) -> PartOf:
        """The same of forwards of a kind, by where they lie in its grid."""
        if is_host(kind) or not self._seconds:
            return nothing
        return self._of_prompts if kind == "prefill" else self._of_requests

    def _of_requests(self, requests: float, per_request: float) -> float:
        return self(round(requests * per_request))

    def _of_prompts(self, prompts: float, tokens: float) -> float:
        return self(round(tokens))


def check_products(path: Path, first_line: int, rows: Sequence[Row], *, filled: bool) -> None:
    """InputError unless there are products of no size or of all in turn, of ``filled`` forwards that take as long."""
    numbered = list(enumerate(rows, first_line))
    last = 0
    for line, row in numbered:
        if row.kind == PRODUCTS:
            if not filled:
                raise InputError(f"{path}:{line}: kind: found 'products', allowed: only with fill in the header")
            last = _checked(f"{path}:{line}", row, filled_up(last + 1))
    products = Products({row.query_tokens: row.median_us for row in rows if row.kind == PRODUCTS})
    for line, row in numbered:
        least_us = products.part_of(row.kind)(1, row.query_tokens) / MOST_OF_FORWARD
        # a prefill scores its last tokens alone, and with a small model and many words all scores are most of the work
        if row.kind != "prefill" and row.median_us < least_us:
            allowed = f"at least {least_us:g}, half of what the products of so many tokens take"
            raise InputError(f"{path}:{line}: median_us: found {row.median_us:g}, allowed: {allowed}")


def _checked(where: str, row: Row, size: int) -> int:
    for field, allowed in (("requests", 1), ("query_tokens", size), ("context_tokens", 0)):
        if (found := getattr(row, field)) != allowed:
            why = ", the next size that forwards are filled up to" if field == "query_tokens" else ""
            raise InputError(f"{where}: {field}: found {found}, allowed: {allowed}{why}")
    return size
