"""At which load a point of a sweep was taken."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Level(NamedTuple):
    """Requests in flight at most, and requests per second."""

    concurrency: int = 0
    """0: nothing limits them."""
    rate: float = 0.0
    """0: requests come as others finish, or at the times of a file."""

    def __str__(self) -> str:
        said = [f"C={self.concurrency}"] if self.concurrency else []
        return ", ".join([*said, *([f"{self.rate:g} req/s"] if self.rate else [])]) or "no limit"

    @property
    def suffix(self) -> str:
        """The same in the name of a file."""
        return f"c{self.concurrency}" + (f"-r{self.rate!r}" if self.rate else "")


def level_of(point: Mapping[str, object]) -> Level:
    """The level of a point."""
    return Level(int(str(point["max_concurrency"] or 0)), float(str(point.get("request_rate") or 0)))


def levels_of(points: Iterable[Mapping[str, object]]) -> list[Level]:
    """The levels of the points, ascending."""
    return sorted({level_of(point) for point in points})
